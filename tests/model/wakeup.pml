/*
 * Sleeping and waking of two lanes that share a ring: no wake-up is lost, without any time-out.
 *
 * Models
 *   shm/include/ringfeed/shm/bell.h          sleep(), Neighbour::wake(), ring()
 *   workers/runtime/lane.cc                  LaneRuntime::sleep(), settle_debts(), wake_neighbours(),
 *                                            attach(), finish(), run()
 *   shm/src/ring.cc                          tail_moved(), head_moved(), wake() of both ends
 *   supervisor/layout/feed_memory.cc         FeedMemory::ring_sleepers(), set_desire()
 *
 * The producing lane is a source of at most RECORDS records that idles when it has none left, until the
 * supervisor wants it to drain; then it closes the ring and ends. The consuming lane ends when it has
 * seen the close. The ring holds ROOM records, so both sides sleep: on an empty ring, on a full one, and
 * on the wish to drain. A separate process kills either lane between any two accesses, DEATHS times.
 *
 * Properties
 *   no lost wake-up    nobody waits for a time-out here: when both lanes are at rest, and so nobody can
 *                      ring, neither sleeps on work (assertion); nor does the model stop (I12)
 *   debts              two lanes never both sleep while either owes the other a wake-up (assertion)
 *   late restart       while a lane is dead, its neighbour sleeps only when it has nothing to do
 *                      (assertion): the supervisor's ring does that, however late the restart is
 *   nothing left over  the consuming lane ends with all that was committed (assertion)
 *   woken              a lane that sleeps and has work is awake later (LTL, weak fairness)
 *
 * Memory order: x86-TSO. Each lane has a store buffer; a relaxed or release store goes through it and
 * reaches memory later, a seq_cst store and an atomic increment wait until it is empty. Loads are not
 * reordered. A death leaves the buffer to drain, as the processor does; whoever has reaped the process
 * sees it empty. Weaker orders than TSO are not modelled.
 *
 * Simplifications, and why they are sound
 *   - A bell is one bit: has it been rung since its lane read it? The lane compares the value with the
 *     one that it read and looks at nothing else; 2^32 rings in between are not modelled.
 *   - A record is a number in the cursors; what it holds is journal.pml's matter.
 *   - "Enough has gathered", "it seems asleep" and "it is late" are free choices after each commit: that
 *     is more behaviour than wake_neighbours() allows.
 *   - A step's list of entries is the values that its cursors get, in the order of commit().
 *   - Lanes with more rings do the same for each of them; one bell for all of them rings more often.
 *
 * Runs
 *   waking  gate  -DRECORDS=2 -DROOM=1 -DDEATHS=1
 *   woken   gate  -DLIVENESS -DRECORDS=2 -DROOM=1 -DDEATHS=0
 *   long    full  -DRECORDS=3 -DROOM=2 -DDEATHS=1
 *   deaths  full  -DRECORDS=2 -DROOM=1 -DDEATHS=2
 *   woken-1 full  -DLIVENESS -DRECORDS=2 -DROOM=1 -DDEATHS=1
 *   unreduced full  -DRECORDS=2 -DROOM=1 -DDEATHS=1 -DNOREDUCE
 *
 * Planted mistakes, the run that finds each, and what is wrong
 *   WAITING_NOT_SEQ_CST     waking  `waiting` is stored without a fence, and may still be in the store buffer
 *   TAIL_NOT_ANNOUNCED      waking  so is the tail: before the look at `waiting` it is not stored once more
 *   HEAD_NOT_ANNOUNCED      waking  so is the head
 *   LOOKS_THEN_ANNOUNCES    waking  the cursors are stored once more after the look at `waiting`
 *   ANNOUNCED_AFTER_LOOK    waking  `waiting` is stored after the last look
 *   BELL_READ_AFTER_LOOK    waking  the bell is read after the last look
 *   LOOKS_AT_COMMIT         waking  the last look is at the neighbour's commit, which runs ahead of its cursors
 *   SLEEPS_ON_DEBTS         waking  a lane goes to sleep and still owes a wake-up
 *   WAKE_WITHOUT_INCREMENT  waking  a wake that does not change the bell
 *   DEATH_RINGS_NOBODY      waking  the supervisor rings nobody after a death
 *   ATTACH_WAKES_NOBODY     waking  a new incarnation wakes nobody
 *   ATTACH_WAKES_FIRST      waking  a new incarnation wakes its neighbours, then carries out
 *   WISH_READ_AFTER_ROUND   waking  the wish that sleep() compares with is read after the round that followed it
 *   NEVER_RUNG              woken   nobody is ever rung, which the LTL property must find by itself
 */
#ifndef RECORDS
#define RECORDS 3
#endif
#ifndef ROOM
#define ROOM 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

#define P 0 /* the producing lane */
#define C 1 /* the consuming lane */
#define other(lane) (1 - (lane))

/* Words of shared memory. */
#define TAIL 0
#define CLOSED 1
#define HEAD 2
#define DESIRED 3
#define WAITING 4 /* + lane */
byte mem[6];

/* What the last committed step of each lane has listed. */
byte listed_tail, listed_head;
bool listed_closed;

/* A bell, as its lane knows it: not read, read, rung since. */
#define UNREAD 0
#define READ 1
#define RUNG 2
byte bell[2];
bool asleep[2]; /* in the kernel, on the bell */
bool owes[2];   /* private to the lane, global for the assertions */
bool over[2];   /* the lane has finished for good */

bool kill[2];   /* the lane dies now */
bool dead[2];   /* and may be reaped */
bool reaped[2]; /* and the supervisor has rung the sleepers */

chan buffer[2] = [3] of { byte, byte }; /* store buffers: address, value */

#define work_of_C (mem[TAIL] != mem[HEAD] || (mem[CLOSED] && !over[C]))
#define work_of_P (!over[P] && (mem[DESIRED] || (mem[TAIL] < RECORDS && mem[TAIL] - mem[HEAD] < ROOM)))
#define at_rest(lane) (asleep[lane] || over[lane] || reaped[lane])

/* A relaxed or release store. */
inline buffered_store(lane, address, value) { buffer[lane]!address, value }
/* A seq_cst store. */
inline store(lane, address, value) {
  atomic { empty(buffer[lane]) -> mem[address] = value }
}

/* The kernel's side of a bell: the increment (an atomic instruction), then the wake. */
inline ring(lane) {
#ifndef MISTAKE_WAKE_WITHOUT_INCREMENT /* a wake without an increment */
  bell[lane] = (bell[lane] == READ -> RUNG : bell[lane]);
#endif
  asleep[lane] = false
}

/* The first half of RingProducer::wake() and RingConsumer::wake(): a seq_cst store of what the lane has
 * stored there before. It waits until the store buffer is empty, and changes nothing. */
inline announce(me) {
  if
#ifdef MISTAKE_TAIL_NOT_ANNOUNCED /* the tail not stored once more */
  :: me == P
#endif
#ifdef MISTAKE_HEAD_NOT_ANNOUNCED /* the head not stored once more */
  :: me == C
#endif
  :: empty(buffer[me])
  fi
}

/* RingProducer::wake() and RingConsumer::wake(). */
inline wake(me) {
#ifndef MISTAKE_LOOKS_THEN_ANNOUNCES /* the cursors once more, but after the look */
  announce(me);
#endif
  if
#ifndef MISTAKE_NEVER_RUNG
  :: mem[WAITING + other(me)] -> ring(other(me))
  :: else
#else
  :: true
#endif
  fi
#ifdef MISTAKE_LOOKS_THEN_ANNOUNCES
  ;
  announce(me)
#endif
}

/* LaneRuntime::settle_debts(). */
inline settle(me) {
  if
  :: owes[me] ->
     wake(me);
     owes[me] = false
  :: else
  fi
}

inline read_bell(me) { bell[me] = READ }

inline announce_sleep(me) {
#ifdef MISTAKE_WAITING_NOT_SEQ_CST /* waiting stored without seq_cst */
  buffered_store(me, WAITING + me, 1)
#else
  store(me, WAITING + me, 1)
#endif
}

/* sleep() of bell.h up to the last look. */
inline prepare_sleep(me) {
#ifndef MISTAKE_BELL_READ_AFTER_LOOK
  read_bell(me);
#endif
#ifndef MISTAKE_ANNOUNCED_AFTER_LOOK
  announce_sleep(me);
#endif
#ifndef MISTAKE_SLEEPS_ON_DEBTS /* the lane sleeps on its debts */
  settle(me)
#endif
}

/* sleep() of bell.h after the last look. */
inline futex_wait(me) {
#ifdef MISTAKE_ANNOUNCED_AFTER_LOOK /* waiting stored after the last look */
  announce_sleep(me);
#endif
#ifdef MISTAKE_BELL_READ_AFTER_LOOK /* the bell read after the last look */
  read_bell(me);
#endif
  atomic {
    if
    :: bell[me] == RUNG
    :: else ->
       asleep[me] = true;
       assert(!(asleep[other(me)] && (owes[me] || owes[other(me)])))
    fi;
    bell[me] = UNREAD
  }
  !asleep[me]
}

inline end_sleep(me) {
  buffered_store(me, WAITING + me, 0);
  bell[me] = UNREAD
}

/* The list of the last committed step, stored (again). */
inline carry_out_P() {
  buffered_store(P, TAIL, listed_tail);
  if
  :: listed_closed -> buffered_store(P, CLOSED, 1)
  :: else
  fi
}
inline carry_out_C() { buffered_store(C, HEAD, listed_head) }

inline attach_wakes(me) {
  buffered_store(me, WAITING + me, 0);
#ifndef MISTAKE_ATTACH_WAKES_NOBODY /* a new incarnation wakes nobody */
  wake(me)
#else
  skip
#endif
}

/* What is private to a lane goes with it; the supervisor starts the next incarnation. */
inline die(me) {
  atomic {
    kill[me] = false;
    asleep[me] = false;
    bell[me] = UNREAD;
    owes[me] = false;
    dead[me] = true
  }
  !dead[me]
}

proctype producer() {
  byte tail, head_seen, seen, wanted;
  bool no_room, closing;
life:
  {
#ifdef MISTAKE_ATTACH_WAKES_FIRST /* a new incarnation wakes its neighbours before it carries out */
    attach_wakes(P);
    carry_out_P();
#else
    carry_out_P();
    attach_wakes(P);
#endif
    d_step {
      tail = listed_tail;
      head_seen = 0;
      closing = listed_closed
    }
    if
    :: closing -> goto finished
    :: else
    fi;

round:
#ifndef MISTAKE_WISH_READ_AFTER_ROUND
    wanted = mem[DESIRED];
#endif
    /* One call of the stage after the other. A source that is told to drain outputs nothing new. */
    do
    :: atomic {
         mem[DESIRED] ->
         closing = true;
         break
       }
    :: else ->
       atomic {
         if
         :: tail < RECORDS && tail - head_seen >= ROOM -> head_seen = mem[HEAD]
         :: else
         fi;
         if
         :: tail == RECORDS -> break
         :: tail < RECORDS && tail - head_seen >= ROOM ->
            no_room = true;
            break
         :: tail < RECORDS && tail - head_seen < ROOM ->
            tail++;
            if
            :: true
            :: break
            fi
         fi
       }
    od;
    if
    :: tail != listed_tail || closing ->
       d_step {
         listed_tail = tail;
         listed_closed = closing
       }
       carry_out_P();
       owes[P] = true;
       if
       :: closing ->
          settle(P);
          goto finished
       :: else ->
          if
          :: settle(P) /* enough has gathered, or it is late */
          :: skip
          fi
       fi;
       goto round
    :: else
    fi;

    /* Nothing to do: no room, or nothing left to output. */
#ifdef MISTAKE_WISH_READ_AFTER_ROUND /* what the lane is wanted to do is read after the round that looked at it */
    wanted = mem[DESIRED];
#endif
    prepare_sleep(P);
    if
    :: no_room && mem[HEAD] > head_seen
    :: else ->
       if
       :: mem[DESIRED] != wanted
       :: else -> futex_wait(P)
       fi
    fi;
    atomic {
      end_sleep(P);
      no_room = false;
      goto round
    };

finished:
    over[P] = true
  } unless {
    kill[P];
    die(P);
    d_step {
      tail = 0;
      head_seen = 0;
      wanted = 0;
      no_room = false;
      closing = false
    }
    goto life
  }
}

proctype consumer() {
  byte head, tail_seen;
  bool closed_seen;
#ifdef MISTAKE_LOOKS_AT_COMMIT
  byte commit_seen;
#endif
life:
  {
    carry_out_C();
    attach_wakes(C);
    d_step {
      head = listed_head;
      tail_seen = head;
      closed_seen = false
    }

round:
    if
    :: head == tail_seen ->
       /* closed first: if it is set, the tail read after it is the last one. */
       closed_seen = mem[CLOSED];
       tail_seen = mem[TAIL]
    :: else
    fi;
#ifdef MISTAKE_LOOKS_AT_COMMIT
    commit_seen = listed_tail + listed_closed;
#endif
    if
    :: head < tail_seen ->
       /* One record, or all that are there. */
       if
       :: head++
       :: head = tail_seen
       fi;
       listed_head = head;
       carry_out_C();
       owes[C] = true;
       if
       :: settle(C)
       :: skip
       fi;
       goto round
    :: head == tail_seen && closed_seen ->
       settle(C);
       goto finished
    :: else
    fi;

    prepare_sleep(C);
    if
#ifdef MISTAKE_LOOKS_AT_COMMIT /* the last look is at the neighbour's commit, which runs ahead of its cursors */
    :: listed_tail + listed_closed != commit_seen
    :: else -> futex_wait(C)
#else
    :: mem[TAIL] > tail_seen
    :: else ->
       if
       :: mem[CLOSED] != closed_seen
       :: else -> futex_wait(C)
       fi
#endif
    fi;
    atomic {
      end_sleep(C);
      goto round
    };

finished:
    assert(listed_closed && head == listed_tail);
    over[C] = true
  } unless {
    kill[C];
    die(C);
    d_step {
      head = 0;
      tail_seen = 0;
      closed_seen = false
#ifdef MISTAKE_LOOKS_AT_COMMIT
      ;
      commit_seen = 0
#endif
    }
    goto life
  }
}

/* Reaps, rings the sleepers, starts again; and once, at any time, wants the source to drain. */
inline reap(lane) {
  dead[lane] && !reaped[lane] && empty(buffer[lane]) ->
#ifndef MISTAKE_DEATH_RINGS_NOBODY /* the supervisor rings nobody after a death */
  if
  :: mem[WAITING + P] -> ring(P)
  :: else
  fi;
  if
  :: mem[WAITING + C] -> ring(C)
  :: else
  fi;
#endif
  reaped[lane] = true
}
inline restart(lane) {
  d_step {
    reaped[lane] ->
    reaped[lane] = false;
    dead[lane] = false
  }
}

active proctype supervisor() {
  bool drained;
  run producer();
  run consumer();
end:
  do
  :: reap(P)
  :: reap(C)
  :: restart(P)
  :: restart(C)
  :: !drained ->
     mem[DESIRED] = 1;
     drained = true;
     ring(P)
#ifndef LIVENESS
  /* Only looks: nobody can ring now, so nobody sleeps on work. */
  :: d_step {
       at_rest(P) && at_rest(C) ->
       assert(!(asleep[C] && work_of_C));
       assert(!(asleep[P] && work_of_P))
     }
#endif
  od
}

active proctype killer() {
  byte deaths;
end:
  do
  :: atomic { deaths < DEATHS && !over[P] && !dead[P] && !kill[P] -> kill[P] = true; deaths++ }
  :: atomic { deaths < DEATHS && !over[C] && !dead[C] && !kill[C] -> kill[C] = true; deaths++ }
  od
}

active proctype memory() {
  byte address, value;
end:
  do
  :: d_step { buffer[P]?address, value -> mem[address] = value; address = 0; value = 0 }
  :: d_step { buffer[C]?address, value -> mem[address] = value; address = 0; value = 0 }
  od
}

#ifdef LIVENESS
ltl woken {
  [] ((asleep[C] && work_of_C -> <> !(asleep[C] && work_of_C)) &&
      (asleep[P] && work_of_P -> <> !(asleep[P] && work_of_P)))
}
#endif
