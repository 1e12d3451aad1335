package node

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/router"
	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Kill ends the link because the edge broke the protocol.
func (s *Session) Kill(text string) {
	s.log.Error().Stringer("code", execution.CodeProtocol).Str("reason", text).Msg("the edge broke the protocol; ending the link")
	s.link.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_PROTOCOL, Text: cut(text, 256)})
}

// Late counts a message that had no business here and now.
func (s *Session) Late(kind string) { s.x.cfg.Observer.Late(kind) }

// execute runs an admitted task and reads its stream to the end.
func (s *Session) execute(t *task) {
	t.at(faultpoint.NodeAdmitted)
	if t.background { // the end of an earlier run of this id would be taken for this one's
		s.x.cfg.Journal.Reported(s.x.cfg.Edge, t.runID)
	}
	t.entry = s.x.cfg.Journal.Begin(store.Execution{
		Edge: s.x.cfg.Edge, RunID: t.runID, Attempt: t.attempt, Generation: s.generation, Kind: t.kind, Adapter: t.adapter,
		Target: t.target, SessionID: t.sessionID, Background: t.background, Created: t.started,
	})
	t.beginSpan()
	t.start()
	s.x.work.Go(t.run)
	t.read()
}

// refuse answers an open with its rejection m, the only message of the stream.
func (s *Session) refuse(stream *transport.Stream, id string, f *execution.Failure, m proto.Message) {
	s.x.cfg.Observer.Refused(f.Code)
	leaseRefused(s.log.Info(), f).Str("run_id", loggable(id)).Stringer("code", f.Code).Str("reason", f.Text).Msg("work rejected")
	s.answer(stream, m)
}

// answer writes the last message of a stream without an execution, and discards input until the edge closes, for a
// limited time: what is in flight both ways would be lost if this side closed first.
func (s *Session) answer(stream *transport.Stream, m proto.Message) {
	limit := time.AfterFunc(s.x.cfg.Timers.RejectLinger, stream.Cancel)
	defer limit.Stop()
	if err := stream.Write(m); err != nil {
		return
	}
	for {
		if _, err := stream.ReadInput(); err != nil {
			return
		}
	}
}

// take admits an order whose open made sense (f is nil): first its lease is judged, then its place is taken. What is
// refused was never started, and its lease is burnt.
func (s *Session) take(stream *transport.Stream, o order, k keyOrder, f *execution.Failure, able func(execution.Provider) *execution.Failure) (*task, *execution.Failure) {
	if f != nil {
		return nil, f
	}
	key, f := s.judge(&o, k)
	if f != nil {
		return nil, f
	}
	t, f := s.x.admit(s, stream, o, able)
	if f != nil {
		key.end()
		return nil, f
	}
	t.key = key
	return t, nil
}

// admit takes the place of an order, or says why not. able says why a driver can't do it, nil if it can.
func (x *Executor) admit(s *Session, stream *transport.Stream, o order, able func(execution.Provider) *execution.Failure) (*task, *execution.Failure) {
	t, place, f := x.place(s, stream, o, able)
	if t == nil && place != nil {
		place.Release() // outside the lock: it may close a driver
	}
	return t, f
}

// place checks an order and takes its place: in one critical section, so that a cancel finds either the execution or
// leaves the tombstone that the open runs into.
func (x *Executor) place(s *Session, stream *transport.Stream, o order, able func(execution.Provider) *execution.Failure) (*task, *router.Place, *execution.Failure) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.tombs.has(o.runID, time.Now()):
		return nil, nil, &execution.Failure{Code: execution.CodeCancelled, Origin: execution.OriginCaller, Text: "cancelled before it started"}
	case x.running[o.runID] != nil || x.commands[o.runID] != nil:
		return nil, nil, execution.Failf(execution.CodeDuplicateRun, execution.OriginEdge, "an execution with this run_id is running")
	case x.draining:
		return nil, nil, execution.Failf(execution.CodeNodeDraining, execution.OriginNode, "the node is stopping")
	}
	place, f := x.cfg.Router.Take(x.cfg.Edge, o.adapter, o.revision)
	if f != nil {
		return nil, nil, f
	}
	if f := able(place.Adapter().Provider()); f != nil {
		return nil, place, f
	}
	t := newTask(s, stream, o)
	t.place = place
	delete(s.told, o.runID)
	x.running[o.runID] = t
	return t, place, nil
}

// settle moves a task from running to lingering and tells the Edge its end on the connection that serves now, which may
// be a later one than the task's own; if that is still up, on that one too, since both hold a place for it. Without one the Edge has forgotten the task, or learns of its end by not finding
// it in Ready; a background run's end is told later.
func (x *Executor) settle(t *task, end *pb.RunEnd) {
	x.mu.Lock()
	if x.running[t.runID] == t {
		delete(x.running, t.runID)
	}
	if !t.left {
		t.elem = x.lingering.PushBack(t)
	}
	x.calmLocked()
	var tell []*Session
	for _, s := range []*Session{x.serving, t.session} {
		if s != nil && !s.over && !slices.Contains(tell, s) && (!t.background || s.tellLocked(t.runID)) {
			tell = append(tell, s)
		}
	}
	x.mu.Unlock()
	for _, s := range tell {
		s.link.SendRunEnded(end)
	}
}

// said records that a task's terminal is on its way, and closes the oldest such task when too many wait for the edge's
// close: what it said arrives all the same. One whose terminal isn't written yet is never closed for others.
func (x *Executor) said(t *task) {
	var oldest *task
	x.mu.Lock()
	t.told = true
	for e := x.lingering.Front(); e != nil && oldest == nil && x.lingering.Len() > maxLingering; e = e.Next() {
		if o := e.Value.(*task); o.told {
			x.lingering.Remove(e)
			oldest, o.elem = o, nil
		}
	}
	x.mu.Unlock()
	if oldest != nil {
		oldest.stream.Cancel()
	}
}

// left says that a task's stream is over.
func (x *Executor) left(t *task) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.left = true
	if t.elem != nil {
		x.lingering.Remove(t.elem)
		t.elem = nil
	}
	x.calmLocked()
}

// validID reports whether s is an id of the protocol.
func validID(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// loggable bounds what a peer's words may take of a log line.
func loggable(s string) string { return cut(s, 128) }
