package service

import (
	"iter"

	"iop/apps/edge/internal/admission"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
	pb "iop/proto/iop"
)

// asRun carries a tunnel's request as a normalized run. The limits of the route hold for it, too.
type asRun struct {
	runWay
	of *tunnelJob
}

// open implements carrier.
func (w *asRun) open(r *Run, g *admission.Grant) *pb.WorkOpen {
	m, route := w.runWay.open(r, g), w.of.route
	req := m.GetRun()
	req.Route = route.Model
	req.FirstByteMs, req.IdleMs = route.FirstByte.Milliseconds(), route.Idle.Milliseconds()
	return m
}

// alternative prepares the run that the tunnel may become.
func (j *tunnelJob) alternative(limit int64) *execution.Failure {
	if j.Run == nil {
		return nil
	}
	spec := RunSpec{RunID: j.RunID, Principal: j.Principal, SessionID: j.SessionID, Target: j.Target}
	if f := checkInput(j.Run.Input, j.Target); f != nil {
		return f
	}
	input, f := encodeInput(j.Run.Input, limit)
	if f != nil {
		return f
	}
	j.run = &asRun{runWay: runWay{spec: spec, sink: j.Run.Events, input: input}, of: j}
	return nil
}

// carrier implements job.
func (j *tunnelJob) carrier(g *admission.Grant) carrier {
	if j.run != nil && !httprules.Carries(g.Kind, g.AllowPaths, j.Path) {
		return j.run
	}
	return j
}

// match returns the test of whether an adapter is a candidate: one of the route for the target that carries the path, or
// any other of it where the request may go as a run.
func (j *tunnelJob) match() func(*admission.Node, *admission.Adapter) bool {
	match, path := Match(j.route, j.Target), j.Path
	if j.run != nil {
		return match
	}
	return func(n *admission.Node, a *admission.Adapter) bool {
		return httprules.Carries(a.Kind, a.AllowPaths, path) && match(n, a)
	}
}

// set names the candidate set.
func (j *tunnelJob) set() string {
	set := setOf(j.route, j.Target)
	if j.run == nil {
		set += "\x00\x00" + j.Path
	}
	return set
}

// possible refuses a request that no adapter could ever take as the configuration stands: the route has adapters, but
// none that carries the path, and the request can't go as a run. Waiting for a place would end in no_node and tell
// nothing.
func (j *tunnelJob) possible(state *config.State) *execution.Failure {
	if j.run != nil {
		return nil
	}
	others := false
	for a := range configured(state, j.route, j.Target) {
		if httprules.Carries(a.Kind, a.AllowPaths, j.Path) {
			return nil
		}
		others = true
	}
	if !others {
		return nil
	}
	f := execution.Failf(execution.CodeBadRequest, execution.OriginEdge,
		"no adapter of the route %q carries %s; ask for a model that an adapter of this API serves, or use an API that the route's adapters speak",
		j.route.Model, j.Path)
	f.NothingSent = true
	return f
}

// configured walks the adapters that the configuration gives a route for a target.
func configured(state *config.State, route *config.Route, target string) iter.Seq[*config.Adapter] {
	return func(yield func(*config.Adapter) bool) {
		for i := range state.Edge.Nodes {
			record := &state.Edge.Nodes[i]
			if !record.Enabled {
				continue
			}
			n := &admission.Node{ID: record.ID, Labels: record.Labels}
			for j := range record.Adapters {
				a := &record.Adapters[j]
				as := &admission.Adapter{Name: a.Name, Targets: a.Targets}
				if reaches(route, n, as) && as.Offers(target) && !yield(a) {
					return
				}
			}
		}
	}
}
