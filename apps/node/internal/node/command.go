package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/protobuf/proto"

	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// maxCommands is how many commands a connection may have in work; they take no place.
const maxCommands = 4

// errAnswered is the cause of a command's context after its end; nobody listens to it any more.
var errAnswered = errors.New("the command is over")

// commandKind is what one type of command needs and does.
type commandKind struct {
	// admit refuses what can't be done and takes what the command needs; back gives that back when it is over.
	admit func(c *command) (back func(), f *execution.Failure)
	// work does it. What it returns writes the terminal and says how the command ended.
	work func(c *command) (terminal func() error, o outcome)
	// input is the length of the body that follows the open, -1 = any.
	input int64
}

// commandKindOf returns what a type of command is, false when there is no such command. It is the closed set: a new
// command is a case here and a row in command_test.go.
func commandKindOf(req *pb.NodeCommandRequest) (commandKind, bool) {
	switch req.GetType() {
	case pb.CommandType_COMMAND_TYPE_CAPABILITIES:
		return commandKind{admit: (*command).admitCapabilities, work: (*command).capabilities}, true
	case pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS:
		return commandKind{admit: (*command).admitNothing, work: (*command).transportStatus}, true
	case pb.CommandType_COMMAND_TYPE_OLLAMA_API:
		return commandKind{admit: (*command).admitOllama, work: (*command).ollama, input: ollamaInput(req)}, true
	}
	return commandKind{}, false
}

// command is one command. It takes no place and leaves no row in the store. Two goroutines belong to it: the work
// stream's own, which reads until the stream's end, and run, in which it is done.
type command struct {
	// set once
	session *Session
	stream  *transport.Stream
	req     *pb.NodeCommandRequest
	kind    commandKind
	body    *feed
	reply   *reply             // of OLLAMA_API
	driver  execution.Provider // of OLLAMA_API
	back    func()
	started time.Time
	ctx     context.Context
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the terminal was written, or can't be
	gone    chan struct{} // closed when the stream is over

	over bool // guarded by Executor.mu: it isn't in work any more
}

// command carries one command out: it is accepted and answered, or rejected.
func (s *Session) command(stream *transport.Stream, req *pb.NodeCommandRequest) {
	c, f := s.admitCommand(stream, req)
	if f != nil {
		s.refuse(stream, req.GetCommandId(), f, rejectedCommand(req, f))
		return
	}
	s.x.work.Go(c.run)
	c.read()
}

// admitCommand checks a command. Without a failure it is among the connection's commands.
func (s *Session) admitCommand(stream *transport.Stream, req *pb.NodeCommandRequest) (*command, *execution.Failure) {
	kind, known := commandKindOf(req)
	switch {
	case !validID(req.GetCommandId()):
		return nil, badOpen("command_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
	case !known:
		return nil, execution.Failf(execution.CodeBadRequest, execution.OriginNode, "there is no command %d", req.GetType())
	}
	c := &command{session: s, stream: stream, req: req, kind: kind, body: newFeed(kind.input), back: func() {},
		started: time.Now(), done: make(chan struct{}), gone: make(chan struct{})}
	back, f := kind.admit(c)
	if f != nil {
		return nil, f
	}
	c.back = back
	within, stop := context.WithTimeoutCause(s.ctx, s.x.cfg.Timers.Command, execution.CauseDeadline)
	ctx, cancel := context.WithCancelCause(within)
	c.ctx, c.cancel = ctx, func(cause error) { cancel(cause); stop() }
	if f := s.enterCommand(c); f != nil {
		c.cancel(errAnswered)
		back()
		return nil, f
	}
	return c, nil
}

// enterCommand makes a command one that is in work: in one critical section, so that a cancel finds either it or leaves
// the tombstone that it runs into.
func (s *Session) enterCommand(c *command) *execution.Failure {
	x, id := s.x, c.req.GetCommandId()
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.tombs.has(id, time.Now()):
		return &execution.Failure{Code: execution.CodeCancelled, Origin: execution.OriginCaller, Text: "cancelled before it started"}
	case x.running[id] != nil || x.commands[id] != nil:
		return execution.Failf(execution.CodeDuplicateRun, execution.OriginEdge, "something with this id is in work")
	case x.draining:
		return execution.Failf(execution.CodeNodeDraining, execution.OriginNode, "the node is stopping")
	case s.asked >= maxCommands:
		return execution.Failf(execution.CodeOverloaded, execution.OriginNode, "%d commands are in work", s.asked)
	}
	s.asked++
	x.asked++
	x.commands[id] = c
	return nil
}

// settle says that a command isn't in work any more. It comes before the terminal: an edge that has read that may send
// the next command.
func (c *command) settle() {
	x := c.session.x
	x.mu.Lock()
	c.over = true
	c.session.asked--
	x.asked--
	x.calmLocked()
	x.mu.Unlock()
	c.back()
}

// run does the command and answers it. It ends with the stream, which is limited from the answer on.
func (c *command) run() {
	unhook := context.AfterFunc(c.ctx, c.stopping)
	terminal, o := c.kind.work(c)
	unhook()
	c.cancel(errAnswered)
	c.body.Close()
	c.settle()
	c.record(o)
	limit := time.AfterFunc(c.session.x.cfg.Timers.Linger, c.stream.Cancel)
	defer limit.Stop()
	if err := terminal(); err != nil {
		c.session.log.Debug().Str("command_id", c.req.GetCommandId()).Err(err).Msg("nobody took the answer of a command")
	}
	close(c.done)
	<-c.gone
}

// stopping wakes the command out of its reads and writes when it is cancelled.
func (c *command) stopping() {
	c.body.fail(context.Cause(c.ctx))
	if c.reply != nil {
		c.reply.interrupt()
	}
}

// read owns all reads of the stream until it ends: the input, then the wait for the edge's close, which before the
// answer is a cancel.
func (c *command) read() {
	defer c.leave()
	for {
		in, err := c.stream.ReadInput()
		var frame *transport.FrameError
		switch {
		case err == nil:
			if f := c.body.take(in); f != nil {
				c.cancel(f)
				c.body.Close()
			}
		case errors.As(err, &frame):
			c.cancel(execution.Failf(execution.CodeProtocol, execution.OriginEdge, "input can't be read: %s", frame.Text))
			select { // keep the stream, which can't be read any more, until the edge was told why
			case <-c.done:
			case <-c.stream.Link().Down():
			}
			return
		case errors.Is(err, transport.ErrLinkDown):
			c.cancel(execution.CauseLinkLost)
			return
		default:
			c.cancel(execution.CauseClientGone)
			return
		}
	}
}

// leave is the reader's end: nothing is sent on this stream any more.
func (c *command) leave() {
	c.stream.Cancel()
	x := c.session.x
	x.mu.Lock()
	delete(x.commands, c.req.GetCommandId())
	x.mu.Unlock()
	close(c.gone)
}

// record writes the one log line of a command. The edge asks for the status of its own accord again and again: such a
// line is for those who look for it.
func (c *command) record(o outcome) {
	level := zerolog.InfoLevel
	if c.req.GetType() == pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS {
		level = zerolog.DebugLevel
	}
	line := c.session.log.WithLevel(level).Str("command_id", c.req.GetCommandId()).
		Str("type", strings.TrimPrefix(c.req.GetType().String(), "COMMAND_TYPE_"))
	if id := c.req.GetSessionId(); id != "" {
		line = line.Str("session_id", loggable(id))
	}
	if name := c.req.GetAdapter(); name != "" {
		line = line.Str("adapter", loggable(name))
	}
	if c.reply != nil { // its path is one of a list
		seen := c.reply.answer()
		line = line.Str("method", c.req.GetMethod()).Str("path", c.req.GetPath()).Int("status", seen.status).Int64("bytes_out", seen.bytes)
	}
	if o.failure != nil {
		line = line.Stringer("origin", o.failure.Origin).Str("reason", o.failure.Text)
	}
	line.Stringer("outcome", o.status).Stringer("code", o.code()).Dur("duration_ms", time.Since(c.started)).Msg("command ended")
}

// accept says that a command other than OLLAMA_API starts. That nobody hears it shows at the answer.
func (c *command) accept() {
	id := c.req.GetSessionId()
	_ = c.stream.Write(&pb.NodeCommandResponse{Seq: 1, SessionId: id,
		Response: &pb.NodeCommandResponse_Accepted{Accepted: &pb.Accepted{SessionId: id}}})
}

// failed is the answer of a command other than OLLAMA_API that failed after it was accepted.
func (c *command) failed(o outcome) (func() error, outcome) {
	return c.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Error{Error: failureToWire(o.failure)}}), o
}

// says returns what writes the last message.
func (c *command) says(m *pb.NodeCommandResponse) func() error {
	m.Seq, m.SessionId = 2, c.req.GetSessionId()
	return func() error { return c.stream.Write(m) }
}

// rejectedCommand is the one message of a command that isn't done. Its type follows from the open.
func rejectedCommand(req *pb.NodeCommandRequest, f *execution.Failure) proto.Message {
	if req.GetType() == pb.CommandType_COMMAND_TYPE_OLLAMA_API {
		return &pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: rejection(f)}}
	}
	return &pb.NodeCommandResponse{Seq: 1, SessionId: req.GetSessionId(),
		Response: &pb.NodeCommandResponse_Rejected{Rejected: rejection(f)}}
}

// The commands that are about the node itself.

func (c *command) admitNothing() (func(), *execution.Failure) { return func() {}, nil }

// admitCapabilities refuses an adapter that isn't there.
func (c *command) admitCapabilities() (func(), *execution.Failure) {
	if name := c.req.GetAdapter(); name != "" && c.session.x.cfg.Router.Find(c.session.x.cfg.Edge, name) == nil {
		return nil, execution.Failf(execution.CodeUnknownAdapter, execution.OriginNode, "this node has no adapter of that name")
	}
	return func() {}, nil
}

// capabilities asks the providers what they are. Who doesn't answer in time is told of as it was known before, and who
// doesn't answer at all as unavailable.
func (c *command) capabilities() (func() error, outcome) {
	c.accept()
	x := c.session.x
	fresh := time.NewTimer(x.cfg.Timers.Fresh)
	defer fresh.Stop()
	var asked []<-chan struct{}
	for _, a := range x.cfg.Router.Adapters(x.cfg.Edge) {
		if a.Provider() != nil && c.asksFor(a.Spec().Name) {
			asked = append(asked, x.probe(a))
		}
	}
	for late := false; len(asked) > 0 && !late; {
		select {
		case <-asked[0]:
			asked = asked[1:]
		case <-fresh.C:
			late = true
		case <-c.ctx.Done():
			return c.failed(outcomeOfCause(context.Cause(c.ctx)))
		}
	}
	states := slices.DeleteFunc(x.cfg.Router.Snapshot(x.cfg.Edge), func(s router.State) bool { return !c.asksFor(s.Name) })
	return c.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Capabilities{
		Capabilities: &pb.Capabilities{Adapters: statesToWire(states)}}}), outcome{status: execution.StatusComplete}
}

// asksFor reports whether a command is about the adapter of that name.
func (c *command) asksFor(name string) bool {
	return c.req.GetAdapter() == "" || c.req.GetAdapter() == name
}

// transportStatus says how the link is.
func (c *command) transportStatus() (func() error, outcome) {
	c.accept()
	s := c.session
	s.x.mu.Lock()
	running := len(s.x.running)
	s.x.mu.Unlock()
	return c.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_TransportStatus{TransportStatus: &pb.TransportStatus{
		ConnectionGeneration: s.generation,
		LinkAgeMs:            time.Since(s.since).Milliseconds(),
		OpenStreams:          int32(s.link.Status().OpenStreams),
		InFlight:             int32(running),
	}}}), outcome{status: execution.StatusComplete}
}
