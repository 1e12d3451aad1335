package sim

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"iop/packages/go/faultpoint"
)

// points decides what happens at the fault points. Each decision is by the seed, the point, what it is about, and how
// often that came by.
type points struct {
	w     *world
	waits int // so many of a thousand
	kills int
	panic int

	over      atomic.Bool // nothing happens any more
	reloading atomic.Bool // an edge holds what others may want: nobody may be held up, since a lock isn't waited for in fake time

	mu      sync.Mutex
	seen    map[string]int
	touched map[string]bool // jobs that something was done to
	hurt    bool            // something else was
}

func newPoints(w *world) *points {
	d := newDice(w.seed, "points")
	p := &points{w: w, seen: map[string]int{}, touched: map[string]bool{}}
	if d.chance(50) {
		p.waits, p.kills, p.panic = pick(d, 0, 5, 30, 100), pick(d, 0, 0, 2, 8), pick(d, 0, 0, 5, 30)
	}
	return p
}

// of are the points of one host.
func (p *points) of(host string) *faultpoint.Hooks {
	return faultpoint.New(func(at faultpoint.Point, id string) { p.hit(host, at, id) })
}

func (p *points) hit(host string, at faultpoint.Point, id string) {
	if p.waits+p.kills+p.panic == 0 || p.over.Load() {
		return
	}
	key := host + " " + string(at) + " " + id
	p.mu.Lock()
	p.seen[key]++
	n := p.seen[key]
	p.mu.Unlock()
	words := []string{"hit", key, strconv.Itoa(n)}
	if ofLink(at) || at == faultpoint.LinkHeartbeat { // how many there are in an instant isn't the seed's to say
		words[2] = p.w.now().String()
	}
	d := newDice(p.w.seed, words...)
	switch roll := d.IntN(1000); {
	case roll < p.waits:
		p.wait(d, at, id)
	case roll < p.waits+p.kills && at != faultpoint.EdgeFence && (!ofLink(at) || d.chance(20)):
		p.kill(d, host, at, id)
	case roll < p.waits+p.kills+p.panic && mayPanic(at):
		p.note(id)
		p.w.tell(id, "%s: panic", at)
		panic("a fault point says so")
	}
}

// ofLink tells the points that every few bytes come by.
func ofLink(at faultpoint.Point) bool {
	return at == faultpoint.LinkWrite || at == faultpoint.LinkTaken
}

// mayPanic reports whether a panic there is the business of the run alone.
func mayPanic(at faultpoint.Point) bool {
	switch at {
	case faultpoint.EdgeGranted, faultpoint.EdgeFenced, faultpoint.EdgeOpened, faultpoint.EdgeSent, faultpoint.EdgeWritten,
		faultpoint.EdgeTerminal, faultpoint.NodeCall, faultpoint.NodeReturned:
		return true
	}
	return false
}

func (p *points) note(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w.jobs[id] != nil {
		p.touched[id] = true
	} else {
		p.hurt = true
	}
}

// wait holds the goroutine up, where it may be.
func (p *points) wait(d dice, at faultpoint.Point, id string) {
	long := 3 * time.Second
	if ofLink(at) {
		return
	}
	switch at {
	case faultpoint.EdgeFence:
		if p.reloading.Load() {
			return
		}
	case faultpoint.EdgeRunEnded: // of the one reader of control
		long = 100 * time.Millisecond
	}
	p.note(id)
	pause := d.between(time.Microsecond, long)
	p.w.tell(id, "%s: waits %v", at, pause)
	time.Sleep(pause)
}

// kill cuts a link of the host.
func (p *points) kill(d dice, host string, at faultpoint.Point, id string) {
	wires := p.w.net.of(host)
	if len(wires) == 0 {
		return
	}
	w := wires[d.IntN(len(wires))]
	if strings.HasSuffix(w.to, "/http") {
		return
	}
	p.note(id)
	p.w.tell(id, "%s: cuts %s", at, w.name)
	p.w.fault(w.from, w.to)
	w.cut(-1)
}

// has reports whether something was done to a job.
func (p *points) has(job string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.touched[job]
}

// wasHurt reports whether something was done to anything else.
func (p *points) wasHurt() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hurt
}
