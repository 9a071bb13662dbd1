/*
 * A lane's step and its journal: killed anywhere, the lane consumes every record exactly once, with
 * exactly its effects.
 *
 * Models
 *   shm/src/journal.cc          Journal::store(), commit(), carry_out(), recover()
 *   shm/src/ring.cc             RingProducer::has_room(), stage(), close(), attach();
 *                               RingConsumer::peek(), ended(), stage(), attach()
 *   workers/runtime/lane.cc     LaneRuntime::attach(), commit(), finish()
 *   workers/runtime/worker.cc   Worker::take_lock() (with proof of death, at most one incarnation)
 *
 *   upstream --in--> lane --a--> reader of a
 *                      +----b--> reader of b
 *
 * The lane keeps one record in a pool of two places, one of them spare. A step takes a record n, writes it
 * into the spare place, puts the record that leaves the pool on ring a and the number of records taken on
 * ring b; its journal lists the two tails, which place is which, the count, and the head. The last step
 * outputs what is left and closes both rings, in one commit. The rings hold ROOM records, so the upstream
 * lane overwrites what the head has given away, and the lane what its readers have read.
 *
 * A separate process kills the lane between any two accesses, in its recovery as well, DEATHS times; the
 * next incarnation comes at any time after.
 *
 * Properties (assertions; a lane that stops is an invalid end state)
 *   I1  a record is written only where the committed state refers to nothing
 *   I2  commit grows by one, stored by the one live incarnation
 *   I3  the area of the last committed step is not written
 *   I4  no cursor decreases; head <= tail <= head + ROOM
 *   I5  an entry names one of this lane's own words
 *   I6  recovery makes every listed word what the committed step says, however much was stored before,
 *       and however far the neighbours have run on meanwhile
 *   I7  a step writes no byte that the state before it refers to
 *   exactly once  ring a carries 0, 1 ... RECORDS and ring b 1 ... RECORDS, to the close
 *
 * Memory order: a release orders what was stored before it, an acquire what is loaded after it, so here
 * each process acts in program order. An order that is missing is modelled by exchanging the two accesses
 * (RECORDS_AFTER_TAILS, COUNT_AFTER_COMMIT, HEAD_BEFORE_READ below). A death sees its own stores in program
 * order on every processor.
 *
 * Simplifications, and why they are sound
 *   - The upstream lane and the readers do not die: they write words that this lane only reads, and what
 *     their own deaths do to them is what this lane's does to it.
 *   - One record a step. A step of more lists the same words with later values.
 *   - A record is its number, of one size; pads and wrapping at the end of the ring are ring_test.cc's.
 *   - Overflow is BLOCK. KEEP_NEWEST (hold and discard) is not modelled.
 *
 * Runs
 *   one-death   gate  -DRECORDS=3 -DDEATHS=1
 *   two-deaths  gate  -DRECORDS=2 -DROOM=1 -DDEATHS=2
 *   long        full  -DRECORDS=3 -DDEATHS=2
 *   longer      full  -DRECORDS=4 -DDEATHS=2
 *   unreduced   full  -DRECORDS=2 -DROOM=1 -DDEATHS=1 -DNOREDUCE
 *
 * Planted mistakes, the run that finds each, and what is wrong
 *   COPY_ENTRY             one-death   an entry copies: after the commit its source may be overwritten
 *   ONE_AREA               one-death   both steps write one area
 *   RECORDS_AFTER_TAILS    one-death   records are written after the tails that publish them
 *   HEAD_BEFORE_COMMIT     one-death   the head is stored before the step is committed
 *   WRITES_OVER_STATE      one-death   the newcomer is written over what the committed state refers to
 *   NO_RECOVERY            one-death   a new incarnation carries nothing out again
 *   RELATIVE_ENTRY         one-death   an entry says by how much a word grows, not what it becomes
 *   COUNT_AFTER_COMMIT     one-death   the number of entries is stored after the commit
 *   WORDS_BEFORE_COMMIT    one-death   the words are stored before the commit
 *   CLOSED_BEFORE_TAIL     one-death   the close is listed before the tail that goes with it
 *   RESTART_WITHOUT_PROOF  one-death   a new incarnation is started on a hint
 *   LOADS_BEFORE_RECOVERY  one-death   private copies are loaded before the words are carried out
 *   HEAD_BEFORE_READ       one-death   a reader gives a record back before it has read it
 */
#ifndef RECORDS
#define RECORDS 3
#endif
#ifndef ROOM
#define ROOM 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif

/* This lane's words: those that a journal may name. */
#define A_TAIL 0
#define B_TAIL 1
#define A_CLOSED 2
#define B_CLOSED 3
#define LIVE 4 /* the place that holds the pool's record */
#define COUNT 5
#define IN_HEAD 6
#define WORDS 7
#define COPY 7 /* MISTAKE_COPY_ENTRY */
byte word[WORDS];
byte place[2];

/* The lane's page and its two areas of up to AREA entries. */
#define AREA 6
byte commit, entries[2];
byte where[12], value[12];

/* The neighbours' words, and the records. */
byte in_tail, a_head, b_head;
bool in_closed;
byte in_data[ROOM], a_data[ROOM], b_data[ROOM];

/* What the committed state is, for assertions alone. */
byte after[WORDS];

byte incarnation;  /* the live one */
bool kill, dead, finished;

/* ---- the lane ---- */

inline set_aside(w, v) {
  where[area * AREA + count] = w;
  value[area * AREA + count] = v;
  count++
}

/* Journal::store(): one entry more in the area of the step under way. */
inline list(w, v) {
  d_step {
    assert(area != commit % 2); /* I3 */
    assert(w < WORDS);          /* I5 */
    set_aside(w, v)
  }
}

inline carry_out_entry() {
  d_step {
#ifdef MISTAKE_COPY_ENTRY
    if
    :: where[from * AREA + at] == COPY ->
       place[value[from * AREA + at] / ROOM] = in_data[value[from * AREA + at] % ROOM]
    :: else ->
#endif
#ifdef MISTAKE_RELATIVE_ENTRY /* an entry that says by how much, not what */
    if
    :: where[from * AREA + at] == COUNT -> word[COUNT] = word[COUNT] + 1
    :: else ->
#endif
    assert(value[from * AREA + at] >= word[where[from * AREA + at]] || where[from * AREA + at] == LIVE); /* I4 */
    word[where[from * AREA + at]] = value[from * AREA + at];
#if defined(MISTAKE_COPY_ENTRY) || defined(MISTAKE_RELATIVE_ENTRY)
    fi;
#endif
    at++
  }
}

/* Journal::carry_out() */
inline carry_out(last) {
#ifdef MISTAKE_ONE_AREA /* both steps use one area */
  from = 0;
#else
  from = (last) % 2;
#endif
  do
  :: at < entries[from] -> carry_out_entry()
  :: else -> break
  od;
  at = 0
}

/* Journal::commit() */
inline commit_step() {
#ifndef MISTAKE_COUNT_AFTER_COMMIT
  d_step {
    assert(area != commit % 2); /* I3 */
    entries[area] = count
  };
#endif
#ifdef MISTAKE_WORDS_BEFORE_COMMIT /* the words are stored before the commit */
  at = 0;
  do
  :: at < count -> from = area; carry_out_entry()
  :: else -> break
  od;
  at = 0;
#endif
  d_step {
    assert(me == incarnation && commit == s); /* I2 */
    commit = s + 1;
    after[A_TAIL] = a_tail;
    after[B_TAIL] = b_tail;
    after[A_CLOSED] = closing;
    after[B_CLOSED] = closing;
    after[LIVE] = live;
    after[COUNT] = taken;
    after[IN_HEAD] = head
  };
#ifdef MISTAKE_COUNT_AFTER_COMMIT /* the number of entries stored after the commit */
  entries[area] = count;
#endif
  carry_out(commit);
  d_step {
    s = commit;
    area = (s + 1) % 2;
    count = 0
  }
}

inline check_words() {
  d_step {
    at = 0;
    do
    :: at < WORDS ->
       assert(word[at] == after[at]); /* I6 */
       at++
    :: else -> break
    od;
    at = 0
  }
}

inline load_words() {
  d_step {
    a_tail = word[A_TAIL];
    b_tail = word[B_TAIL];
    live = word[LIVE];
    taken = word[COUNT];
    head = word[IN_HEAD];
    closing = word[A_CLOSED]
  }
}

/* Writes into a ring beyond its tail. */
inline write_a(record) {
  d_step {
    assert(a_tail >= after[A_TAIL] && a_tail - a_head < ROOM); /* I1, I7 */
    a_data[a_tail % ROOM] = record
  }
}
inline write_b(record) {
  d_step {
    assert(b_tail >= after[B_TAIL] && b_tail - b_head < ROOM); /* I1, I7 */
    b_data[b_tail % ROOM] = record
  }
}

proctype lane(byte me) {
  byte s, area, count, at, from;                /* the journal's */
  byte a_tail, b_tail, live, taken, head, held; /* private copies */
  bool closing;
  {
    /* LaneRuntime::attach(): Journal::recover(), then the private copies. */
    s = commit;
#ifdef MISTAKE_LOADS_BEFORE_RECOVERY /* the words are loaded before they are carried out */
    load_words();
#endif
#ifndef MISTAKE_NO_RECOVERY /* nothing is carried out again */
    carry_out(s);
    check_words();
#endif
#ifndef MISTAKE_LOADS_BEFORE_RECOVERY
    load_words();
#endif
    area = (s + 1) % 2;
#ifdef MISTAKE_ONE_AREA
    area = 0;
#endif

    do
    :: closing -> break
    :: atomic {
         !closing && head < in_tail && a_tail - a_head < ROOM && b_tail - b_head < ROOM
       };
       /* The step: S1 */
       held = in_data[head % ROOM];
#ifdef MISTAKE_HEAD_BEFORE_COMMIT /* the head is stored before the step is committed */
       word[IN_HEAD] = head + 1;
#endif
#ifndef MISTAKE_RECORDS_AFTER_TAILS
       write_a(place[live]);
       write_b(taken + 1);
#endif
#ifdef MISTAKE_WRITES_OVER_STATE /* the newcomer is written over what the committed state refers to */
       place[live] = held;
#elif !defined(MISTAKE_COPY_ENTRY)
       place[1 - live] = held;
#endif
       /* S2: what the stage lists, then the outputs, then the inputs */
#ifndef MISTAKE_WRITES_OVER_STATE
       list(LIVE, 1 - live);
#endif
#ifdef MISTAKE_COPY_ENTRY /* the record is copied after the commit */
       set_aside(COPY, (1 - live) * ROOM + head % ROOM);
#endif
       list(COUNT, taken + 1);
       list(A_TAIL, a_tail + 1);
       list(B_TAIL, b_tail + 1);
       list(IN_HEAD, head + 1);
       d_step {
#ifndef MISTAKE_WRITES_OVER_STATE
         live = 1 - live;
#endif
         taken++;
         head++;
         a_tail++;
         b_tail++
       };
       commit_step(); /* S3, S4 */
#ifdef MISTAKE_RECORDS_AFTER_TAILS /* the records are written after the tails */
       a_data[(a_tail - 1) % ROOM] = place[1 - live];
       b_data[(b_tail - 1) % ROOM] = taken
#endif
       held = 0
    :: atomic {
         !closing && in_closed && head == in_tail && a_tail - a_head < ROOM
       };
       write_a(place[live]);
#ifdef MISTAKE_CLOSED_BEFORE_TAIL /* the close is listed before the tail that goes with it */
       list(A_CLOSED, 1);
       list(B_CLOSED, 1);
       list(A_TAIL, a_tail + 1);
#else
       list(A_TAIL, a_tail + 1);
       list(A_CLOSED, 1);
       list(B_CLOSED, 1);
#endif
       d_step {
         a_tail++;
         closing = true
       };
       commit_step()
    od;
    finished = true
  } unless {
    kill;
    d_step {
      kill = false;
      dead = true
    }
  }
}

/* ---- its neighbours ---- */

active proctype upstream() {
  byte tail;
  do
  :: tail < RECORDS ->
     tail - word[IN_HEAD] < ROOM;
     d_step {
       assert(tail - after[IN_HEAD] < ROOM); /* I1 */
       in_data[tail % ROOM] = tail + 1
     };
     tail++;
     in_tail = tail
  :: else -> break
  od;
  in_closed = true
}

/* closed first: if it is set, the tail read after it is the last one. */
active proctype reader_of_a() {
  byte head, tail;
  bool closed;
  do
  :: closed = word[A_CLOSED];
     tail = word[A_TAIL];
     assert(head <= tail && tail - head <= ROOM); /* I4 */
     do
     :: head < tail ->
#ifdef MISTAKE_HEAD_BEFORE_READ /* the record is given back before it is read */
        a_head = head + 1;
        assert(a_data[head % ROOM] == head);
        head++
#else
        assert(a_data[head % ROOM] == head);
        head++;
        a_head = head
#endif
     :: else -> break
     od;
     if
     :: closed -> break
     :: else -> word[A_TAIL] > head || word[A_CLOSED]
     fi
  od;
  assert(head == RECORDS + 1)
}

active proctype reader_of_b() {
  byte head, tail;
  bool closed;
  do
  :: closed = word[B_CLOSED];
     tail = word[B_TAIL];
     assert(head <= tail && tail - head <= ROOM); /* I4 */
     do
     :: head < tail ->
        assert(b_data[head % ROOM] == head + 1);
        head++;
        b_head = head
     :: else -> break
     od;
     if
     :: closed -> break
     :: else -> word[B_TAIL] > head || word[B_CLOSED]
     fi
  od;
  assert(head == RECORDS)
}

/* Starts the next incarnation, with proof of the death of the last one. */
active proctype supervisor() {
  incarnation = 1;
  run lane(1);
end:
  do
  :: atomic {
       dead ->
       dead = false;
       incarnation++;
       run lane(incarnation)
     }
#ifdef MISTAKE_RESTART_WITHOUT_PROOF /* on a hint alone */
  :: atomic {
       incarnation == 1 ->
       incarnation++;
       run lane(incarnation)
     }
#endif
  :: finished -> break
  od
}

active proctype killer() {
  byte deaths;
end:
  do
  :: atomic { deaths < DEATHS && incarnation > 0 && !kill && !dead && !finished -> kill = true; deaths++ }
  od
}
