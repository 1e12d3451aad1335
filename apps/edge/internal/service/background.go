package service

import (
	"context"
	"fmt"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// submitBackground starts a run in a goroutine of the service, and follows it.
func (s *Service) submitBackground(ctx context.Context, j *runJob) *Outcome {
	f := newFeed(j.sink)
	j.sink = f
	// Not ctx: a caller that leaves doesn't end the run.
	r, refused := s.newNormalized(context.Background(), j)
	if refused != nil {
		r.decide(refused)
		return s.ended(r)
	}
	go s.background(r, f.finish)
	return f.follow(ctx)
}

// background drives a run to its outcome. It ends with the run: by the node's word, by a limit, or by [Service.Depart].
func (s *Service) background(r *Run, done func(*Outcome)) {
	defer s.runs.backgrounds.Done() // after everything else: Join waits for it
	if r.job == nil {
		r.detached()
	} else {
		r.drive()
	}
	r.forsake()
	o := s.ended(r)
	s.leave(r)
	done(o)
}

// detached is the life of a background run whose link is gone: it waits for its node to come back and say that it still
// has it (the place is held again), or how it ended. Somebody may decide otherwise meanwhile.
func (r *Run) detached() {
	defer r.recovered()
	limit := r.service.cfg.DetachedLimit
	timer := time.NewTimer(limit)
	defer timer.Stop()
	var told string
	missed := false
	for !r.decided() {
		end, home, absent := r.where.away()
		kind, step := events.KindRunDetached, "run is detached"
		if home != nil {
			kind, step = events.KindRunAdopted, "run was adopted"
		}
		if end == nil && step != told { // else it was woken by what it knows already
			r.tell(kind, step)
			told = step
		}
		switch {
		case end != nil:
			r.endedAway(end)
		case home != nil:
			r.adopted(home)
			timer.Reset(limit)
			missed = false
		case absent && !missed:
			// How it ended follows what runs, if the node knows it at all: one that was killed may not.
			timer.Reset(min(r.service.cfg.TerminalWait, limit))
			missed = true
			r.await(timer.C, "the node came back without the run and didn't say how it ended")
		case missed:
			r.await(timer.C, "the node came back without the run and didn't say how it ended")
		default:
			r.await(timer.C, fmt.Sprintf("the node didn't come back within %v after its connection was lost", limit))
		}
	}
}

// endedAway decides the run by its node's word.
func (r *Run) endedAway(end *pb.RunEnd) {
	r.out.Usage = usageOf(end.GetUsage())
	if f := failureOfEnd(end); f != nil {
		r.decide(f)
		return
	}
	r.complete()
}

// adopted waits while a connection has the run that isn't the one that it was sent on.
func (r *Run) adopted(home Node) {
	select {
	case <-r.where.changed:
	case <-home.Down():
		r.where.lose(home)
	case <-r.ctx.Done():
	}
}

// await waits for the node; text is why the run is lost when limit passes.
func (r *Run) await(limit <-chan time.Time, text string) {
	select {
	case <-r.where.changed:
	case <-r.ctx.Done():
	case <-limit:
		r.decide(execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "%s", text))
	}
}

// forsake ends the driver's interest in a background run. If the node has it on a later connection than the one that the
// driver knew, it is told that nobody wants it any more; one that comes back later is told then.
func (r *Run) forsake() {
	home := r.where.leave()
	if cause, stop := r.unwanted(); stop && home != nil {
		home.SendCancel(r.id, cause)
	}
}

// unwanted returns the cause with which the node is to end a run that is decided, and whether it is to.
func (r *Run) unwanted() (execution.CancelCause, bool) {
	if r.where.ended() || r.departed() {
		return 0, false
	}
	f, cause := verdict(r.cause())
	return cause, f != nil
}

// tell records a step in the life of a background run without a stream, and writes a line about it.
func (r *Run) tell(kind events.Kind, text string) {
	w := &r.where
	w.mu.Lock()
	s := step{kind: kind, node: w.node, adapter: w.adapter, generation: w.generation, attempt: w.attempt}
	w.mu.Unlock()
	r.step(s)
	r.service.cfg.Log.Info().Str("run_id", r.id).Str("node_id", s.node).Str("adapter", s.adapter).
		Uint64("connection_generation", s.generation).Uint32("attempt", s.attempt).Msg(text)
}

// RunEnded tells the service that a node reported the end of an attempt; held says that it freed a place of that
// connection, without which only the ends of background runs mean anything. It is O(1) and never blocks, so that the
// reader of a control stream may call it; the scheduler is told apart. When it has returned, an end of a background run
// is known here and may be confirmed.
func (s *Service) RunEnded(nodeID string, generation uint64, e *pb.RunEnd, held bool) {
	r, known := s.runs.find(e.GetRunId())
	switch {
	case r == nil:
		if e.GetBackground() && !known && isID(e.GetRunId()) && s.runs.recover(recoveredView(nodeID, generation, e)) {
			s.publishRecovered(nodeID, generation, e)
			s.cfg.Log.Info().Str("run_id", e.GetRunId()).Str("node_id", nodeID).
				Uint64("connection_generation", generation).Stringer("status", e.GetStatus()).
				Msg("run of an earlier edge process has ended")
		}
		return
	case held:
		if r.watch.nodeEnded(e.GetAttempt(), s.cfg.TerminalWait) && !r.out.Background { // who follows one is let go by its feed
			s.tails.add(r)
		}
	}
	if r.out.Background && e.GetBackground() {
		r.where.hear(nodeID, generation, e)
	}
}

// Adopted tells the service which executions a node named as running when it became ready: the background runs among
// them go on. What nobody wants any more is cancelled, and what an earlier edge process sent is known from here on. It
// never blocks; the scheduler is told apart.
func (s *Service) Adopted(nodeID string, generation uint64, running []*pb.RunningExecution) {
	n := s.cfg.Nodes.Lookup(nodeID, generation)
	if n == nil {
		return
	}
	there := make(map[string]bool, len(running))
	for _, e := range running {
		there[e.GetRunId()] = true
	}
	for _, r := range s.runs.all() {
		if r.out.Background && !there[r.id] {
			r.where.miss(nodeID, generation)
		}
	}
	for _, e := range running {
		if !e.GetBackground() || !isID(e.GetRunId()) {
			continue
		}
		r, ended := s.runs.lookup(e.GetRunId())
		switch {
		case r != nil:
			s.readopt(r, n, nodeID, generation, e)
		case ended == nil:
			s.recoverLive(n, nodeID, generation, e)
		case ended.Node == nodeID && ended.unwanted != 0:
			n.SendCancel(e.GetRunId(), ended.unwanted)
		}
	}
}

// readopt gives a live run the connection on which its node came back.
func (s *Service) readopt(r *Run, n Node, nodeID string, generation uint64, e *pb.RunningExecution) {
	if !r.out.Background {
		return
	}
	if _, late := r.where.adopt(n, nodeID, generation, e.GetAttempt()); !late {
		return
	}
	if cause, stop := r.unwanted(); stop {
		n.SendCancel(r.id, cause)
	}
}

// maxRecovered bounds the live runs that are known by their nodes' word only.
const maxRecovered = 10_000

// recoverLive makes a run known that an earlier edge process sent: it can be seen and cancelled, and it ends by its
// node's word as if it had been detached.
func (s *Service) recoverLive(n Node, nodeID string, generation uint64, e *pb.RunningExecution) {
	r := s.newRun(context.Background(), nil, 0, Outcome{RunID: e.GetRunId(), Kind: execution.KindRun, Background: true,
		NodeID: nodeID, Adapter: shorten(e.GetAdapter(), maxID), Generation: generation, Attempts: 1})
	r.lost = true
	r.where.node, r.where.adapter, r.where.attempt = nodeID, r.out.Adapter, e.GetAttempt()
	r.where.placedAt = r.started
	r.where.adopt(n, nodeID, generation, e.GetAttempt())
	if s.runs.enterRecovered(r) != nil {
		r.end(errDeparted)
		return
	}
	r.step(step{kind: events.KindRunRecovered, node: nodeID, adapter: r.out.Adapter, generation: generation, attempt: e.GetAttempt()})
	go s.background(r, func(*Outcome) {})
}

// Depart leaves the background runs behind that their nodes have: they end here as edge_draining, and go on there. What
// a node can't have as a whole is cancelled. It is for the end of a drain, before the links are closed.
func (s *Service) Depart() {
	for _, r := range s.runs.all() {
		if r.out.Background {
			r.end(errDeparted)
		}
	}
}
