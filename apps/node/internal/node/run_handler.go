package node

import (
	"bytes"
	"context"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/tracing"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// maxRunInput bounds the content of a run, which is decoded as a whole. The Edge's own limit of a body is lower.
const maxRunInput = 128 << 20

// run admits one normalized run and executes it.
func (s *Session) run(stream *transport.Stream, open *pb.WorkOpen, req *pb.RunRequest) {
	o := runOrder(open.GetAttempt(), req)
	o.trace = s.traceOf(open)
	t, f := s.take(stream, o, runKey(req), s.checkRun(req), isExecutor)
	if f != nil {
		s.refuse(stream, req.GetRunId(), f, &pb.RunEvent{Seq: 1, Event: &pb.RunEvent_Rejected{Rejected: rejection(f)}})
		return
	}
	t.work = &runWork{reply: t.reply, open: req, defaults: s.x.cfg.Timers.provider(), key: t.key}
	s.execute(t)
}

// isExecutor refuses a driver that knows no normalized runs.
func isExecutor(p execution.Provider) *execution.Failure {
	if _, ok := p.(execution.Executor); ok {
		return nil
	}
	return execution.Failf(execution.CodeBadRequest, execution.OriginNode, "the adapter can't execute normalized runs, only carry HTTP requests")
}

// checkRun refuses an open that can't be understood. Its content comes later.
func (s *Session) checkRun(req *pb.RunRequest) *execution.Failure {
	switch {
	case !validID(req.GetRunId()):
		return badOpen("run_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
	case req.GetTarget() == "":
		return badOpen("target is missing")
	case req.GetInputBytes() < 0:
		return badOpen("input_bytes must be 0 or more")
	case req.GetInputBytes() > maxRunInput:
		return execution.Failf(execution.CodeBodyTooLarge, execution.OriginNode, "the run's content is over %d bytes", maxRunInput)
	case req.GetFirstByteMs() < 0 || req.GetIdleMs() < 0 || req.GetDeadlineMs() < 0:
		return badOpen("a time limit is negative")
	case req.GetBackground() && !s.background:
		return badOpen("background runs weren't negotiated on this connection")
	}
	return nil
}

// runWork is what a run does.
type runWork struct {
	*reply
	open     *pb.RunRequest
	defaults execution.Timers
	key      *key
	req      *execution.Request // set by prepare
}

func (w *runWork) accepted() frame                         { return runAccepted(w.open.GetSessionId()) }
func (w *runWork) terminal(o outcome, seen answer) []frame { return runTerminal(o, seen) }
func (w *runWork) operation() string                       { return tracing.OperationChat }

// prepare reads the whole content and decodes it.
func (w *runWork) prepare(in *feed) error {
	var content bytes.Buffer
	content.Grow(int(min(w.open.GetInputBytes(), feedLimit)))
	if _, err := content.ReadFrom(in); err != nil {
		return err
	}
	req, err := runFromWire(w.open, content.Bytes(), w.defaults)
	if err != nil {
		return err
	}
	req.Credential = w.key.credential()
	w.req = req
	return nil
}

func (w *runWork) call(ctx context.Context, p execution.Provider) error {
	done, err := p.(execution.Executor).Execute(ctx, w.req, func(e execution.Event) error { return w.emit(ctx, e) })
	if err != nil {
		return err
	}
	w.note(func(a *answer) {
		a.answered, a.completion = true, done.FinishReason
		if done.Usage.Known() {
			a.usage = done.Usage
		}
	})
	return nil
}

// emit takes one event of the adapter. What a caller doesn't read the provider isn't asked for.
func (w *runWork) emit(ctx context.Context, e execution.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.wantedLocked(ctx); err != nil {
		return err
	}
	if f := checkEvent(e); f != nil {
		return w.fail(f)
	}
	w.saw(e)
	for f := range eventToWire(e) {
		write := w.sendLocked
		if f.step == execution.StepStart || f.step == execution.StepUsage {
			write = w.appendLocked
		}
		if err := write(f); err != nil {
			return err
		}
	}
	return nil
}

// saw notes what an event adds to the answer.
func (w *runWork) saw(e execution.Event) {
	w.note(func(a *answer) {
		if a.first.IsZero() {
			a.first = time.Now()
		}
		if e.Kind == execution.EventStart {
			a.model = e.Model
		}
		a.bytes += int64(len(e.Text) + len(e.ToolCall.Arguments))
		if e.Kind == execution.EventUsage && e.Usage.Known() {
			a.usage = e.Usage
		}
	})
}
