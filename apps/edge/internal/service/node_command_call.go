package service

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// commands knows the commands that are being answered, so that a drain can refuse, end and await them.
type commands struct {
	busy    sync.WaitGroup // nothing is added once draining
	reading sync.WaitGroup // what reads on behind a command that was cancelled

	mu       sync.Mutex
	draining bool
	live     map[*commandCall]struct{}
}

// enter makes a command live, or says why not.
func (t *commands) enter(q *commandCall, ctx context.Context) *execution.Failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		f := cancelled(execution.CauseEdgeDraining)
		f.NothingSent = true
		return f
	}
	q.ctx, q.end = context.WithCancelCause(ctx)
	if t.live == nil {
		t.live = map[*commandCall]struct{}{}
	}
	t.live[q] = struct{}{}
	t.busy.Add(1)
	return nil
}

func (t *commands) leave(q *commandCall) {
	q.end(errDone)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, q)
	t.busy.Done()
}

// drain lets nobody in any more.
func (t *commands) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
}

// cancelAll ends every command.
func (t *commands) cancelAll(cause execution.CancelCause) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for q := range t.live {
		q.end(cause)
	}
}

// commandCall is one command from its submission to its result. One goroutine owns it, the caller's. As with a run, the
// first cause of its context is how it ended, unless it was answered before.
type commandCall struct {
	*Command
	service *Service
	started time.Time
	ctx     context.Context
	end     context.CancelCauseFunc
	out     *CommandResult

	target   CommandTarget
	stream   *transport.Stream
	leave    func()
	accepted bool
	over     bool // the node has said its last word
}

// drive brings the command to its result.
func (q *commandCall) drive() {
	defer q.recovered()
	limit := q.service.cfg.CommandLimit
	timer := time.AfterFunc(limit, func() {
		q.end(execution.Failf(execution.CodeDeadline, execution.OriginEdge, "the command wasn't answered within %v", limit))
	})
	defer timer.Stop()
	targets, f := q.targets()
	if f != nil {
		q.fail(f)
		return
	}
	for _, q.target = range targets {
		if q.try() {
			return
		}
	}
	f = execution.Failf(execution.CodeNoNode, execution.OriginEdge, "the node's connection ended before the command could be sent; try again")
	f.NothingSent, f.RetryAfter = true, retryAfter
	q.fail(f)
}

// try asks one node. False: its connection is over, and nothing was sent.
func (q *commandCall) try() bool {
	leave, err := q.target.Conn.EnterCommand(q.ctx)
	if err != nil {
		return q.unsent(err)
	}
	q.leave = leave
	q.out.Queued = time.Since(q.started)
	unheard := q.armDispatch()
	defer unheard()
	if q.stream, err = q.target.Conn.Open(q.ctx); err != nil {
		leave()
		over := q.unsent(err)
		q.report()
		return over
	}
	unwake := context.AfterFunc(q.ctx, q.stream.Cancel)
	defer q.close()
	defer unwake()
	q.out.CommandID, q.out.NodeID, q.out.Generation = newCommandID(), q.target.NodeID, q.target.Generation
	if q.Sink != nil {
		q.Sink.Placed(Placement{Node: q.target.NodeID, Queued: q.out.Queued})
	}
	if err := q.send(); err != nil {
		q.unwritten(err)
		return true
	}
	q.receive(unheard)
	return true
}

// unsent ends a command that couldn't be sent, unless another node may be asked.
func (q *commandCall) unsent(err error) bool {
	var f *execution.Failure
	switch {
	case q.ctx.Err() != nil:
		q.failedAs(context.Cause(q.ctx))
	case errors.As(err, &f):
		q.fail(f)
	default: // the link is over
		return false
	}
	q.out.Failure.NothingSent = true
	return true
}

// armDispatch bounds the time until the node answers the open; what it returns says that it did.
func (q *commandCall) armDispatch() (heard func()) {
	limit := q.service.cfg.DispatchLimit
	timer := time.AfterFunc(limit, func() {
		q.end(execution.Failf(execution.CodeDispatchTimeout, execution.OriginEdge, "the node didn't answer within %v", limit))
	})
	return func() { timer.Stop() }
}

// send writes the open and, for a POST, the body with its end. It fits the stream's first window.
func (q *commandCall) send() error {
	open := &pb.WorkOpen{ConnectionGeneration: q.target.Generation, Attempt: 1, Work: &pb.WorkOpen_Command{Command: &pb.NodeCommandRequest{
		CommandId: q.out.CommandID, Type: pb.CommandType(q.Type), SessionId: q.SessionID, Adapter: q.Adapter,
		Method: q.Method, Path: q.Path,
	}}}
	if err := q.stream.Append(open); err != nil {
		return err
	}
	if !q.posts() {
		return q.stream.Flush()
	}
	seq, total := uint64(1), int64(len(q.Body))
	for body := q.Body; len(body) > 0; seq++ {
		piece := body[:min(len(body), transport.MaxBody)]
		if err := q.stream.AppendBody(seq, piece); err != nil {
			return err
		}
		body = body[len(piece):]
	}
	end := &pb.WorkInput{Seq: seq, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: total}}}
	return q.stream.Write(end)
}

// unwritten says why the open couldn't be written.
func (q *commandCall) unwritten(err error) {
	var fault *transport.FrameError
	switch {
	case q.ctx.Err() != nil:
		q.failedAs(context.Cause(q.ctx))
	case errors.As(err, &fault):
		q.over = true // nothing was sent
		q.fail(execution.Failf(execution.CodeBadRequest, execution.OriginCaller, "the command doesn't fit a message to the node: %s", fault.Text))
	case errors.Is(err, transport.ErrLinkDown):
		q.fail(commandLost())
	default:
		q.fail(protocolFailure("the node closed the stream before it had the command"))
	}
}

// readFailed says what the end of a stream before the last word means.
func (q *commandCall) readFailed(err error) {
	var fault *transport.FrameError
	switch {
	case q.ctx.Err() != nil:
		q.failedAs(context.Cause(q.ctx))
	case errors.Is(err, transport.ErrLinkDown):
		q.fail(commandLost())
	case errors.As(err, &fault):
		q.fail(protocolFailure(fault.Error()))
	case !q.accepted:
		q.fail(protocolFailure("the node closed the stream without an answer"))
	default:
		q.fail(execution.Failf(execution.CodeUpstreamTruncated, execution.OriginNode, "the node closed the stream in the middle of its answer"))
	}
}

// failedAs ends the command for the cause of its context.
func (q *commandCall) failedAs(cause error) {
	f, _ := verdict(cause)
	switch f.Code {
	case execution.CodeCancelled:
		f.Text = "the command was cancelled"
	case execution.CodeDeadline:
		if _, own := cause.(*execution.Failure); !own {
			f.Text = "the time for the command was up"
		}
	}
	q.fail(f)
}

// fail records why the command wasn't answered; the first counts.
func (q *commandCall) fail(f *execution.Failure) {
	if q.out.Failure == nil {
		q.out.Failure = f
	}
}

// close ends the stream, and the command with it if the node hasn't said its last word: a CancelRequest and the close,
// of which neither is waited for. The turn is given back when the node can have forgotten the command.
func (q *commandCall) close() {
	q.report()
	stream, leave := q.stream, q.leave
	stream.Close()
	if q.over {
		stream.Release()
		leave()
		return
	}
	if q.out.Failure == nil { // a panic, which is recovered later
		q.fail(execution.Failf(execution.CodeInternal, execution.OriginEdge, "the edge failed inside this command; its log has more"))
	}
	cause := causeOf(q.out.Failure.Code)
	if q.ctx.Err() != nil {
		_, cause = verdict(context.Cause(q.ctx))
	}
	q.target.Conn.SendCancel(q.out.CommandID, cause)
	stream.Linger()
	q.service.commands.reading.Go(func() { // ends with the node's close, or the stream's reset
		defer leave()
		defer stream.Release()
		for q.next(stream) == nil {
		}
	})
}

// next reads a message that nobody looks at.
func (q *commandCall) next(stream *transport.Stream) error {
	if q.Type == CommandOllamaAPI {
		_, err := stream.ReadTunnel()
		return err
	}
	_, err := stream.ReadCommand()
	return err
}

// report tells the registry whether the node answers what is sent to it.
func (q *commandCall) report() {
	if q.accepted {
		return // was told when it came
	}
	if f := q.out.Failure; !q.over && f != nil && (f.Code == execution.CodeDispatchTimeout || f.Code == execution.CodeProtocol) {
		q.target.Conn.CommandTimeout()
	}
}

// recovered makes a panic this command's failure and nobody else's.
func (q *commandCall) recovered() {
	if p := recover(); p != nil {
		q.service.cfg.Log.Error().Str("command_id", q.out.CommandID).Str("panic", fmt.Sprint(p)).Bytes("stack", debug.Stack()).
			Msg("command panicked")
		q.out.Failure = execution.Failf(execution.CodeInternal, execution.OriginEdge, "the edge failed inside this command; its log has more")
	}
}

// log writes the command's one line.
func (q *commandCall) log() {
	o := q.out
	line := q.service.cfg.Log.Info()
	if o.Failure != nil {
		line = line.Stringer("origin", o.Failure.Origin).Str("error", o.Failure.Text)
	}
	line = line.Str("command_id", o.CommandID).Stringer("type", q.Type).Str("node_id", o.NodeID).Str("adapter", o.Adapter).
		Uint64("connection_generation", o.Generation).Stringer("code", o.code())
	if o.SessionID != "" {
		line = line.Str("session_id", o.SessionID)
	}
	if q.Type == CommandOllamaAPI && q.out.CommandID != "" { // the path is one of a list
		line = line.Str("method", q.Method).Str("path", q.Path).Int("status", o.Status).Int64("bytes_out", o.Bytes)
	}
	line.Int64("queue_ms", o.Queued.Milliseconds()).Int64("duration_ms", o.Duration.Milliseconds()).Msg("command ended")
}

func (r *CommandResult) code() execution.Code {
	if r.Failure == nil {
		return execution.CodeOK
	}
	return r.Failure.Code
}

// newCommandID draws an id that no caller can guess, so that no run can be given it.
func newCommandID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	return "cmd-" + hex.EncodeToString(b)
}

func commandLost() *execution.Failure {
	return execution.Failf(execution.CodeNodeLost, execution.OriginEdge, "the connection to the node was lost before the command was answered")
}
