/*
 * Sleeping and waking around the final feed: a producing lane that waits for a slot, trainers that wait
 * for a batch, consumer groups that join and leave.
 *
 * Models
 *   workers/runtime/lane.cc                  LaneRuntime::sleep(), run(), attach()
 *   shm/src/feed_producer.cc                 FeedProducer::attend_groups(), open(), has_room(), announce()
 *   pyclient/src/wait.cc, take.cc            rf_next(), rf_release()
 *   supervisor/control/consumer_groups.cc    ConsumerGroups::set_state(), leave()
 *
 * One producing lane with one slot publishes BATCHES batches. Group A (policy block) has two trainers.
 * Group B joins and leaves at any time and takes nothing; its policy is block, or skip (-DSKIP). A separate
 * process kills the lane or a trainer between any two accesses, DEATHS times; the lane is started again, its
 * trainers are not.
 *
 * Properties
 *   no lost wake-up   when everybody is at rest, nobody sleeps on something that he could do (assertion,
 *                     without any time-out)
 *   the end           the lane ends (no other end state), as long as a trainer lives
 *
 * Memory order: a bell here is rung without asking who sleeps, so what counts is that the increment is
 * not seen before the store that it announces. It is a release; a relaxed one (RELEASE_RINGS_FIRST and
 * PUBLISH_RINGS_FIRST below) is modelled by letting the two accesses happen in either order.
 *
 * Simplifications, and why they are sound
 *   - A bell is one bit for each of those who wait on it: rung since he read it? (as in wakeup.pml)
 *   - The increment of a bell and the wake that follows are one step: whoever is asleep compares the
 *     value no more, and for the others a wake without sleepers is nothing. wakeup.pml has both.
 *   - The lane waits on its own bell and the bells of the groups at once, so one word tells of all of
 *     them. Group B's own bell is left out: its members give nothing back, and set_state() rings the lanes.
 *   - With one slot the descriptors are one number, the newest batch; the claim word of group A is the
 *     last batch done and who holds the next one; that of group B the last batch closed. How they change
 *     hands without loss is the matter of claims.pml.
 *   - A trainer that has seen everything but what another one holds sleeps until that one dies or leaves.
 *     In the code it also looks again after a slice of time, which can only tell it of the end earlier.
 *   - A trainer's look (closed, newest, the claim word) is one step: each of them only grows, and the bell
 *     is read before and compared after.
 *
 * Runs
 *   block  gate  -DBATCHES=2 -DDEATHS=1
 *   skip   mistakes  -DBATCHES=2 -DDEATHS=1 -DSKIP
 *   quiet  gate  -DBATCHES=2 -DDEATHS=0 -DSKIP
 *   long   full  -DBATCHES=3 -DDEATHS=1
 *   longer full  -DBATCHES=3 -DDEATHS=1 -DSKIP
 *   deaths full  -DBATCHES=2 -DDEATHS=2
 *   unreduced full  -DBATCHES=2 -DDEATHS=1 -DNOREDUCE
 *
 * Planted mistakes, the run that finds each, and what is wrong
 *   RELEASE_RINGS_FIRST      block  a batch is given back and the bell's increment is seen before that
 *   PUBLISH_RINGS_FIRST      block  a batch is published and the bell's increment is seen before that
 *   BELLS_READ_AFTER_LOOK    block  the lane reads the bells after its last look
 *   GROUPS_NOT_LOOKED_AT     block  its last look does not answer or close groups that moved since the round
 *   YIELDING_IS_NO_ROOM      quiet  to its last look, what open() would close is no room
 *   TRAINER_LOOKS_FIRST      block  a trainer reads the feed's bell after its look
 *   OWN_BELL_ALONE           block  the lane does not wait on the groups' bells
 *   LEAVE_RINGS_NO_TRAINER   block  a dead trainer's batch is given back and no trainer hears of it
 *   ATTACH_RINGS_NO_TRAINER  block  a new incarnation of the lane rings no trainer
 */
#ifndef BATCHES
#define BATCHES 3
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

mtype = { UNUSED, JOINING, ACTIVE, DRAINING };

byte newest, listed; /* descriptor and journal of the lane */
bool closed, listed_closed;

byte done_A;         /* every batch up to this one is done */
byte holder_A;       /* 1 + the trainer that holds the next one */
mtype state_B = UNUSED;
#ifdef SKIP
#define skips_B true
#else
#define skips_B false
#endif
bool answered_B;
byte from_B, start_B, closed_B; /* answer, first batch, every batch up to this one is closed */

/* A bell for one who waits on it: not read, read, rung since. The lane waits on its own and the groups'. */
#define UNREAD 0
#define READ 1
#define RUNG 2
byte lane_bell, trainer_bell[2];
bool lane_asleep, trainer_asleep[2];
bool lane_over, trainer_over[2];

bool kill_lane, lane_dead, kill_trainer[2], trainer_dead[2], trainer_gone[2];

#define after_ring(bell) (bell == READ -> RUNG : bell)

/* An unconditional ring: the increment, and the wake. */
inline ring_lane() {
  lane_bell = after_ring(lane_bell);
  lane_asleep = false
}
inline ring_A() {
#ifndef MISTAKE_OWN_BELL_ALONE /* the lane waits on its own bell alone */
  d_step { ring_lane() }
#else
  skip
#endif
}
inline ring_feed() {
  trainer_bell[0] = after_ring(trainer_bell[0]);
  trainer_bell[1] = after_ring(trainer_bell[1]);
  trainer_asleep[0] = false;
  trainer_asleep[1] = false
}

/* finished_by_all() for the last batch in the slot, as a state of memory. */
#define finished_A (done_A >= newest)
#define passed_B (newest < start_B || closed_B >= newest)
#define open_B (!passed_B && (skips_B || state_B == DRAINING))
#define finished_B                                                        \
  (state_B == UNUSED || (state_B == JOINING && (!answered_B || newest < from_B)) || \
   ((state_B == ACTIVE || state_B == DRAINING) && passed_B))
#define yields_B ((state_B == ACTIVE || state_B == DRAINING) && open_B)

#define work_of_lane                                                                    \
  (!lane_over &&                                                                        \
   ((finished_A && (finished_B || yields_B)) || (state_B == JOINING && !answered_B)))
#define work_of_trainer ((done_A < newest && holder_A == 0) || (closed && done_A == newest))

/* FeedProducer::attend_groups(). */
inline attend_groups() {
  atomic {
    if
    :: state_B == JOINING && !answered_B ->
       from_B = newest; /* the slot's batch is not given up yet; before the first, batch 1 */
       answered_B = true
    :: state_B == DRAINING -> closed_B = newest
    :: else
    fi
  }
}

/* LaneRuntime::commit(): the carry-out of a publishing or closing step, and the bell after it. */
inline publish() {
#ifdef MISTAKE_PUBLISH_RINGS_FIRST /* the feed's bell is incremented without release */
  if
  :: newest = listed;
     closed = listed_closed;
     d_step { ring_feed() }
  :: d_step {
       trainer_bell[0] = after_ring(trainer_bell[0]);
       trainer_bell[1] = after_ring(trainer_bell[1])
     };
     newest = listed;
     closed = listed_closed;
     d_step {
       trainer_asleep[0] = false;
       trainer_asleep[1] = false
     }
  fi
#else
  newest = listed;
  closed = listed_closed;
  d_step { ring_feed() }
#endif
}

proctype lane() {
  bool room;
life:
  {
#ifdef MISTAKE_ATTACH_RINGS_NO_TRAINER /* a new incarnation wakes no trainer */
    newest = listed;
    closed = listed_closed;
    attend_groups();
#else
    newest = listed;
    closed = listed_closed;
    attend_groups();
    d_step { ring_feed() };
#endif
    if
    :: listed_closed -> goto finished
    :: else
    fi;

round:
    attend_groups();
    if
    :: newest == BATCHES ->
       listed_closed = true;
       publish();
       goto finished
    :: else
    fi;
    /* open(): each group is looked at by itself; one that yields is closed only if no other is in the way. */
    room = finished_A;
    if
    :: room ->
       atomic {
         if
         :: finished_B
         :: yields_B -> closed_B = newest
         :: else -> room = false
         fi
       }
    :: else
    fi;
    if
    :: room ->
       listed = newest + 1;
       publish();
       goto round
    :: else
    fi;

#ifndef MISTAKE_BELLS_READ_AFTER_LOOK
    lane_bell = READ;
#endif
    /* The last look. */
#ifndef MISTAKE_GROUPS_NOT_LOOKED_AT /* a group that joins or leaves between the round and the bells is not seen */
    attend_groups();
#endif
    room = finished_A;
    if
    :: room ->
#ifdef MISTAKE_YIELDING_IS_NO_ROOM /* what open() would close counts as no room */
       room = finished_B
#else
       room = finished_B || yields_B
#endif
    :: else
    fi;
#ifdef MISTAKE_BELLS_READ_AFTER_LOOK /* the bells are read after the last look */
    lane_bell = READ;
#endif
    if
    :: !room ->
       atomic {
         lane_asleep = (lane_bell != RUNG);
         lane_bell = UNREAD
       };
       !lane_asleep
    :: else
    fi;
    atomic {
      room = false;
      lane_bell = UNREAD;
      goto round
    };

finished:
    lane_over = true
  } unless {
    kill_lane;
    atomic {
      kill_lane = false;
      lane_asleep = false;
      lane_bell = UNREAD;
      room = false;
      lane_dead = true
    };
    !lane_dead;
    goto life
  }
}

proctype trainer(byte me) {
  {
    do
    ::
#ifndef MISTAKE_TRAINER_LOOKS_FIRST
       trainer_bell[me] = READ;
#endif
       if
       :: atomic {
            done_A < newest && holder_A == 0 ->
            holder_A = me + 1;
            trainer_bell[me] = UNREAD
          };
#ifdef MISTAKE_RELEASE_RINGS_FIRST /* the group's bell is incremented without release */
          if
          :: d_step {
               done_A++;
               holder_A = 0
             };
             ring_A()
          :: lane_bell = after_ring(lane_bell);
             d_step {
               done_A++;
               holder_A = 0
             };
             lane_asleep = false
          fi
#else
          d_step {
            done_A++;
            holder_A = 0
          };
          ring_A()
#endif
       :: else ->
          if
          :: atomic {
               closed && done_A == newest ->
               trainer_bell[me] = UNREAD;
               break
             }
          :: else ->
#ifdef MISTAKE_TRAINER_LOOKS_FIRST /* the feed's bell is read after the look */
             trainer_bell[me] = READ;
#endif
             atomic {
               trainer_asleep[me] = (trainer_bell[me] != RUNG);
               trainer_bell[me] = UNREAD
             };
end_asleep:
             !trainer_asleep[me]
          fi
       fi
    od;
    trainer_over[me] = true /* rf_leave() */
  } unless {
    kill_trainer[me];
    atomic {
      kill_trainer[me] = false;
      trainer_asleep[me] = false;
      trainer_bell[me] = UNREAD;
      trainer_dead[me] = true
    }
  }
}

/* A trainer may keep a batch for as long as it likes. */
#define trainer_rests(t) (trainer_asleep[t] || trainer_gone[t] || holder_A == t + 1)

/* ConsumerGroups::leave(), with proof of the death or at the trainer's own wish. */
inline leave(t) {
  (trainer_dead[t] || trainer_over[t]) && !trainer_gone[t] ->
  holder_A = (holder_A == t + 1 -> 0 : holder_A);
  d_step {
    ring_lane();
#ifndef MISTAKE_LEAVE_RINGS_NO_TRAINER /* given back, and no trainer hears of it */
    ring_feed();
#endif
    trainer_gone[t] = true
  }
}

inline enter_B(next) {
  state_B = next;
  d_step { ring_lane() }
}

active proctype supervisor() {
  run lane();
  run trainer(0);
  run trainer(1);
end:
  do
  :: state_B == UNUSED && start_B == 0 -> enter_B(JOINING) /* B joins once */
  :: state_B == JOINING && answered_B ->
     start_B = (from_B > newest + 1 -> from_B : newest + 1);
     enter_B(ACTIVE)
  :: state_B == ACTIVE -> enter_B(DRAINING)
  :: state_B == DRAINING -> enter_B(UNUSED)
  :: leave(0)
  :: leave(1)
  :: lane_dead -> lane_dead = false
  /* Only looks: nobody can ring now. */
  :: d_step {
       (lane_asleep || lane_over) && trainer_rests(0) && trainer_rests(1) ->
       assert(!(lane_asleep && work_of_lane));
       assert(!(trainer_asleep[0] && work_of_trainer));
       assert(!(trainer_asleep[1] && work_of_trainer))
     }
  od
}

active proctype killer() {
  byte deaths;
end:
  do
  :: atomic { deaths < DEATHS && !lane_over && !lane_dead && !kill_lane -> kill_lane = true; deaths++ }
  :: atomic { deaths < DEATHS && !trainer_over[0] && !trainer_dead[0] && !kill_trainer[0] -> kill_trainer[0] = true; deaths++ }
  :: atomic { deaths < DEATHS && !trainer_over[1] && !trainer_dead[1] && !kill_trainer[1] -> kill_trainer[1] = true; deaths++ }
  od
}
