package sim

import (
	"fmt"
	"time"
)

// window is a time in which the way between two hosts wasn't sound. An until of 0 is one that was over at once, as a
// cut is.
type window struct {
	a, b        string
	from, until time.Duration
	dead        bool // nothing went either way, or one way
	deaf        bool // and goes again when somebody says so
	cut         bool // the edge saw it end
}

// fault notes that something happened to the way between two hosts now.
func (w *world) fault(a, b string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faulty = append(w.faulty, window{a: a, b: b, from: w.now(), until: w.now()})
}

// disturb notes that something happened to a host, or to all ("").
func (w *world) disturb(host string) { w.fault(host, "") }

// planFaults draws what breaks.
func (w *world) planFaults() {
	d := newDice(w.seed, "faults")
	n := pick(d, 0, 1, 1, 2, 3, 5, 8)
	for i := range n {
		w.planFault(newDice(w.seed, "fault", fmt.Sprint(i)))
	}
}

// planFault draws one fault and when it comes and goes.
func (w *world) planFault(d dice) {
	at := d.between(2*time.Second, w.span)
	e, n := pick(d, w.edges...), pick(d, w.nodes...)
	switch d.IntN(16) {
	case 0, 1:
		w.at(at, "", func() { w.cutWire(e, n, -1) })
	case 2:
		side := d.IntN(2)
		w.at(at, "", func() { w.cutWire(e, n, side) })
	case 3, 4:
		w.deafen(at, d.between(50*time.Millisecond, 8*time.Second), e, n, d.IntN(3))
	case 5, 6:
		w.deafen(at, d.between(8*time.Second, 80*time.Second), e, n, d.IntN(3))
	case 7:
		w.planCrash(at, d, n)
	case 8:
		w.at(at, "", func() { w.disturb(n.host); n.stop(); w.revive(n, d.between(time.Millisecond, 10*time.Second)) })
	case 9:
		w.at(at, "", func() {
			w.disturb("")
			e.crash(d.chance(30))
			w.reviveEdge(e, d.between(time.Millisecond, 10*time.Second))
		})
	case 10:
		w.at(at, "", func() { w.disturb(""); e.stop(); w.reviveEdge(e, d.between(time.Millisecond, 10*time.Second)) })
	case 11:
		if by := d.between(10*time.Second, time.Hour); w.keys != nil && d.chance(50) {
			w.at(at, "", func() { n.jumpClock(pick(d, by, -by)) })
			return
		}
		w.at(at, "", func() { w.disturb(n.host); n.wake() })
	case 12:
		w.at(at, "", func() { w.setDrained(e, n, true) })
		w.at(at+d.between(time.Millisecond, 20*time.Second), "", func() { w.setDrained(e, n, false) })
	case 13:
		for range d.among(1, 4) {
			w.at(at, "", func() { w.reload(e, d) })
			at += d.between(time.Millisecond, 5*time.Second)
		}
	case 14:
		w.planTwin(at, d, n)
	case 15:
		for range d.among(1, 5) {
			w.at(at, n.id+"'s provider goes down", func() { w.disturb(n.host); w.providers.setDown(n.id, true) })
			at += d.between(time.Second, 10*time.Second)
			w.at(at, n.id+"'s provider is back", func() { w.disturb(n.host); w.providers.setDown(n.id, false) })
			at += d.between(time.Second, 10*time.Second)
		}
	}
}

func (w *world) planCrash(at time.Duration, d dice, n *nodeHost) {
	silent, down := d.chance(40), d.between(time.Millisecond, 12*time.Second)
	w.at(at, "", func() { w.disturb(n.host); n.crash(silent); w.revive(n, down) })
}

// planTwin starts a second process with the token of a node, for a while.
func (w *world) planTwin(at time.Duration, d dice, n *nodeHost) {
	twin := newNodeHost(w, n.id, "twin-of-"+n.host+"-"+at.String())
	w.twins[n.id] = true
	w.at(at, "", func() { w.disturb(n.host); twin.start() })
	w.at(at+d.between(time.Second, 15*time.Second), "", func() {
		w.disturb(n.host)
		twin.crash(d.chance(50))
		w.await(twin.done, func() { twin.bury() })
	})
}

// revive starts a node again some time after it has ended.
func (w *world) revive(n *nodeHost, down time.Duration) {
	if n.inside == nil {
		return
	}
	done := n.done
	w.await(done, func() {
		if n.inside == nil || n.done != done { // another fault has done so
			return
		}
		n.bury()
		w.after(down, "", func() {
			if n.inside == nil {
				w.disturb(n.host)
				n.start()
			}
		})
	})
}

// reviveEdge does the same for an edge.
func (w *world) reviveEdge(e *edgeHost, down time.Duration) {
	if e.inside == nil {
		return
	}
	done := e.done
	w.await(done, func() {
		if e.inside == nil || e.done != done {
			return
		}
		e.bury()
		w.after(down, "", func() {
			if e.inside == nil {
				w.disturb("")
				e.start()
			}
		})
	})
}

// await does something once a program has ended.
func (w *world) await(done <-chan struct{}, do func()) {
	select {
	case <-done:
		do()
	default:
		w.after(500*time.Millisecond, "", func() { w.await(done, do) })
	}
}

// cutWire cuts the connections between an edge and a node; side is who notices, -1 = both.
func (w *world) cutWire(e *edgeHost, n *nodeHost, side int) {
	for _, wire := range w.net.between(n.host, e.host) {
		w.tell(wire.name, "is cut, side %d", side)
		w.mu.Lock()
		w.faulty = append(w.faulty, window{a: n.host, b: e.host, from: w.now(), until: w.now(), cut: side != 0})
		w.mu.Unlock()
		if side >= 0 {
			w.hold(n.host, e.host)
		}
		wire.cut(side)
	}
}

// hold notes that a wire is silent from now on until it is over.
func (w *world) hold(a, b string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faulty = append(w.faulty, window{a: a, b: b, from: w.now(), until: w.now() + 50*time.Second, dead: true})
}

// deafen stops what goes between an edge and a node, for a while: both ways (0), to the edge (1), to the node (2).
func (w *world) deafen(at, long time.Duration, e *edgeHost, n *nodeHost, way int) {
	name := []string{"both ways", "to the edge", "to the node"}[way]
	set := func(on bool) {
		if way != 2 {
			w.net.setDeaf(n.host, e.host, on)
		}
		if way != 1 {
			w.net.setDeaf(e.host, n.host, on)
		}
	}
	w.at(at, fmt.Sprintf("nothing goes between %s and %s, %s, for %v", n.host, e.host, name, long), func() {
		w.mu.Lock()
		w.faulty = append(w.faulty, window{a: n.host, b: e.host, from: w.now(), until: w.now() + long, dead: true, deaf: true})
		w.mu.Unlock()
		set(true)
	})
	w.at(at+long, fmt.Sprintf("%s and %s hear each other again, %s", n.host, e.host, name), func() {
		set(false)
		w.heard(n.host, e.host)
	})
}

// heard ends the silences of a way that were to last longer: the network knows only whether a way is silent, so that the end of
// the first of two is the end of both.
func (w *world) heard(a, b string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.faulty {
		if f := &w.faulty[i]; f.deaf && f.a == a && f.b == b {
			f.until = min(f.until, w.now())
		}
	}
}

func (w *world) setDrained(e *edgeHost, n *nodeHost, on bool) {
	if !e.up() {
		return
	}
	w.disturb(n.host)
	w.tell("=", "%s is kept from new work at %s: %v, %v", n.id, e.host, on, e.inside.SetDrained(n.id, on))
}

func (w *world) reload(e *edgeHost, d dice) {
	what := e.plan.change(d)
	w.reloaded = true
	if !e.up() {
		return
	}
	w.disturb("")
	w.tell("=", "%s is reloaded: %s", e.host, what)
	w.points.reloading.Store(true)
	defer w.points.reloading.Store(false)
	if err := e.inside.Reload(e.config()); err != nil {
		w.breach("end", "%s can't be reloaded: %v", e.host, err)
	}
}
