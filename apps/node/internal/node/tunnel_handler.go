package node

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// maxTunnelHeaders bounds the names and values of a request's headers together.
const maxTunnelHeaders = 32 << 10

// Kill ends the link because the edge broke the protocol.
func (s *Session) Kill(text string) {
	s.log.Error().Stringer("code", execution.CodeProtocol).Str("reason", text).Msg("the edge broke the protocol; ending the link")
	s.link.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_PROTOCOL, Text: cut(text, 256)})
}

// Late counts a message that had no business here and now.
func (s *Session) Late(kind string) { s.x.cfg.Observer.Late(kind) }

// tunnel admits one tunnel and reads its stream to the end.
func (s *Session) tunnel(stream *transport.Stream, open *pb.WorkOpen, req *pb.ProviderTunnelRequest) {
	t, f := s.x.admit(s, stream, open.GetAttempt(), req)
	if f != nil {
		s.refuse(stream, req.GetRunId(), f, &pb.ProviderTunnelFrame{
			Seq: 1, Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: rejection(f)}})
		return
	}
	t.start()
	s.x.work.Go(t.run)
	t.read()
}

// refuse answers an open with its rejection m, the only message of the stream.
func (s *Session) refuse(stream *transport.Stream, id string, f *execution.Failure, m proto.Message) {
	s.x.cfg.Observer.Refused(f.Code)
	s.log.Info().Str("run_id", loggable(id)).Stringer("code", f.Code).Str("reason", f.Text).Msg("work rejected")
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

// admit checks an open and takes its place: in one critical section, so that a cancel finds either the execution or
// leaves the tombstone that the open runs into.
func (x *Executor) admit(s *Session, stream *transport.Stream, attempt uint32, req *pb.ProviderTunnelRequest) (*task, *execution.Failure) {
	if f := checkTunnel(req); f != nil {
		return nil, f
	}
	t, place, f := x.place(s, stream, attempt, req)
	if t == nil && place != nil {
		place.Release() // outside the lock: it may close a driver
	}
	return t, f
}

func (x *Executor) place(s *Session, stream *transport.Stream, attempt uint32, req *pb.ProviderTunnelRequest) (*task, *router.Place, *execution.Failure) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.tombs.has(req.GetRunId(), time.Now()):
		return nil, nil, &execution.Failure{Code: execution.CodeCancelled, Origin: execution.OriginCaller, Text: "cancelled before it started"}
	case x.running[req.GetRunId()] != nil:
		return nil, nil, execution.Failf(execution.CodeDuplicateRun, execution.OriginEdge, "an execution with this run_id is running")
	case x.draining:
		return nil, nil, execution.Failf(execution.CodeNodeDraining, execution.OriginNode, "the node is stopping")
	}
	place, f := x.cfg.Router.Take(x.cfg.Edge, req.GetAdapter(), req.GetAdapterRevision())
	if f != nil {
		return nil, nil, f
	}
	if _, ok := place.Adapter().Provider().(execution.Tunneler); !ok {
		return nil, place, execution.Failf(execution.CodeBadRequest, execution.OriginNode, "the adapter can't carry HTTP requests")
	}
	t := newTask(s, stream, attempt, req)
	t.place = place
	x.running[t.id()] = t
	return t, place, nil
}

func newTask(s *Session, stream *transport.Stream, attempt uint32, req *pb.ProviderTunnelRequest) *task {
	t := &task{
		session: s, stream: stream, req: req, attempt: attempt,
		body: newFeed(req.GetContentLength()), started: time.Now(), done: make(chan struct{}),
		sink: newTunnelSink(stream, func() { s.x.cfg.Observer.Late("emit") }),
	}
	t.ctx, t.cancel = context.WithCancelCause(s.ctx)
	return t
}

// checkTunnel refuses an open that can't be understood. What a provider may be sent is the adapter's check.
func checkTunnel(req *pb.ProviderTunnelRequest) *execution.Failure {
	bad := func(format string, args ...any) *execution.Failure {
		return execution.Failf(execution.CodeBadRequest, execution.OriginEdge, format, args...)
	}
	size := 0
	for _, h := range req.GetHeaders() {
		size += len(h.GetName()) + len(h.GetValue())
	}
	switch {
	case !validID(req.GetRunId()):
		return bad("run_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
	case req.GetMethod() == "":
		return bad("method is missing")
	case len(req.GetPath()) == 0 || req.GetPath()[0] != '/':
		return bad("path must begin with a slash")
	case req.GetContentLength() < -1:
		return bad("content_length must be -1 or more")
	case size > maxTunnelHeaders:
		return bad("headers are over %d bytes", maxTunnelHeaders)
	case req.GetFirstByteMs() < 0 || req.GetIdleMs() < 0 || req.GetDeadlineMs() < 0:
		return bad("a time limit is negative")
	case len(req.GetLease()) > 0 || req.GetSlot() != "" || req.GetProfile() != "":
		return execution.Failf(execution.CodeCredentialRefused, execution.OriginNode, "this version has no credential leases")
	}
	return nil
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

// settle moves a task from running to lingering and returns the link that its end is to be told on: the one that
// serves now, which may be a later one than the task's own. nil = the edge has forgotten the task, or will learn of its
// end by not finding it in Ready.
func (x *Executor) settle(t *task) *transport.Link {
	var oldest *task
	x.mu.Lock()
	if x.running[t.id()] == t {
		delete(x.running, t.id())
	}
	if !t.left {
		t.elem = x.lingering.PushBack(t)
		if x.lingering.Len() > maxLingering {
			oldest = x.lingering.Remove(x.lingering.Front()).(*task)
			oldest.elem = nil
		}
	}
	x.calmLocked()
	var link *transport.Link
	if x.serving != nil {
		link = x.serving.link
	}
	x.mu.Unlock()
	if oldest != nil {
		oldest.stream.Cancel()
	}
	return link
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
