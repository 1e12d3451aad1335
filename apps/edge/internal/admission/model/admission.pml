/* A model of admission: the place of a run at the edge, its outcome, and its execution at the node, through every
 * interleaving of grant, send, answer, cancel, lost links, return under a new generation and adoption.
 *
 * Promela, checked by spin (`make model`). It follows protocol.md §2.C, §2.D and §2.F in their order of steps, and leaves
 * out what doesn't bear on them: frames, windows, timers (a timer is a choice that may always be taken), fairness of the
 * queue. Run 0 is a foreground run, run 1 a background run.
 *
 *   outcome   one terminal a run, never two
 *   once      a run is started at most once, unless the attempt before it certainly started nothing
 *   fenced    nothing starts under a generation whose place isn't held, and what an old generation says frees nothing
 *   gone      nothing starts of which the node was told that nobody wants it
 *   held      what executes at a node whose link is live holds a place
 *   free      when nothing can happen any more, every run has an outcome, no place is held, and nothing executes
 *
 * Each BUG_… takes one rule away; the check must fail then, or the model would hold nothing.
 */

#define RUNS 2
#define LAST 3     /* the last generation; the first is 1 */
#define CAPACITY 1
#define RETRIES 1
#define BACKGROUND(r) ((r) == 1)
#define AT(r, g) ((r) * (LAST + 1) + (g))
#define LIVE(g) (up && gen == (g))

mtype = { waiting, granted, sent, detached, over, rejected, terminal };

/* The edge. */
mtype state[RUNS] = waiting;
byte place[RUNS];                 /* generation of the grant or the adoption */
byte outcomes[RUNS];
byte retried[RUNS];
bool cancelWanted[RUNS];          /* a cancelled run whose node must be told once it is back */
bool holds[RUNS * (LAST + 1)];    /* the holder sets */
byte gen = 1;
bool up = true;

/* The wire. Each generation has its own; what is left in an old one is never read by the other side. */
chan opens[LAST + 1] = [RUNS] of { byte };
chan cancels[LAST + 1] = [4] of { byte };
chan ends[LAST + 1] = [4] of { byte };
chan answers[RUNS * (LAST + 1)] = [2] of { mtype };

/* The node. */
byte ngen = 1;
bool nup = true;
bool running[RUNS];
bool cancelling[RUNS];
byte runsAt[RUNS];                /* generation of the open */
byte starts[RUNS];
bool tomb[RUNS];
bool told[RUNS];                  /* a cancel of it has come */
bool unreported[RUNS];            /* a background run whose end isn't acknowledged */

#define HELD(g) (holds[AT(0, g)] + holds[AT(1, g)])
#define ALLHELD (HELD(1) + HELD(2) + HELD(3))
#define RUNNING (running[0] + running[1])

inline decide(r) {
	assert(outcomes[r] == 0);
	outcomes[r]++;
	state[r] = over
}

/* The outcome is a compare-and-swap: whoever comes second changes nothing. */
inline offerOutcome(r) {
	if
	:: state[r] != over -> decide(r)
	:: else
	fi
}

inline tellCancel(r, g) {
	if
	:: LIVE(g) -> cancels[g]!r
	:: else
	fi
}

proctype Driver(byte r) {
	do
	:: atomic { state[r] == waiting && up && HELD(gen) < CAPACITY ->
		place[r] = gen; holds[AT(r, gen)] = true; state[r] = granted }
	:: atomic { state[r] == waiting -> decide(r) }                       /* the caller leaves, or waited long enough */

	:: atomic { state[r] == granted && LIVE(place[r]) -> opens[place[r]]!r; state[r] = sent }
#ifdef BUG_SEND_WITHOUT_FENCE
	:: atomic { state[r] == granted && up && !LIVE(place[r]) -> opens[gen]!r; state[r] = sent }
#endif
	:: atomic { state[r] == granted && !LIVE(place[r]) -> state[r] = waiting }   /* the fence has freed the place */
	:: atomic { state[r] == granted -> holds[AT(r, place[r])] = false; decide(r) }

	:: atomic { state[r] == sent && answers[AT(r, place[r])]?[rejected] && LIVE(place[r]) ->
		answers[AT(r, place[r])]?rejected;
		holds[AT(r, place[r])] = false;
		if
		:: retried[r] < RETRIES -> retried[r]++; state[r] = waiting
		:: else -> decide(r)
		fi }
	:: atomic { state[r] == sent && answers[AT(r, place[r])]?[terminal] && LIVE(place[r]) ->
		answers[AT(r, place[r])]?terminal; decide(r) }                   /* the place waits for its end */
	:: atomic { state[r] == sent -> tellCancel(r, place[r]); decide(r) }     /* the caller leaves, or somebody cancels */
	:: atomic { state[r] == sent && !LIVE(place[r]) ->
		if
#ifdef BUG_RETRY_AFTER_SENT
		:: !BACKGROUND(r) && retried[r] < RETRIES -> retried[r]++; state[r] = waiting
#endif
		:: BACKGROUND(r) -> state[r] = detached
		:: else -> decide(r)                                             /* node_lost */
		fi }

	:: atomic { state[r] == detached && LIVE(place[r]) -> state[r] = sent }      /* adopted by a later connection */
	:: atomic { state[r] == detached -> cancelWanted[r] = true; decide(r) }      /* cancelled, or detached for too long */

	/* The refusal of an open that a cancel has overtaken: nothing else frees its place. */
#ifndef BUG_LATE_REFUSAL_IGNORED
	:: atomic { state[r] == over && answers[AT(r, place[r])]?[rejected] && LIVE(place[r]) ->
		answers[AT(r, place[r])]?rejected; holds[AT(r, place[r])] = false }
#endif
	od
}

/* The reader of the control stream of the current connection. */
proctype Control() {
	byte r;
	do
	:: atomic { up && ends[gen]?[_] ->
		ends[gen]?r;
		holds[AT(r, gen)] = false;
		unreported[r] = false;                                               /* the acknowledgement */
		if
		:: BACKGROUND(r) && place[r] == gen && runsAt[r] != gen -> offerOutcome(r)  /* no stream tells it */
		:: BACKGROUND(r) && state[r] == detached -> offerOutcome(r)
		:: BACKGROUND(r) && state[r] != detached && !(place[r] == gen && runsAt[r] != gen)  /* its stream does */
		:: !BACKGROUND(r)
		fi;
		r = 0 }
	od
}

/* What may happen to links: the edge fences (silence, takeover, an operator), the node loses its own side first, the
 * node dials and says what it still runs. */
proctype Link() {
	byte r;
	do
	:: atomic { up && gen < LAST ->
		up = false;
#ifndef BUG_FENCE_KEEPS_PLACES
		holds[AT(0, gen)] = false;
		holds[AT(1, gen)] = false
#endif
		}
	:: atomic { nup && gen < LAST -> nup = false;
		for (r : 0 .. RUNS - 1) { if :: running[r] && !BACKGROUND(r) -> cancelling[r] = true :: else fi }
		r = 0 }
	:: atomic { nup && !LIVE(ngen) -> nup = false;
		for (r : 0 .. RUNS - 1) { if :: running[r] && !BACKGROUND(r) -> cancelling[r] = true :: else fi }
		r = 0 }
	:: atomic { !nup && gen < LAST ->                                            /* register, Ready */
#ifndef BUG_FENCE_KEEPS_PLACES
		holds[AT(0, gen)] = false;
		holds[AT(1, gen)] = false;
#endif
		gen++; up = true; ngen = gen; nup = true;
		for (r : 0 .. RUNS - 1) {
			if
			:: running[r] ->
#ifndef BUG_NO_ADOPTION
				holds[AT(r, gen)] = true;
#endif
				if
				:: BACKGROUND(r) && (state[r] == detached || state[r] == sent) -> place[r] = gen; state[r] = sent
				:: else
				fi;
				if
				:: cancelWanted[r] || state[r] == over -> cancels[gen]!r
				:: else
				fi
			:: else
			fi;
			if
			:: unreported[r] -> ends[gen]!r;
				if
				:: state[r] == sent -> state[r] = detached                   /* its stream is gone */
				:: else
				fi
			:: !running[r] && !unreported[r] && BACKGROUND(r) && (state[r] == detached || state[r] == sent) ->
				decide(r)                                                        /* the node doesn't know it (any more) */
			:: else
			fi
		}
		r = 0 }
	od
}

proctype Node() {
	byte r;
	do
	:: atomic { nup && opens[ngen]?[_] ->
		opens[ngen]?r;
		if
		:: tomb[r] -> tomb[r] = false; answers[AT(r, ngen)]!rejected
		:: !tomb[r] && RUNNING >= CAPACITY -> answers[AT(r, ngen)]!rejected
		:: !tomb[r] && RUNNING < CAPACITY ->
			starts[r]++;
			assert(starts[r] == 1);                                          /* once */
			assert(holds[AT(r, ngen)] || !LIVE(ngen));                       /* fenced */
			assert(!told[r]);                                                /* gone */
			running[r] = true; runsAt[r] = ngen
		fi;
		r = 0 }
	:: atomic { nup && cancels[ngen]?[_] ->
		cancels[ngen]?r;
		told[r] = true;
		if
		:: running[r] -> cancelling[r] = true
#ifndef BUG_NO_TOMBSTONE
		:: !running[r] && starts[r] == 0 -> tomb[r] = true
		:: !running[r] && starts[r] > 0
#else
		:: !running[r]
#endif
		fi;
		r = 0 }
	/* An execution ends when it was cancelled, or by itself. First the place, then its report, then the terminal. */
	:: atomic { running[0] -> running[0] = false; cancelling[0] = false;
		if
		:: nup -> ends[ngen]!0; if :: runsAt[0] == ngen -> answers[AT(0, ngen)]!terminal :: else fi
		:: else
		fi }
	:: atomic { running[1] -> running[1] = false; cancelling[1] = false;
		unreported[1] = true;                                                /* until it is acknowledged */
		if
		:: nup -> ends[ngen]!1; if :: runsAt[1] == ngen -> answers[AT(1, ngen)]!terminal :: else fi
		:: else
		fi }
	od
}

/* When nothing else can happen. A link that stays down is an operator's affair: only a live one promises. */
proctype Quiet() {
	timeout;
	assert(!(up && nup) || ALLHELD == 0);                                        /* free */
	assert(!(up && nup) || (outcomes[0] == 1 && outcomes[1] == 1));              /* outcome */
	assert(RUNNING == 0)
}

#define HOMELESS(r) (nup && LIVE(ngen) && running[r] && !holds[AT(r, gen)])

proctype Watch() {
	atomic { HOMELESS(0) || HOMELESS(1) -> assert(false) }                        /* held */
}

init {
	atomic {
		run Driver(0); run Driver(1); run Control(); run Link(); run Node(); run Quiet(); run Watch()
	}
}
