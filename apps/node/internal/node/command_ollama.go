package node

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"runtime/debug"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
	pb "iop/proto/iop"
)

// The bounds of OLLAMA_API, in bytes. What a model says of itself can be long: its template, licence and tensors.
const (
	maxCommandBody   = 64 << 10
	maxCommandAnswer = 16 << 20
)

// ollamaInput is the length of the body that follows an OLLAMA_API command: only POST has one.
func ollamaInput(req *pb.NodeCommandRequest) int64 {
	if req.GetMethod() == http.MethodPost {
		return -1
	}
	return 0
}

// admitOllama refuses what isn't on the list, before anything is looked up, and takes the driver.
func (c *command) admitOllama() (func(), *execution.Failure) {
	s := c.session
	switch {
	case !s.ollama:
		return nil, badOpen("OLLAMA_API wasn't negotiated on this connection")
	case !httprules.OllamaCommand(c.req.GetMethod(), c.req.GetPath()):
		return nil, badOpen("OLLAMA_API carries GET /api/version, /api/tags, /api/ps and POST /api/show; everything else isn't a command")
	}
	driver, back, f := s.x.cfg.Router.Borrow(s.x.cfg.Edge, c.req.GetAdapter())
	if f != nil {
		return nil, f
	}
	if _, ok := driver.(execution.Commander); !ok {
		back()
		return nil, execution.Failf(execution.CodeBadRequest, execution.OriginNode, "the adapter has no Ollama API")
	}
	c.driver = driver
	c.reply = newReply(execution.KindTunnel, c.stream, false, func() { s.x.cfg.Observer.Late("emit") })
	return back, nil
}

// ollama carries the request to the provider and its response back.
func (c *command) ollama() (func() error, outcome) {
	o := c.carry()
	seen := c.reply.answer()
	return func() error { return c.reply.end(tunnelTerminal(o, seen)) }, o
}

func (c *command) carry() (o outcome) {
	defer func() {
		if p := recover(); p != nil { // its value may hold anything, so only its type is logged
			c.session.log.Error().Str("command_id", c.req.GetCommandId()).Type("panic", p).Bytes("stack", debug.Stack()).
				Msg("panic in a command")
			o = failed(execution.Failf(execution.CodeAdapterPanic, execution.OriginNode, "the adapter crashed"))
		}
	}()
	err := c.reply.begin(tunnelAccepted(c.req.GetSessionId()))
	var req *execution.TunnelRequest
	if err == nil {
		req, err = c.request()
	}
	if cause := context.Cause(c.ctx); cause != nil {
		return outcomeOfCause(cause).nothingSent()
	}
	if err != nil {
		return outcomeOf(c.ctx, err, c.reply.answer()).nothingSent()
	}
	sink := &commandSink{tunnelWork: tunnelWork{reply: c.reply, expected: -1}, left: maxCommandAnswer}
	err = c.driver.(execution.Commander).Command(c.ctx, req, sink) // checked at the open
	return outcomeOf(c.ctx, err, c.reply.answer())
}

// request reads the body and makes what the adapter gets.
func (c *command) request() (*execution.TunnelRequest, error) {
	req := &execution.TunnelRequest{Method: c.req.GetMethod(), Path: c.req.GetPath(), Header: http.Header{},
		Timers: c.session.x.cfg.Timers.provider()}
	if c.kind.input == 0 {
		return req, nil
	}
	body, err := io.ReadAll(io.LimitReader(c.body, maxCommandBody+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxCommandBody {
		return nil, execution.Failf(execution.CodeBodyTooLarge, execution.OriginEdge, "the command's body is over %d bytes", maxCommandBody)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return req, nil
}

// commandSink takes the response of one command: a tunnel's, with a bound.
type commandSink struct {
	tunnelWork
	left int // bytes; guarded by reply.mu
}

// Body implements execution.TunnelSink.
func (w *commandSink) Body(p []byte) error {
	if !w.fits(len(p)) {
		return w.fail(execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"the provider's answer is over the %d bytes that a command carries", maxCommandAnswer))
	}
	return w.tunnelWork.Body(p)
}

func (w *commandSink) fits(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > w.left {
		return false
	}
	w.left -= n
	return true
}
