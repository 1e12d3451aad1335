package sim

import (
	"fmt"
	"strings"
	"time"

	"iop/apps/edge"
	"iop/packages/go/execution"
)

// look holds the invariants of one moment against what is. Everything is at rest.
func (w *world) look() {
	for _, e := range w.edges {
		if e.inside == nil {
			continue
		}
		places := e.inside.Places()
		for _, s := range places.Sets {
			if s.Queued > mostQueued && !strings.HasPrefix(s.Set, "\x00run\x00") { // runs without a route have the default, more than there are jobs
				w.breach("I9", "%s: %d wait for %s", e.host, s.Queued, s.Set)
			}
		}
		held := map[string]int{} // by node, generation, adapter
		for _, p := range places.Places {
			held[placeKey(p.Node, p.Generation, p.Adapter)] = p.InFlight
			if own := p.InFlight - p.Adopted; own > w.most(e, p.Node, p.Adapter) {
				w.breach("I3", "%s granted %d places of %s/%s", e.host, own, p.Node, p.Adapter)
			}
		}
		for _, n := range w.nodes {
			if n.inside != nil {
				w.lookAt(e, n, held)
			}
		}
	}
	for _, n := range w.nodes {
		if n.inside != nil {
			w.lookInto(n)
		}
	}
	w.lookAhead()
}

// mostQueued is the longest queue that a plan draws.
const mostQueued = 12

// mostAhead is how much of an answer can be on its way: the window of a stream at each side, and what the programs' own
// buffers hold.
const mostAhead = 1<<20 + 256<<10

// lookAhead holds what was taken from providers against what callers have taken: a slow caller slows its provider down, and
// costs no more memory than its stream's window.
func (w *world) lookAhead() {
	if len(w.slow) == 0 {
		return
	}
	w.providers.mu.Lock()
	defer w.providers.mu.Unlock()
	for _, call := range w.providers.calls {
		if c := w.slow[call.job.id]; c != nil && call.ended == 0 && call.said.Load()-c.took.Load() > mostAhead {
			w.breach("I9", "%s: %d bytes are on their way to a slow caller", call.job.id, call.said.Load()-c.took.Load())
		}
	}
}

// lookInto holds a node's places against what it executes: an execution that is over for the edge holds none.
func (w *world) lookInto(n *nodeHost) {
	for _, x := range n.inside.Work() {
		running := map[string]int{}
		for _, r := range x.Running {
			running[r.Adapter]++
		}
		for _, a := range x.Adapters {
			if a.InFlight > running[a.Name] {
				w.breach("I3", "%s holds %d places of %s and executes %d", n.host, a.InFlight, a.Name, running[a.Name])
			}
		}
	}
}

func placeKey(node string, generation uint64, adapter string) string {
	return fmt.Sprintf("%s/%d/%s", node, generation, adapter)
}

// most is the highest capacity that an adapter can have had.
func (w *world) most(e *edgeHost, node, adapter string) int {
	if w.reloaded {
		return mostPlaces
	}
	for i, n := range w.nodes {
		if n.id == node {
			return e.plan.capacity[i][map[string]int{"a": 0, "b": 1}[adapter]]
		}
	}
	return 0
}

// mostPlaces is the highest capacity that a plan draws.
const mostPlaces = 8

// lookAt holds what a node executes against what the edge thinks that it executes: whatever runs on the current
// connection has a place there.
func (w *world) lookAt(e *edgeHost, n *nodeHost, held map[string]int) {
	current := e.inside.Current(n.id)
	if current == 0 {
		return
	}
	for _, x := range n.inside.Work() {
		if x.Edge != e.host {
			continue
		}
		running := map[string]int{}
		for _, r := range x.Running {
			if r.Generation == current {
				running[placeKey(n.id, current, r.Adapter)]++
			}
		}
		for key, count := range running {
			if held[key] < count {
				w.breach("I3", "%s executes %d of %s, %s counts %d places", n.host, count, key, e.host, held[key])
			}
		}
	}
}

// judge holds the whole history against the invariants.
func (w *world) judge() {
	generations := map[string]generation{}
	for i, e := range w.edges {
		for life, inside := range e.ended {
			w.judgeEdge(i, life+1, inside.Events(), generations)
		}
	}
	for _, c := range w.callers {
		w.judgeCaller(c)
	}
	w.judgeCalls()
	w.judgeCancels()
	w.judgeRecords()
	w.judgeKeys()
}

// generation is a node's connection at an edge, from its registration to its fence.
type generation struct {
	node  string
	from  time.Duration
	until time.Duration // 0 = it was never fenced
}

// judgeEdge looks at what an edge told in one life.
func (w *world) judgeEdge(number, life int, all []edge.Event, generations map[string]generation) {
	host := w.edges[number].host
	open := map[string]uint64{}    // a node's generation that isn't fenced
	highest := map[string]uint64{} // that a node had
	ended := map[string]int{}
	for _, ev := range all {
		w.note(host, life, &ev)
		key := fmt.Sprintf("%s/%s/%d", host, ev.NodeID, ev.Generation)
		switch name := ev.Kind.String(); name {
		case "registered":
			if open[ev.NodeID] != 0 && w.points.waits == 0 { // a fence that is held up isn't told of yet
				w.breach("I6", "%s: %s registered as %d while %d isn't fenced", host, ev.NodeID, ev.Generation, open[ev.NodeID])
			}
			if ev.Generation <= highest[ev.NodeID] {
				w.breach("I6", "%s: %s registered as %d after %d", host, ev.NodeID, ev.Generation, highest[ev.NodeID])
			}
			if _, known := generations[key]; known {
				w.breach("I6", "%s: %s has generation %d twice", host, ev.NodeID, ev.Generation)
			}
			open[ev.NodeID], highest[ev.NodeID] = ev.Generation, ev.Generation
			generations[key] = generation{node: ev.NodeID, from: ev.At.Sub(w.history.start)}
		case "fenced":
			if g, known := generations[key]; !known || g.until != 0 {
				w.breach("I6", "%s: %s is fenced as %d, which it isn't", host, ev.NodeID, ev.Generation)
			}
			if ev.Code == "" {
				w.breach("I10", "%s: %s was fenced without a reason", host, ev.NodeID)
			}
			if open[ev.NodeID] == ev.Generation {
				open[ev.NodeID] = 0
			}
			g := generations[key]
			g.until = ev.At.Sub(w.history.start)
			generations[key] = g
		case "refused":
			if ev.Code == "" {
				w.breach("I10", "%s refused %s without a reason", host, ev.NodeID)
			}
		case "run_ended":
			w.codes[ev.RunID] = ev.Code
			if ended[ev.RunID]++; ended[ev.RunID] > 1 {
				w.breach("I1", "%s ended %s %d times", host, ev.RunID, ended[ev.RunID])
			}
		}
	}
	for key, g := range generations {
		if g.until == 0 && strings.HasPrefix(key, host+"/") {
			w.breach("I10", "%s has ended and never fenced %s", host, key)
		}
	}
	for _, c := range w.callers {
		if c.job.edge == number && c.edgeLife == life && ended[c.job.id] != 1 {
			w.breach("I1", "%s ended %s %d times", host, c.job.id, ended[c.job.id])
		}
	}
}

// note brings an edge's event into the history.
func (w *world) note(host string, life int, ev *edge.Event) {
	who := ev.RunID
	if who == "" {
		who = ev.NodeID
	}
	w.history.tellAt(ev.At, who, "%s: %v %s generation %d %s %s attempt %d", host, ev.Kind, ev.NodeID, ev.Generation, ev.Adapter, ev.Code, ev.Attempt)
}

// judgeCaller holds what one caller saw against what it was to see.
func (w *world) judgeCaller(c *caller) {
	j, out := c.job, c.outcome
	if out == nil {
		if j.kind != background && !c.orphan {
			w.breach("I1", "%s has no outcome", j.id)
		}
		w.judgeLeft(c)
		return
	}
	want := j.answer()
	switch {
	case out.OK() && j.kind == tunnel && !c.whole:
		w.breach("I1", "%s ended well and its answer didn't", j.id)
	case !out.OK() && c.whole:
		w.breach("I1", "%s ended with %v and its answer looks whole", j.id, out.Code())
	case out.OK() && c.got != want && j.kind != background:
		w.breach("I2", "%s has %d of %d and looks whole", j.id, c.got, want)
	case c.got > want:
		w.breach("I2", "%s has %d, there were %d", j.id, c.got, want)
	case out.OK() && (j.mode == cut || j.mode == stalling || j.mode == panicking || j.mode == silent || j.mode == refused) && j.pieces > 0:
		w.breach("I1", "%s ended well though its provider was %s", j.id, j.mode)
	case out.Code() == execution.CodeInternal && !w.points.has(j.id):
		if j.mode != forgetful {
			w.breach("I1", "%s ended with an internal error: %v", j.id, out.Failure)
		}
	case out.Code() == execution.CodeProtocol && !w.points.has(j.id) && !w.crashed(c.node, c.began, c.done):
		// A terminal that is held up may come too late for its RunEnded, and one of a node that crashed not at all.
		w.breach("I1", "%s ended with a breach of the protocol: %v", j.id, out.Failure)
	}
	w.judgeEnd(c)
}

// crashed reports whether a machine with a node's token crashed in this time.
func (w *world) crashed(node string, from, until time.Duration) bool {
	for _, n := range w.hosts {
		if n.id == node && n.lost(from, until) {
			return true
		}
	}
	return false
}

// worsens reports whether another direction of a way fell silent before the silence of this one was due to be noticed:
// then what one side has noticed may not reach the other.
func (w *world) worsens(f window) bool {
	for _, g := range w.faulty {
		if g.dead && g.a == f.a && g.b == f.b && g.from > f.from && g.from < f.from+deadLimit {
			return true
		}
	}
	return false
}

// runs reports whether a node had a job at its provider at that time.
func (w *world) runs(id, node string, at time.Duration) bool {
	for _, call := range w.providers.calls {
		if call.job.id == id && call.node == node && call.began < at && call.ended > at {
			return true
		}
	}
	return false
}

// judgeLeft looks at a background run that nobody follows any more.
func (w *world) judgeLeft(c *caller) {
	j, code := c.job, w.codes[c.job.id]
	if c.orphan || j.kind != background || j.mode != good || j.cancel > 0 || j.deadline > 0 || c.placed == 0 || w.points.has(j.id) ||
		code == "ok" || w.unsound(c.began, w.now(), c.node, j.edge) || w.shared(c.node) {
		return
	}
	w.breach("I8", "%s ended with %s without its caller though nothing was wrong on its way", j.id, code)
}

// judgeEnd looks at when and why a caller's run ended.
func (w *world) judgeEnd(c *caller) {
	j, out := c.job, c.outcome
	if c.orphan || w.points.has(j.id) {
		return
	}
	if w.crowded(out.Code()) && w.shared(out.NodeID) || out.Code() == execution.CodeDeadline && j.model == "other" {
		return
	}
	if j.plain() && !out.OK() && out.Attempts > 0 && !w.unsound(c.began, c.done, out.NodeID, j.edge) {
		w.breach("I8", "%s ended with %v %v though nothing was wrong on its way", j.id, out.Code(), out.Failure)
	}
	w.judgeTime(c)
}

// judgeTime holds the promises about how long a caller waits for an end that is due.
func (w *world) judgeTime(c *caller) {
	j, host := c.job, w.edges[c.job.edge].host
	due := func(at, limit time.Duration, why string) {
		if c.done > at+limit {
			w.breach("I1", "%s had its end %v after %s at %v", j.id, c.done-at, why, at)
		}
	}
	if c.left > 0 {
		due(c.left, time.Second, "its caller left")
	}
	if !j.prompt() || j.kind == background {
		return
	}
	if j.deadline > 0 {
		due(c.began+j.deadline, time.Second, "its beginning and its deadline")
	}
	for _, x := range w.cancels {
		if x.job == j.id && x.result == 1 {
			due(x.at, time.Second, "it was cancelled")
		}
	}
	for _, f := range w.faulty {
		switch {
		case f.b != host || f.from >= c.done || w.twins[f.a] || !w.runs(j.id, f.a, f.from):
		case f.dead && f.until-f.from > deadLimit && !w.worsens(f):
			due(f.from, deadLimit, "its link went silent")
		case f.cut:
			due(f.from, 1500*time.Millisecond, "its link was cut")
		}
	}
}

// crowded reports whether a code says that there was no place.
func (w *world) crowded(code execution.Code) bool {
	switch code {
	case execution.CodeAdapterBusy, execution.CodeQueueTimeout, execution.CodeQueueFull, execution.CodeNoNode:
		return true
	}
	return false
}

// shared reports whether the places of a node may be taken by what one edge doesn't count: runs of another edge, and
// drivers that ignored their cancel.
func (w *world) shared(node string) bool {
	for _, call := range w.providers.calls {
		if call.node == node && call.job.mode == stubborn {
			return true
		}
	}
	return len(w.edges) > 1
}

// deadLimit is how long a silent link may go unnoticed.
const deadLimit = 46 * time.Second

// unsound reports whether anything was wrong, in this time, with what lies between an edge and a node.
func (w *world) unsound(from, until time.Duration, node string, edge int) bool {
	if w.points.wasHurt() {
		return true
	}
	for _, f := range w.faulty {
		if f.from > until || f.until+aftermath < from {
			continue
		}
		if f.a == "" || f.b == "" && f.a == node || f.a == node && f.b == w.edges[edge].host ||
			f.b == node && f.a == w.edges[edge].host {
			return true
		}
	}
	return false
}

// aftermath is how long a fault may still show after it is over.
const aftermath = 50 * time.Second

// judgeCalls looks at what became of the providers' executions.
func (w *world) judgeCalls() {
	ends := map[string]*caller{}
	for _, c := range w.callers {
		ends[c.job.id] = c
	}
	for _, call := range w.providers.calls {
		c := ends[call.job.id]
		over := call.ended
		if call.cancelled > 0 {
			over = min(over, call.cancelled)
		}
		if call.ended == 0 {
			w.breach("I11", "%s still runs at its provider", call.job.id)
			continue
		}
		if c == nil || c.outcome == nil || call.job.kind == background || w.points.has(call.job.id) {
			continue
		}
		limit := 5 * time.Second
		if w.unsound(c.done, c.done+limit, call.node, call.job.edge) || c.orphan {
			limit = 52 * time.Second
		}
		if call.began > c.done+limit {
			w.breach("I11", "%s began at its provider %v after its end", call.job.id, call.began-c.done)
		}
		if over > c.done+limit {
			w.breach("I11", "%s was left running at its provider for %v after its end", call.job.id, over-c.done)
		}
	}
}

// judgeCancels holds the promise of a cancel: on a sound link it reaches the provider within a second.
func (w *world) judgeCancels() {
	for _, x := range w.cancels {
		if x.result != 1 || w.points.has(x.job) {
			continue
		}
		for _, call := range w.providers.calls {
			if call.job.id != x.job || call.ended <= x.at || call.began > x.at {
				continue
			}
			if w.unsound(x.at, x.at+time.Second, call.node, call.job.edge) {
				continue
			}
			if call.cancelled == 0 && call.ended > x.at+time.Second || call.cancelled > x.at+time.Second {
				w.breach("I11", "%s was cancelled at %v, its provider heard of it at %v", x.job, x.at, call.cancelled)
			}
		}
	}
	for _, c := range w.callers {
		if c.outcome != nil && c.outcome.Code() == execution.CodeCancelled && c.job.cancel == 0 {
			w.breach("I1", "%s was cancelled and nobody had asked for it", c.job.id)
		}
	}
}

// Stats says how much happened.
type Stats struct {
	Callers, Good, Calls, Faults int
	Codes                        map[string]int
}

func (w *world) stats() Stats {
	s := Stats{Callers: len(w.callers), Calls: len(w.providers.calls), Faults: len(w.faulty), Codes: map[string]int{}}
	for _, c := range w.callers {
		if c.outcome == nil {
			continue
		}
		s.Codes[c.outcome.Code().String()]++
		if c.outcome.OK() {
			s.Good++
		}
	}
	return s
}

// String shows the counts.
func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d callers, %d good, %d calls of providers, %d faults;", s.Callers, s.Good, s.Calls, s.Faults)
	for _, c := range execution.Codes() {
		if n := s.Codes[c.String()]; n > 0 {
			fmt.Fprintf(&b, " %v %d", c, n)
		}
	}
	return b.String()
}
