package sim

import (
	"fmt"
	"strings"
	"time"
)

// kind is what a caller asks for.
type kind string

const (
	tunnel     kind = "tunnel"
	run        kind = "run"
	background kind = "background"
)

// mode is how a provider behaves in one execution.
type mode string

// The modes. Those with "at" happen after some pieces of the answer.
const (
	good      mode = "good"
	refused   mode = "refused"   // can't be reached: nothing was sent
	failing   mode = "failing"   // answers with an error: a status of 500, or an error of a run
	forgetful mode = "forgetful" // says nothing and calls it an answer
	silent    mode = "silent"    // takes the request and says nothing
	cut       mode = "cut"       // at: the connection ends
	stalling  mode = "stalling"  // at: nothing more comes
	panicking mode = "panicking" // at: the driver crashes
	stubborn  mode = "stubborn"  // at: deaf to its cancel for a while
)

// job is one caller and the provider's answer to it, all drawn before anything happens.
type job struct {
	id        string
	kind      kind
	edge      int
	at        time.Duration
	model     string // of a tunnel
	adapter   string // of a run
	node      string // of a run that asks for one
	principal string
	request   int // bytes of a tunnel's body

	mode    mode
	connect time.Duration // until the connection is there, of a provider that wants a key
	first   time.Duration // until the answer begins
	pieces  int
	size    int // of a piece
	gap     time.Duration
	after   int           // pieces before the mode shows
	deaf    time.Duration // of a stubborn one
	sized   bool          // the head says how long the body is

	slow     time.Duration // the caller's pause at each piece
	stall    time.Duration // and once in the middle
	leave    time.Duration // after which the caller leaves, 0 = never
	cancel   time.Duration // after which somebody cancels by the API, 0 = nobody
	deadline time.Duration
}

func (j *job) String() string {
	s := fmt.Sprintf("%s to edge%d: model %q adapter %q, %d bytes, provider %s (first %v, %d x %d bytes each %v, after %d)",
		j.kind, j.edge, j.model, j.adapter, j.request, j.mode, j.first, j.pieces, j.size, j.gap, j.after)
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"pauses", j.slow}, {"stalls", j.stall}, {"leaves", j.leave}, {"cancelled", j.cancel}, {"deadline", j.deadline}} {
		if d.d > 0 {
			s += fmt.Sprintf(", %s %v", d.name, d.d)
		}
	}
	return s
}

// prompt reports whether the caller takes at once what it is given.
func (j *job) prompt() bool { return j.slow == 0 && j.stall == 0 }

// plain reports whether nothing but the system can keep the job from its whole answer.
func (j *job) plain() bool {
	return j.mode == good && j.prompt() && j.leave == 0 && j.cancel == 0 && j.deadline == 0
}

// answer is what a whole answer of the provider has: bytes of a tunnel, pieces of a run.
func (j *job) answer() int {
	switch {
	case j.mode == failing && j.kind == tunnel:
		return len(failedBody)
	case j.kind == tunnel:
		return j.pieces * j.size
	}
	return j.pieces
}

const failedBody = `{"error":"the provider failed"}`

func jobName(n int) string { return fmt.Sprintf("job-%02d", n) }

// drawJob draws the job of a number.
func (w *world) drawJob(n int) *job {
	id := jobName(n)
	d := newDice(w.seed, "job", id)
	j := &job{
		id: id, edge: d.IntN(len(w.edges)), at: d.between(time.Second, w.span), principal: pick(d, principals...),
		kind: pick(d, tunnel, tunnel, tunnel, run, run, background), model: pick(d, "any", "any", "pinned", "fast", "other"),
		adapter: pick(d, "a", "a", "a", "b"), sized: d.chance(50),
		first: d.between(time.Millisecond, 2*time.Second), pieces: d.among(0, 12), size: pick(d, 3, 100, 900, 3000, 7000),
		gap: pick(d, d.between(0, 10*time.Millisecond), d.between(0, 400*time.Millisecond), d.between(0, 3*time.Second)),
		mode: pick(d, good, good, good, good, good, good, good, good, good, refused, failing, forgetful, silent, cut, stalling,
			panicking, stubborn),
	}
	j.request = pick(d, 0, 40, 40, 2000, 20_000, 20_000, 300_000)
	if d.chance(4) {
		j.pieces, j.size = d.among(20, 90), 16_000 // beyond what a connection holds
	}
	if more := newDice(w.seed, "long", id); more.chance(3) {
		j.pieces, j.size = more.among(90, 200), 16_000 // and beyond what a window does
	}
	if j.kind != tunnel {
		j.size = min(j.size, 7000)
		j.pieces = min(j.pieces, 30)
	}
	if j.mode == good && j.kind == background && d.chance(50) {
		j.gap = d.between(time.Second, 8*time.Second) // one that a lost link finds at work
	}
	connect := newDice(w.seed, "connect", id)
	j.connect = pick(connect, 0, connect.between(0, 200*time.Millisecond), connect.between(0, 5*time.Second))
	j.after = d.among(0, max(j.pieces-1, 0))
	j.deaf = d.between(time.Second, 25*time.Second)
	w.drawCaller(j, d)
	return j
}

// drawCaller draws how the caller behaves: three of five only read.
func (w *world) drawCaller(j *job, d dice) {
	switch d.IntN(15) {
	case 0:
		j.slow = d.between(time.Millisecond, 2*time.Second)
	case 1:
		j.stall = d.between(5*time.Second, 80*time.Second)
	case 2, 3:
		j.leave = d.between(time.Millisecond, 15*time.Second)
	case 4, 5:
		j.cancel = d.between(time.Millisecond, 15*time.Second)
	case 6:
		j.deadline = d.between(time.Millisecond, 20*time.Second)
	}
}

// fill writes what a job sends or is answered, from that offset.
func fill(p []byte, id string, way uint64, from int) {
	base := hashOf(way, id)
	for i := range p {
		at := from + i
		p[i] = byte(mix(base+uint64(at/8)) >> (8 * (at % 8)))
	}
}

// differs returns the first place where p isn't what it should be, -1 = nowhere.
func differs(p []byte, id string, way uint64, from int) int {
	base := hashOf(way, id)
	for i := range p {
		at := from + i
		if p[i] != byte(mix(base+uint64(at/8))>>(8*(at%8))) {
			return at
		}
	}
	return -1
}

// text is a piece of a run's answer.
func text(id string, execution uint64, piece, size int) string {
	s := fmt.Sprintf("%s/%d/%d ", id, execution, piece)
	return strings.Repeat(s, size/len(s)+1)
}
