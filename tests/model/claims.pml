/*
 * The final feed: slots, descriptors and claim words, with members that die, groups that join and leave,
 * and producing lanes that reuse what everybody is done with.
 *
 * Models
 *   shm/include/ringfeed/shm/claim.h         claim_take(), claim_finish(), claim_recover(), claim_close()
 *   shm/src/feed_producer.cc                 FeedProducer::open(), publish(), attend_groups(),
 *                                            finished_by_all(), respects(), find_slot()
 *   pyclient/src/take.cc, membership.cc      look_at(), look(), took(), check_member(), rf_release()
 *   supervisor/control/consumer_groups.cc    ConsumerGroups::make(), try_admit(), clear_words(), leave(),
 *                                            advance()
 *   workers/runtime/lane.cc                  LaneRuntime::attach() (of a lane with a feed)
 *
 * LANES producing lanes write BATCHES batches into SLOTS slots each, with DESCRIPTORS descriptors in all.
 * Group A is there from the start, with MEMBERS_A members. Group B is there from the start as well, or
 * (-DADMISSION) joins, leaves when its member does, and joins again on the same page, EPOCHS times. A
 * separate process kills members between any two accesses, DEATHS times in all, and lanes, LANE_DEATHS
 * times; a member that has died comes back into its group, or leaves it.
 *
 * Settings: -DAT_MOST_ONCE (instead of redeliver), -DSKIP_B (policy skip for group B; block otherwise),
 * -DNEWEST (a group that joins starts at the newest batch; at the oldest held otherwise), -DUNEVEN (lane 0
 * may end at any batch, and lane 1 goes on).
 *
 * Properties (assertions; whoever stops is an invalid end state)
 *   I4   retire, desc.seq, word.seq do not decrease
 *   I8   the claim of a live member is never taken from it
 *   I9   at most one change to DONE or SKIPPED for each group and batch
 *   I10  a slot or descriptor is written only when its batch is finished for every group that is entitled
 *        to it, and never while a live member holds it
 *   I11  tries(s) is the number of earlier deliveries of s; with at most once there is one delivery
 *   I13  start >= from of every lane: nothing from start on has been given up before
 *   nothing lost  to the end, each batch from start on is DONE once (block, redeliver), or DONE or SKIPPED
 *
 * Memory order: a claim word changes by compare-and-swap alone, and each value that is published by a
 * release is read by an acquire before anything is done about it, so here each process acts in program
 * order. An order that is missing is modelled by exchanging the two accesses (RETIRE_AFTER_FIRST_BYTE,
 * ANSWER_BEFORE_FROM and PUBLISHED_BEFORE_WRITTEN below).
 *
 * Simplifications, and why they are sound
 *   - Nobody busy-waits: a process goes on when it would find something to do, and then looks again,
 *     access by access. That everybody is woken is the matter of wakeup_feed.pml.
 *   - A member takes any open, published batch, a lane any free slot; in the code the lowest and the
 *     oldest. Ranked groups take some of them only.
 *   - The load of a word and the compare-and-swap of claim_finish(), claim_recover() and claim_close() are
 *     one step: a word that changed in between makes the exchange fail, which is to come later and to
 *     find nothing to do. In claim_take() they are two.
 *   - A committed step of a lane is carried out again by its next incarnation (journal.pml).
 *   - The reads of a batch are one look at the slot after the claim; that nobody writes it until the
 *     member is through is asserted where slots are written.
 *   - Policy detach is a lane that sets DRAINING, as the supervisor does here at any time.
 *   - The sleeper's look (FeedProducer::has_room()) takes nothing; the groups that it attends to are
 *     attended to between rounds here, and when it waits for a slot.
 *
 * Runs
 *   shared  gate  -DBATCHES=3 -DSLOTS=1
 *   once    gate  -DBATCHES=3 -DSLOTS=1 -DAT_MOST_ONCE
 *   skip    gate  -DBATCHES=2 -DSLOTS=1 -DSKIP_B
 *   join    gate  -DADMISSION -DMEMBERS_A=1 -DBATCHES=2 -DSLOTS=1 -DDESCRIPTORS=1
 *   lanes   gate  -DLANES=2 -DMEMBERS_A=1 -DBATCHES=4 -DSLOTS=1 -DDEATHS=0
 *   uneven  gate  -DLANES=2 -DMEMBERS_A=1 -DBATCHES=4 -DSLOTS=1 -DDEATHS=0 -DUNEVEN
 *   killed  gate  -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=1 -DLANE_DEATHS=1
 *   yield   mistakes  -DBATCHES=3 -DSLOTS=1 -DSKIP_B
 *   reuse   mistakes  -DADMISSION -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=1
 *   reborn  mistakes  -DADMISSION -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=1 -DLANE_DEATHS=1
 *   full-slots   full  -DBATCHES=3 -DSLOTS=2
 *   full-once    full  -DBATCHES=3 -DSLOTS=2 -DAT_MOST_ONCE
 *   full-skip    full  -DBATCHES=3 -DSLOTS=1 -DSKIP_B
 *   full-join    full  -DADMISSION -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=1
 *   full-oldest  full  -DADMISSION -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=2 -DEPOCHS=1
 *   full-newest  full  -DADMISSION -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=1 -DNEWEST
 *   full-reborn  full  -DADMISSION -DMEMBERS_A=1 -DBATCHES=3 -DSLOTS=1 -DLANE_DEATHS=1 -DEPOCHS=1
 *
 * Planted mistakes, the run that finds each, and what is wrong
 *   GROUP_FORGOTTEN          shared  a lane reuses what one of two groups has finished
 *   DEATH_WITHOUT_PROOF      shared  a live member is taken for dead
 *   CLAIM_BY_STORE           shared  a claim is a load and a store
 *   PLACE_FREED_FIRST        shared  a dead member's place is given away before its claims have gone back
 *   PUBLISHED_BEFORE_WRITTEN shared  the descriptor is stored before the slot is written
 *   DESCRIPTOR_NOT_READ      shared  a batch is taken without a look at its descriptor
 *   OPEN_IS_FINISHED         yield   what nobody has taken counts as finished, and stays open
 *   CLOSED_BY_STORE          yield   a word is closed by a store, whatever it has become meanwhile
 *   SLOW_IS_ENDED            uneven  the hint passes numbers of a lane that is only slow
 *   CLEARED_BEFORE_ANSWERS   reuse   a joining group's words are cleared before the lanes have answered
 *   ANSWER_BEFORE_FROM       reuse   the answer's epoch is stored before what it says
 *   ANSWER_NOT_RESPECTED     reuse   a lane does not respect a joining group that it has answered
 *   OLD_WORDS_BELIEVED       reuse   while a group joins, the words of the page's last group are believed
 *   START_WITHOUT_ANSWERS    reuse   the first batch is what was held at the request, whatever the answers
 *   PAGE_FREED_EARLY         reuse   a page is free while a member lives or holds a batch
 *   HINT_NOT_CLEARED         reuse   the hint of the page's last group stays
 *   RETIRE_AFTER_FIRST_BYTE  reborn  `retire` is stored after the first byte of the slot is written
 *   FINISHED_LANE_ATTENDS    reborn  a finished lane that is started again attends to groups
 */
#ifndef BATCHES
#define BATCHES 4
#endif
#ifndef LANES
#define LANES 1
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef DESCRIPTORS
#define DESCRIPTORS 2
#endif
#ifndef MEMBERS_A
#define MEMBERS_A 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef LANE_DEATHS
#define LANE_DEATHS 0
#endif
#ifndef EPOCHS
#define EPOCHS 2
#endif

#ifdef AT_MOST_ONCE
#define AT_MOST true
#else
#define AT_MOST false
#endif
#ifdef SKIP_B
#define SKIPS true
#else
#define SKIPS false
#endif

#define A 0
#define B 1

/* Group states. */
#define UNUSED 0
#define JOINING 1
#define ACTIVE 2
#define DRAINING 3

/* Claim words: seq, member, tries, state. */
#define NONE 0
#define TAKEN 1
#define DONE 2
#define AVAIL 3
#define SKIPPED 4
#define claim(s, m, t, st) ((s) * 128 + (m) * 32 + (t) * 8 + (st))
#define seq_of(w) ((w) / 128)
#define member_of(w) (((w) / 32) % 4)
#define tries_of(w) (((w) / 8) % 4)
#define state_of(w) ((w) % 8)
#define claim_open(w, s) (seq_of(w) < (s) || (seq_of(w) == (s) && state_of(w) == AVAIL))
#define claim_finished(w, s) \
  (seq_of(w) > (s) || (seq_of(w) == (s) && (state_of(w) == DONE || state_of(w) == SKIPPED)))

#define place(s) ((s) % DESCRIPTORS)
#define word_of(g, s) word[(g) * DESCRIPTORS + place(s)]
#define lane_of(s) (((s)-1) % LANES)

short word[2 * DESCRIPTORS];
byte state[2], epoch[2], start[2], low[2];

byte desc_seq[DESCRIPTORS], desc_slot[DESCRIPTORS];
#define TORN 255
byte slot[SLOTS * LANES];
byte newest[LANES];

/* Lane pages: answers to group B (group A is declared before any lane starts), and arena words. */
byte retire[LANES], answer_epoch[LANES], answer_from[LANES];
byte open_slot[LANES];
bool lane_over[LANES];

/* The last committed step of each lane, if it published. */
byte listed[LANES], listed_slot[LANES];

/* Members 0 and 1 are those of group A, 2 is that of group B. */
#define group_of(m) ((m) / 2)
#define FREE 0
#define LIVE 1
#define LEAVES 2 /* at its own wish; it acts no more */
#define DEAD 3   /* proved */
byte member[3];
bool kill_member[3], kill_lane[LANES];

/* For assertions alone. */
byte closed[2 * (BATCHES + 1)];    /* DONE or SKIPPED, once it is either */
byte delivered[2 * (BATCHES + 1)]; /* claims */
byte holds[3];                     /* 1 + slot that a live member reads */
byte deaths;

#define count_of(counts, g, s) counts[(g) * (BATCHES + 1) + (s)]
#define entitled(g, s) ((state[g] == ACTIVE || state[g] == DRAINING) && (s) >= start[g])

inline note_close(g, s, how) {
  assert(count_of(closed, g, s) == 0); /* I9 */
  count_of(closed, g, s) = how
}

/* ---- members ---- */

#ifdef MISTAKE_DESCRIPTOR_NOT_READ /* a batch is taken without a look at its descriptor */
#define published(s) true
#else
#define published(s) (desc_seq[place(s)] == (s))
#endif
#define can_take(g, s) (state[g] == ACTIVE && (s) >= start[g] && (s) >= low[g] && claim_open(word_of(g, s), s) && published(s))
/* A lane that has ended never publishes this number. */
#define never(s) (lane_over[lane_of(s)] && (s) > newest[lane_of(s)])
#ifdef MISTAKE_SLOW_IS_ENDED /* the hint passes what a lane has not published yet */
#define passed(s) ((s) > newest[lane_of(s)])
#else
#define passed(s) never(s)
#endif
#define over_for(g, s) (BATCHES < (s) || (s) < start[g] || claim_finished(word_of(g, s), s) || never(s))
#define all_over_for(g)                                                              \
  (lane_over[0] && lane_over[LANES - 1] && over_for(g, 1) && over_for(g, 2) &&      \
   over_for(g, 3) && over_for(g, 4) && over_for(g, 5) && over_for(g, 6))

/* claim_take() of the word as it was seen, and took(). */
inline claim_seen() {
  if
#ifdef MISTAKE_CLAIM_BY_STORE /* a claim is a load and a store */
  :: true ->
#else
  :: word_of(g, s) == seen ->
#endif
     word_of(g, s) = claim(s, me % 2, (seq_of(seen) == s -> tries_of(seen) : 0), TAKEN);
     assert(count_of(delivered, g, s) == tries_of(word_of(g, s))); /* I11 */
#ifdef AT_MOST_ONCE
     assert(count_of(delivered, g, s) == 0);
#endif
     count_of(delivered, g, s)++;
     assert(desc_seq[place(s)] == s && slot[desc_slot[place(s)]] == s);
     holds[me] = desc_slot[place(s)] + 1
  :: else
  fi;
  seen = 0
}

/* look(), after the load of the word: the descriptor, then the claim. */
inline take() {
  if
  :: holds[me] == 0 ->
     if
     :: published(s) -> atomic { claim_seen() }
     :: else -> seen = 0
     fi
  :: else
  fi
}

#define top (newest[0] > newest[LANES - 1] -> newest[0] : newest[LANES - 1])

/* raise_low(): the hint goes over what is finished from the first batch on, and over numbers that no lane will
 * use, up to the newest batch. */
inline raise_low() {
  low[g] = (low[g] > start[g] -> low[g] : start[g]);
  do
  :: low[g] <= top && (claim_finished(word_of(g, low[g]), low[g]) || passed(low[g])) -> low[g]++
  :: else -> break
  od
}

/* rf_release() */
inline give_back() {
  atomic {
    if
    :: holds[me] != 0 ->
       assert(word_of(g, s) == claim(s, me % 2, tries_of(word_of(g, s)), TAKEN)); /* I8 */
       word_of(g, s) = claim(s, me % 2, tries_of(word_of(g, s)), DONE);
       note_close(g, s, DONE);
       holds[me] = 0
    :: else
    fi;
#if defined(ADMISSION) || defined(UNEVEN)
    raise_low();
#endif
    s = 0
  }
}


proctype trainer(byte me) {
  byte g, s;
  short seen;
life:
  {
    g = group_of(me);
end:
    member[me] == LIVE;
    do
    :: atomic {
         if
         :: can_take(g, 1) -> s = 1
         :: BATCHES > 1 && can_take(g, 2) -> s = 2
         :: BATCHES > 2 && can_take(g, 3) -> s = 3
         :: BATCHES > 3 && can_take(g, 4) -> s = 4
         :: BATCHES > 4 && can_take(g, 5) -> s = 5
         :: BATCHES > 5 && can_take(g, 6) -> s = 6
         fi;
         seen = word_of(g, s);
#ifdef ADMISSION
         /* Nobody else changes group A's words here: its one member claims at once. */
         if
         :: g == A -> claim_seen()
         :: else
         fi
#endif
       };
       take();
       give_back()
    :: state[g] == ACTIVE && all_over_for(g) -> goto end_of_feed
#ifdef ADMISSION
    :: state[g] == DRAINING -> break
#endif
    od;
    member[me] = LEAVES;
    goto life;

end_of_feed:
#ifdef ADMISSION
    state[g] != ACTIVE;
    member[me] = LEAVES;
    goto life
#else
    false
#endif
  } unless {
    kill_member[me];
    atomic {
      kill_member[me] = false;
      holds[me] = 0;
      s = 0;
      seen = 0;
      member[me] = DEAD
    };
    goto life
  }
}

/* ---- producing lanes ---- */

/* respects() */
#ifdef MISTAKE_ANSWER_NOT_RESPECTED /* a lane does not respect a group that it has answered */
#define respects(st) (st == ACTIVE || st == DRAINING)
#else
#define respects(st) (st == ACTIVE || st == DRAINING || (st == JOINING && answer_epoch[me] == epoch[B]))
#endif
#ifdef MISTAKE_OLD_WORDS_BELIEVED /* while the group joins, its words are believed */
#define believes_words(st) true
#else
#define believes_words(st) (st != JOINING)
#endif
#define first_batch(st) (st == JOINING -> answer_from[me] : start[B])
#define may_close(st) (st == DRAINING || (st != JOINING && SKIPS))

/* Is batch t over for everyone, or can it be made so? What a lane waits for. */
#define over_for_B(t)                                                                      \
  (!respects(state[B]) || (t) < first_batch(state[B]) ||                                   \
   (believes_words(state[B]) && claim_finished(word_of(B, t), t)) ||                       \
   (may_close(state[B]) && claim_open(word_of(B, t), t)))
#ifdef MISTAKE_GROUP_FORGOTTEN
#define over_for_all(t) ((t) == 0 || claim_finished(word_of(A, t), t))
#else
#define over_for_all(t) ((t) == 0 || (claim_finished(word_of(A, t), t) && over_for_B(t)))
#endif
#define unclosed(t) ((t) > 0 && claim_open(word_of(B, t), t))
#define wanted                                                                \
  ((state[B] == JOINING && answer_epoch[me] != epoch[B]) ||                   \
   (state[B] == DRAINING && (unclosed(newest[me]) || unclosed(older))))

/* The lane's own batch before the newest, if its descriptor still tells of it. */
#define older (LANES < DESCRIPTORS && newest[me] > LANES -> newest[me] - LANES : 0)

/* claim_close() */
inline close_word(t) {
  atomic {
    closed_it = false;
    if
#ifdef MISTAKE_CLOSED_BY_STORE /* a word is closed by a store, whatever it has become since it was looked at */
    :: true ->
#else
    :: claim_open(word_of(B, t), t) ->
#endif
       assert(state[B] != ACTIVE || SKIPS); /* a batch that its group still wants */
       word_of(B, t) = claim(t, 0, (seq_of(word_of(B, t)) == t -> tries_of(word_of(B, t)) : 0), SKIPPED);
       note_close(B, t, SKIPPED);
       closed_it = true
    :: else
    fi
  }
}

#ifdef ADMISSION
/* FeedProducer::attend_groups() */
inline attend_groups() {
  atomic {
    st = state[B];
    if
    :: st == JOINING && answer_epoch[me] != epoch[B]
    :: st == DRAINING
    :: else -> st = UNUSED
    fi
  };
  if
  :: st == JOINING ->
#ifdef MISTAKE_ANSWER_BEFORE_FROM /* the answer is given before what it says */
     answer_epoch[me] = epoch[B];
     answer_from[me] = (retire[me] > 1 -> retire[me] : 1)
#else
     answer_from[me] = (retire[me] > 1 -> retire[me] : 1);
     answer_epoch[me] = epoch[B]
#endif
  :: st == DRAINING ->
     t = newest[me];
     if
     :: unclosed(t) -> close_word(t)
     :: else
     fi;
     t = older;
     if
     :: unclosed(t) -> close_word(t)
     :: else
     fi
  :: else
  fi;
  atomic {
    st = 0;
    t = 0;
    closed_it = false
  }
}
#else
#define attend_groups() skip
#endif

/* FeedProducer::finished_by_all() for group B, insisting. What is finished stays so: group A, which blocks
   and is entitled to everything, needs no second look. */
#if defined(MISTAKE_GROUP_FORGOTTEN) || !(defined(ADMISSION) || defined(SKIP_B))
#define finished_by_B(t) skip
#else
inline finished_by_B(t) {
  if
  :: ok && (t) != 0 ->
     st = state[B];
     if
     :: respects(st) ->
        d_step {
          st = state[B];
          from = first_batch(st)
        };
        if
        :: (t) < from
        :: (t) >= from && believes_words(st) && claim_finished(word_of(B, t), t)
        :: else ->
           if
           :: may_close(st) && claim_open(word_of(B, t), t) ->
#ifdef MISTAKE_OPEN_IS_FINISHED /* what nobody has taken counts as finished, and stays open */
              skip
#else
              close_word(t);
              ok = closed_it
#endif
           :: else -> ok = false
           fi
        fi
     :: else
     fi;
     atomic {
       st = 0;
       from = 0;
       closed_it = false
     }
  :: else
  fi
}
#endif

/* A slot or a descriptor that told of batch t is written now. */
inline check_given_up(t) {
  assert((t) == 0 || count_of(closed, A, t) != 0); /* I10 */
  assert((t) == 0 || !entitled(B, t) || count_of(closed, B, t) != 0)
}
/* What the lane's descriptors say of its slots: the newest batch of each, 0 if none. */
inline look_at_slots() {
  d_step {
    last[0] = 0;
    last[SLOTS - 1] = 0;
    i = me;
    do
    :: i < DESCRIPTORS ->
       if
       :: desc_seq[i] != 0 && desc_seq[i] > last[desc_slot[i] / LANES] -> last[desc_slot[i] / LANES] = desc_seq[i]
       :: else
       fi;
       i = i + LANES
    :: else -> break
    od;
    i = 0
  }
}

/* The publishing step's list, stored (again). Who reads a descriptor reads its number first. */
inline carry_out() {
  if
  :: listed[me] != 0 ->
     d_step {
       desc_slot[place(listed[me])] = listed_slot[me];
       desc_seq[place(listed[me])] = listed[me]
     };
     atomic {
       newest[me] = listed[me];
       open_slot[me] = 0
     }
  :: else
  fi
}

proctype lane(byte me) {
  byte s, t, i, st, from, old, last[SLOTS];
  bool ok, closed_it;
life:
  {
    carry_out();
#ifdef MISTAKE_FINISHED_LANE_ATTENDS /* a lane that is at its end attends to groups when it is started again */
    attend_groups();
#endif
    if
    :: lane_over[me] -> goto finished
    :: else
    fi;

round:
    attend_groups();
    atomic {
      s = (newest[me] == 0 -> me + 1 : newest[me] + LANES);
      if
      :: s > BATCHES -> goto finished
      :: s <= BATCHES && open_slot[me] != 0 -> goto fill
      :: else
      fi;
#ifdef UNEVEN
      if
      :: me == 0 -> goto finished
      :: true
      fi;
#endif
      /* open(): waits until it seems that a slot is free, then looks access by access. */
      look_at_slots();
      old = (s > DESCRIPTORS -> s - DESCRIPTORS : 0);
      ok = true;
      if
      :: over_for_all(old) && over_for_all(last[0]) -> i = 0
      :: over_for_all(old) && over_for_all(last[SLOTS - 1]) -> i = SLOTS - 1
      :: wanted -> ok = false
      fi
    };
    finished_by_B(old);
    finished_by_B(last[i]);
    if
    :: !ok -> goto forget
    :: else
    fi;
    old = (last[i] > old -> last[i] : old);
#ifndef MISTAKE_RETIRE_AFTER_FIRST_BYTE
    retire[me] = (old + 1 > retire[me] -> old + 1 : retire[me]);
#endif
    d_step {
      check_given_up(last[i]);
      assert(holds[0] != i * LANES + me + 1 && holds[1] != i * LANES + me + 1 && holds[2] != i * LANES + me + 1); /* I10 */
      slot[i * LANES + me] = TORN
    };
#ifdef MISTAKE_RETIRE_AFTER_FIRST_BYTE /* retire is stored after the first byte */
    retire[me] = (old + 1 > retire[me] -> old + 1 : retire[me]);
#endif
    d_step {
      listed[me] = 0;
      open_slot[me] = i + 1;
      i = 0;
      last[0] = 0;
      last[SLOTS - 1] = 0
    };

fill:
#ifndef MISTAKE_PUBLISHED_BEFORE_WRITTEN
    slot[(open_slot[me] - 1) * LANES + me] = s;
#endif
    atomic {
      old = (s > DESCRIPTORS -> s - DESCRIPTORS : 0);
      check_given_up(old);
      listed[me] = s;
      listed_slot[me] = (open_slot[me] - 1) * LANES + me
    };
    carry_out();
#ifdef MISTAKE_PUBLISHED_BEFORE_WRITTEN /* published before it is written */
    slot[listed_slot[me]] = s;
#endif

forget:
    atomic {
      s = 0;
      i = 0;
      old = 0;
      ok = false;
      last[0] = 0;
      last[SLOTS - 1] = 0
    };
    goto round;

finished:
    atomic {
      s = 0;
      lane_over[me] = true
    };
end:
    false
  } unless {
    kill_lane[me];
    atomic {
      kill_lane[me] = false;
      s = 0;
      t = 0;
      i = 0;
      st = 0;
      from = 0;
      old = 0;
      ok = false;
      closed_it = false;
      last[0] = 0;
      last[SLOTS - 1] = 0
    };
    goto life
  }
}

/* ---- the supervisor ---- */

/* ConsumerGroups::leave(), at the member's wish or with proof of its death. */
inline leave(m) {
#ifdef MISTAKE_PLACE_FREED_FIRST /* the place is given away before the claims have gone back */
  member[m] = LIVE;
#endif
  i = 0;
  do
  :: i < DESCRIPTORS ->
     /* claim_recover() */
     d_step {
       w = word[group_of(m) * DESCRIPTORS + i];
       if
       :: state_of(w) == TAKEN && member_of(w) == m % 2 ->
#ifdef AT_MOST_ONCE
          word[group_of(m) * DESCRIPTORS + i] = claim(seq_of(w), m % 2, tries_of(w) + 1, SKIPPED);
          note_close(group_of(m), seq_of(w), SKIPPED)
#else
          word[group_of(m) * DESCRIPTORS + i] = claim(seq_of(w), m % 2, tries_of(w) + 1, AVAIL)
#endif
       :: else
       fi;
       w = 0;
       i++
     }
  :: else -> break
  od;
  atomic {
    i = 0;
#ifndef MISTAKE_PLACE_FREED_FIRST
    member[m] = FREE
#endif
  }
}

#define answered(l) (lane_over[l] || answer_epoch[l] == epoch[B])

inline clear_words() {
  d_step {
    i = 0;
    do
    :: i < DESCRIPTORS ->
       word[B * DESCRIPTORS + i] = 0;
       i++
    :: else -> break
    od;
#ifndef MISTAKE_HINT_NOT_CLEARED /* the hint of the page's last group stays */
    low[B] = 0;
#endif
    i = 1;
    do
    :: i <= BATCHES ->
       count_of(closed, B, i) = 0;
       count_of(delivered, B, i) = 0;
       i++
    :: else -> break
    od;
    i = 0
  }
}

#define told(l) (lane_over[l] -> retire[l] : answer_from[l])

/* ConsumerGroups::try_admit(), once every lane has answered this epoch or is finished. */
inline admit() {
  d_step {
    state[B] == JOINING && answered(0) && answered(LANES - 1) ->
    from = 1;
    from = (told(0) > from -> told(0) : from);
    from = (told(LANES - 1) > from -> told(LANES - 1) : from)
  };
#ifndef MISTAKE_CLEARED_BEFORE_ANSWERS /* the words are cleared before the lanes have answered, in make() */
  clear_words();
#endif
#ifdef NEWEST
  d_step {
    from = (newest[0] >= from -> newest[0] + 1 : from);
    from = (newest[LANES - 1] >= from -> newest[LANES - 1] + 1 : from)
  };
#endif
#ifdef MISTAKE_START_WITHOUT_ANSWERS /* the first batch is what was held when the group came, whatever the lanes answer */
  start[B] = held_from;
#else
  start[B] = from;
#endif
  d_step {
    /* I13: nothing from start on has been given up. */
    i = start[B];
    do
    :: i <= BATCHES ->
       assert(i > newest[lane_of(i)] || (desc_seq[place(i)] == i && slot[desc_slot[place(i)]] == i));
       i++
    :: else -> break
    od;
    assert(low[B] <= start[B]); /* the hint leaves out nothing */
    i = 0;
    from = 0;
    state[B] = ACTIVE
  }
}

/* ConsumerGroups::make() and enter() */
inline make() {
  d_step {
    start[B] = 0;
    epoch[B]++
  };
#ifdef MISTAKE_START_WITHOUT_ANSWERS
  held_from = (newest[0] > DESCRIPTORS -> newest[0] - DESCRIPTORS + 1 : 1);
#endif
#ifdef MISTAKE_CLEARED_BEFORE_ANSWERS
  clear_words();
#endif
  state[B] = JOINING;
  member[2] = LIVE
}

#define gone(m) (member[m] == FREE)
#define taken_B(i) (i < DESCRIPTORS && state_of(word[B * DESCRIPTORS + i]) == TAKEN)
#define any_taken_B (taken_B(0) || taken_B(1) || taken_B(2) || taken_B(3))

active proctype supervisor() {
  byte i, from;
  short w;
#ifdef MISTAKE_START_WITHOUT_ANSWERS
  byte held_from;
#endif
  d_step {
    state[A] = ACTIVE;
    start[A] = 1;
    member[0] = LIVE;
    member[1] = (MEMBERS_A > 1 -> LIVE : FREE);
#ifndef ADMISSION
    state[B] = ACTIVE;
    start[B] = 1;
    member[2] = LIVE;
#endif
    i = 0
  };
  run trainer(0);
  run trainer(1);
  run trainer(2);
  run lane(0);
#if LANES > 1
  run lane(1);
#endif
end:
  do
  :: member[0] == DEAD || member[0] == LEAVES -> leave(0)
  :: member[1] == DEAD || member[1] == LEAVES -> leave(1)
  :: member[2] == DEAD || member[2] == LEAVES -> leave(2)
#ifdef MISTAKE_DEATH_WITHOUT_PROOF /* a member is taken for dead without proof */
  :: deaths == 0 && member[0] == LIVE -> deaths++; leave(0)
#endif
  /* The dead come back. */
  :: gone(0) && !all_over_for(A) -> member[0] = LIVE
  :: MEMBERS_A > 1 && gone(1) && !all_over_for(A) -> member[1] = LIVE
  :: gone(2) && state[B] == ACTIVE && !all_over_for(B) -> member[2] = LIVE
#ifdef ADMISSION
  :: state[B] == UNUSED && epoch[B] < EPOCHS -> make()
  :: admit()
  :: state[B] == ACTIVE -> state[B] = DRAINING /* rejoin_ms, or policy detach */
#ifdef MISTAKE_PAGE_FREED_EARLY /* a page is free although a member lives or holds a batch */
  :: state[B] == DRAINING -> state[B] = UNUSED
#else
  :: state[B] == DRAINING && gone(2) && !any_taken_B -> state[B] = UNUSED
#endif
#endif
  /* At the end: nothing is lost. */
  :: d_step {
       all_over_for(A) ->
       i = 1;
       do
       :: i <= BATCHES ->
          assert(never(i) || count_of(closed, A, i) == DONE || (AT_MOST && count_of(closed, A, i) == SKIPPED));
          i++
       :: else -> break
       od;
       i = 0
     }
  :: d_step {
       state[B] == ACTIVE && all_over_for(B) ->
       i = start[B];
       do
       :: i <= BATCHES ->
          assert(never(i) || count_of(closed, B, i) == DONE || ((AT_MOST || SKIPS) && count_of(closed, B, i) == SKIPPED));
          i++
       :: else -> break
       od;
       i = 0
     }
  od
}

active proctype killer() {
  byte lane_deaths;
end:
  do
#ifndef ADMISSION
  :: atomic { deaths < DEATHS && member[0] == LIVE && !kill_member[0] -> kill_member[0] = true; deaths++ }
  :: atomic { deaths < DEATHS && member[1] == LIVE && !kill_member[1] -> kill_member[1] = true; deaths++ }
#endif
  :: atomic { deaths < DEATHS && member[2] == LIVE && !kill_member[2] -> kill_member[2] = true; deaths++ }
  :: atomic { lane_deaths < LANE_DEATHS && !kill_lane[0] -> kill_lane[0] = true; lane_deaths++ }
  :: atomic { LANES > 1 && lane_deaths < LANE_DEATHS && !kill_lane[LANES - 1] -> kill_lane[LANES - 1] = true; lane_deaths++ }
  od
}
