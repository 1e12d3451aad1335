package node

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// maxTunnelHeaders bounds the names and values of a request's headers together.
const maxTunnelHeaders = 32 << 10

// tunnel admits one tunnel and executes it.
func (s *Session) tunnel(stream *transport.Stream, open *pb.WorkOpen, req *pb.ProviderTunnelRequest) {
	o := tunnelOrder(open.GetAttempt(), req)
	o.trace = s.traceOf(open)
	t, f := s.take(stream, o, tunnelKey(req), checkTunnel(req), isTunneler)
	if f != nil {
		s.refuse(stream, req.GetRunId(), f, &pb.ProviderTunnelFrame{
			Seq: 1, Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: rejection(f)}})
		return
	}
	w := &tunnelWork{reply: t.reply, req: tunnelFromWire(req, t.body, s.x.cfg.Timers.provider()), sessionID: req.GetSessionId(), expected: -1}
	w.req.Credential = t.key.credential()
	t.work = w
	s.execute(t)
}

// isTunneler refuses a driver that can't carry a tunnel.
func isTunneler(p execution.Provider) *execution.Failure {
	if _, ok := p.(execution.Tunneler); ok {
		return nil
	}
	return execution.Failf(execution.CodeBadRequest, execution.OriginNode, "the adapter can't carry HTTP requests")
}

// checkTunnel refuses an open that can't be understood. What a provider may be sent is the adapter's check.
func checkTunnel(req *pb.ProviderTunnelRequest) *execution.Failure {
	size := 0
	for _, h := range req.GetHeaders() {
		size += len(h.GetName()) + len(h.GetValue())
	}
	switch {
	case !validID(req.GetRunId()):
		return badOpen("run_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
	case req.GetMethod() == "":
		return badOpen("method is missing")
	case len(req.GetPath()) == 0 || req.GetPath()[0] != '/':
		return badOpen("path must begin with a slash")
	case req.GetContentLength() < -1:
		return badOpen("content_length must be -1 or more")
	case size > maxTunnelHeaders:
		return badOpen("headers are over %d bytes", maxTunnelHeaders)
	case req.GetFirstByteMs() < 0 || req.GetIdleMs() < 0 || req.GetDeadlineMs() < 0:
		return badOpen("a time limit is negative")
	}
	return nil
}

// badOpen refuses an open that can't be understood.
func badOpen(format string, args ...any) *execution.Failure {
	return execution.Failf(execution.CodeBadRequest, execution.OriginEdge, format, args...)
}

// tunnelWork is what a tunnel does. It is the sink of its adapter.
type tunnelWork struct {
	*reply
	req       *execution.TunnelRequest
	sessionID string
	expected  int64 // the body's length if the head says it, else -1; guarded by reply.mu

	watched bool            // a span wants to know what the provider says
	words   *tracing.Answer // what it said
}

func (w *tunnelWork) accepted() frame                         { return tunnelAccepted(w.sessionID) }
func (w *tunnelWork) terminal(o outcome, seen answer) []frame { return tunnelTerminal(o, seen) }
func (w *tunnelWork) prepare(*feed) error                     { return nil } // the adapter reads it
func (w *tunnelWork) operation() string                       { return tracing.Operation(w.req.Path) }
func (w *tunnelWork) call(c context.Context, p execution.Provider) error {
	return p.(execution.Tunneler).Tunnel(c, w.req, w) // checked at the open
}

// Head implements execution.TunnelSink.
func (w *tunnelWork) Head(status int, header http.Header) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(); err != nil {
		return err
	}
	if status < 200 || status > 999 {
		return w.fail(execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"the provider answered with status %d, which can't be passed on", status))
	}
	head := &pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Head{Head: headToWire(status, header)}}
	if proto.Size(head) > transport.MaxTunnelFrame-16 { // 16: the number that is still to be set
		return w.fail(execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"the provider's response header is over %d bytes", transport.MaxTunnelFrame))
	}
	if err := w.appendLocked(frame{execution.StepHead, head}); err != nil {
		return err
	}
	w.note(func(a *answer) { a.answered, a.status, a.first = true, status, time.Now() })
	if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		w.expected = n
	}
	if w.watched {
		w.words = tracing.NewAnswer(status, header)
	}
	return nil
}

// Body implements execution.TunnelSink.
func (w *tunnelWork) Body(p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(); err != nil {
		return err
	}
	w.words.Write(p)
	for len(p) > 0 {
		piece := p[:min(len(p), transport.MaxBody)]
		p = p[len(piece):]
		total, err := w.bodyLocked(piece)
		if err != nil {
			return err
		}
		if total == w.expected {
			w.flushSoonLocked()
			continue
		}
		if err := w.flushLocked(); err != nil {
			return err
		}
	}
	return nil
}

// Usage implements execution.TunnelSink. The counts are sent with the terminal, since no body may follow them.
func (w *tunnelWork) Usage(u execution.Usage) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.openLocked(); err != nil {
		return err
	}
	w.note(func(a *answer) { a.usage = u })
	return nil
}
