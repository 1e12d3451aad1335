package sim

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// step is something that happens at its time.
type step struct {
	at   time.Duration
	name string // "" = tells of itself
	do   func()
}

// steps are what is still to happen.
type steps struct {
	mu   sync.Mutex
	list []step
}

// after plans a step.
func (w *world) after(d time.Duration, name string, do func()) { w.at(w.now()+d, name, do) }

// at plans a step for a time since the beginning.
func (w *world) at(at time.Duration, name string, do func()) {
	w.steps.mu.Lock()
	defer w.steps.mu.Unlock()
	w.steps.list = append(w.steps.list, step{at, name, do})
}

// next takes the step that comes first.
func (w *world) next() (step, bool) {
	w.steps.mu.Lock()
	defer w.steps.mu.Unlock()
	if len(w.steps.list) == 0 {
		return step{}, false
	}
	first := 0
	for i, s := range w.steps.list {
		if s.at < w.steps.list[first].at {
			first = i
		}
	}
	s := w.steps.list[first]
	w.steps.list = slices.Delete(w.steps.list, first, first+1)
	return s, true
}

// Report is what came of a seed.
type Report struct {
	Seed     uint64
	Hash     string   // of the history
	Breaches []string // of invariants; none is well
	Virtual  time.Duration
	Stats    Stats
	history  *history
}

// Play lives through a seed, inside a bubble. dir is for what the programs keep, and has what [WriteIdentities] has written;
// nothing else may lie there from before. logs takes the programs' logs, nil = nobody does.
func Play(seed uint64, dir string, logs io.Writer) *Report {
	w := newWorld(seed, fmt.Sprintf("%s/%d", dir, seed), logs)
	for _, e := range w.edges {
		e.start()
	}
	for i, n := range w.nodes {
		w.at(newDice(seed, "begin", n.host).between(0, time.Second)+time.Duration(i), "", n.start)
	}
	for _, j := range w.ordered() {
		w.at(j.at, "", func() { w.start(j) })
	}
	w.planFaults()
	w.planKeys()
	for at := time.Second; at < w.span+time.Second; at += time.Second {
		w.at(at, "", func() {})
	}
	for s, ok := w.next(); ok; s, ok = w.next() {
		w.live(s)
	}
	w.settle()
	w.close()
	w.judge()
	return &Report{Seed: seed, Hash: w.hash(), Breaches: w.broken, Virtual: w.now(), Stats: w.stats(), history: w.history}
}

// ordered are the jobs by their names.
func (w *world) ordered() []*job {
	var list []*job
	for n := 0; w.jobs[jobName(n)] != nil; n++ {
		list = append(list, w.jobs[jobName(n)])
	}
	return list
}

// live waits for a step and takes it. Everything else is at rest before and after it.
func (w *world) live(s step) {
	time.Sleep(s.at - w.now())
	synctest.Wait()
	if s.name != "" {
		w.tell("=", "%s", s.name)
	}
	s.do()
	synctest.Wait()
	w.look()
}

// How long the end may take, with everything healed.
const (
	calmLimit   = 12 * time.Minute
	placeLimit  = 2 * time.Minute
	returnLimit = 6 * time.Minute // a refusal for good is tried again after five
	stopLimit   = 2 * time.Minute
	restTime    = time.Minute // what drivers and the multiplexer's timers still need
)

// settle heals everything and waits until nobody asks for anything and nothing runs.
func (w *world) settle() {
	w.tell("=", "everything is healed")
	w.points.over.Store(true)
	w.healed = w.now()
	w.net.heal()
	for _, e := range w.edges {
		if e.inside == nil {
			e.start()
		}
		e.plan.calm()
		if err := e.inside.Reload(e.config()); err != nil {
			w.breach("end", "%s can't be reloaded: %v", e.host, err)
		}
		w.keys.mend(e)
		for _, n := range w.nodes {
			e.inside.SetDrained(n.id, false)
		}
	}
	for _, n := range w.nodes {
		w.providers.setDown(n.id, false)
		if n.inside == nil {
			n.start()
		}
	}
	if !w.until(returnLimit, func() bool { return w.missing() == "" }) {
		w.breach("end", "%v after everything was healed: %s", returnLimit, w.missing())
		return
	}
	// Nodes that came back may have brought runs along.
	if !w.until(calmLimit, w.quiet) {
		w.breach("I1", "after %v of calm not everybody has an end: %s", calmLimit, w.unended())
		return
	}
	if !w.until(calmLimit, func() bool { return w.quiet() && w.idle() }) {
		w.breach("I3", "after %v of calm: %s", calmLimit, w.occupied())
		return
	}
	w.until(returnLimit, func() bool { return w.now() > w.soundFrom() })
	w.lastRound()
}

// soundFrom is when every connection that went silent is known to be over.
func (w *world) soundFrom() time.Duration {
	at := w.healed + 2*nodeTimers.ProbeInterval // so that what is known of providers is true
	w.mu.Lock()                                 // an operator may still be at work
	defer w.mu.Unlock()
	for _, f := range w.faulty {
		if f.dead {
			at = max(at, f.until)
		}
	}
	return at
}

// lastRound asks each node by each edge for something, when nothing is wrong any more.
func (w *world) lastRound() {
	w.tell("=", "the last round")
	var last []*caller
	for i := range w.edges {
		for _, n := range w.nodes {
			if w.twins[n.id] {
				continue
			}
			w.start(w.jobs[lastJob(i, n.id)])
			last = append(last, w.callers[len(w.callers)-1])
		}
	}
	w.until(placeLimit, func() bool { return w.quiet() && w.idle() })
	for _, c := range last {
		if !c.finished.Load() || c.outcome == nil || !c.outcome.OK() && !w.tripped(c) {
			w.breach("I3", "%s didn't end well though everything was healed", c.job.id)
		}
	}
}

// tripped reports whether an adapter is taken out because its provider failed again and again.
func (w *world) tripped(c *caller) bool {
	for _, p := range w.edges[c.job.edge].inside.Places().Places {
		if p.Node == c.job.node && p.Broken != nil {
			return true
		}
	}
	return false
}

func lastJob(edge int, node string) string { return fmt.Sprintf("last-edge%d-%s", edge, node) }

// missing names a node that isn't ready.
func (w *world) missing() string {
	for _, e := range w.edges {
		ready := map[string]bool{}
		for _, p := range e.inside.Places().Places {
			ready[p.Node] = ready[p.Node] || p.Candidate
		}
		for _, n := range w.nodes {
			if !ready[n.id] && !w.twins[n.id] { // a token that two have is refused until it is replaced
				return n.id + " isn't ready at " + e.host
			}
		}
	}
	return ""
}

// until looks each second until ok.
func (w *world) until(limit time.Duration, ok func() bool) bool {
	for end := w.now() + limit; !ok(); {
		if w.now() > end {
			return false
		}
		w.live(step{at: w.now() + time.Second, do: func() {}})
	}
	return true
}

// quiet reports whether every caller and every run has an end.
func (w *world) quiet() bool { return w.unended() == "" }

func (w *world) unended() string {
	for _, c := range w.callers {
		if !c.finished.Load() {
			return c.job.id + " has no end"
		}
	}
	for _, e := range w.edges {
		if n := e.inside.Live(); n > 0 {
			return fmt.Sprintf("%s has %d live runs", e.host, n)
		}
	}
	return ""
}

// idle reports whether no place is held and nothing runs.
func (w *world) idle() bool { return w.occupied() == "" }

func (w *world) occupied() string {
	if seat := w.providers.working(); seat != "" {
		return "a driver of " + seat + " is at work" // one that ignored its cancel, perhaps
	}
	for _, e := range w.edges {
		places := e.inside.Places()
		if places.Queued > 0 {
			return fmt.Sprintf("%s: %d wait", e.host, places.Queued)
		}
		for _, p := range places.Places {
			if p.InFlight > 0 {
				return fmt.Sprintf("%s: %d places of %s/%s generation %d are held", e.host, p.InFlight, p.Node, p.Adapter, p.Generation)
			}
		}
	}
	for _, n := range w.nodes {
		if n.inside == nil {
			continue
		}
		for _, x := range n.inside.Work() {
			if len(x.Running)+x.Lingering > 0 {
				return fmt.Sprintf("%s: %d run and %d linger for %s", n.host, len(x.Running), x.Lingering, x.Edge)
			}
			for _, a := range x.Adapters {
				if a.InFlight > 0 {
					return fmt.Sprintf("%s: %d places of %s are held", n.host, a.InFlight, a.Name)
				}
			}
		}
		for _, l := range n.inside.Links() {
			if l.Mux.OpenStreams > 0 {
				return fmt.Sprintf("%s: %d streams to %s are open", n.host, l.Mux.OpenStreams, l.Edge)
			}
		}
	}
	return ""
}

// close ends everything in order and waits for all of it.
func (w *world) close() {
	w.tell("=", "everybody is told to end")
	for _, n := range w.nodes {
		n.stop()
		n.ending = true
	}
	for _, e := range w.edges {
		e.stop()
	}
	gone := make(chan struct{})
	go func() {
		w.living.Wait()
		w.working.Wait()
		close(gone)
	}()
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-gone:
	case <-limit.C:
		w.breach("end", "not everything ends within %v", stopLimit)
		for _, n := range w.nodes {
			n.crash(false)
		}
		for _, e := range w.edges {
			e.crash(false)
		}
		<-gone
	}
	for _, n := range w.nodes {
		n.bury()
	}
	for _, e := range w.edges {
		e.bury()
	}
	time.Sleep(restTime)
}
