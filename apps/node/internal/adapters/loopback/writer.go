package loopback

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"iop/packages/go/execution"
)

// maxPiece is the largest piece that a sink is given.
const maxPiece = 16320

// writer gives an answer to a sink, as slowly and as badly as a plan says.
type writer struct {
	pace
	sink execution.TunnelSink
}

func (w *writer) head(status int, h http.Header) error {
	if w.ctx.Err() != nil {
		return context.Cause(w.ctx)
	}
	w.headed = true
	return w.sink.Head(status, h)
}

func (w *writer) body(p []byte) error {
	for len(p) > 0 {
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		n := min(len(p), maxPiece)
		if err := w.sink.Body(p[:n]); err != nil {
			return err
		}
		w.passed += n
		p = p[n:]
	}
	return nil
}

// whole gives a JSON answer.
func (w *writer) whole(status int, v any, more ...string) error {
	body, err := encode(v)
	if err != nil {
		return err
	}
	return w.wholeBytes(status, body, more...)
}

func (w *writer) wholeBytes(status int, body []byte, more ...string) error {
	h := http.Header{"Content-Type": {"application/json"}, "Content-Length": {itoa(len(body))}}
	for i := 0; i+1 < len(more); i += 2 {
		h.Set(more[i], more[i+1])
	}
	if err := w.head(status, h); err != nil {
		return err
	}
	return w.body(body)
}

// refuse gives an error in the dialect's form.
func (w *writer) refuse(status int, text string) error {
	kind := "invalid_request_error"
	var more []string
	switch {
	case status == http.StatusTooManyRequests:
		kind, more = "rate_limit_error", []string{"Retry-After", "1"}
	case status == http.StatusServiceUnavailable:
		kind, more = "server_error", []string{"Retry-After", "1"}
	case status >= 500:
		kind = "server_error"
	}
	return w.whole(status, object{"error": object{"message": text, "type": kind, "param": nil, "code": nil}}, more...)
}

// event gives one event of a stream; name may be empty.
func (w *writer) event(name string, v any) error {
	data, err := encode(v)
	if err != nil {
		return err
	}
	var line []byte
	if name != "" {
		line = append(append(append(line, "event: "...), name...), '\n')
	}
	line = append(append(line, "data: "...), data...)
	return w.body(append(line, "\n\n"...))
}

// encode returns v as JSON.
func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, execution.AsFailure(err, execution.OriginNode)
	}
	return body, nil
}

// misbehave does what a plan says instead of an answer; done is false when it says nothing of the kind.
func (w *writer) misbehave(p *plan) (done bool, err error) {
	if err := w.wait(p.first); err != nil {
		return true, err
	}
	switch {
	case p.fail != 0:
		return true, w.refuse(p.fail, "loopback: fail="+itoa(p.fail)+" was asked for")
	case p.garbage:
		if err := w.head(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}}); err != nil {
			return true, err
		}
		return true, w.body([]byte("data: {\"choices\":[{\x00\xff\xfe\n\n\ndata\ndata: }{ not json\r\n\r\nretry: never\n\n"))
	}
	return false, nil
}

// beginStream gives the head of a stream.
func (w *writer) beginStream() error {
	return w.head(http.StatusOK, http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-cache"}})
}

// deliver gives a whole answer of n tokens at the plan's pace, which for whole answers holds only when it was asked
// for. Cut and stall break it off in the middle, once its head is out.
func (w *writer) deliver(p *plan, n int, v any) error {
	body, err := encode(v)
	if err != nil {
		return err
	}
	if p.paced {
		if err := w.wait(time.Duration(n) * p.delay); err != nil {
			return err
		}
	}
	broken := p.cut >= 0 && p.cut <= n || p.stall >= 0 && p.stall <= n
	if !broken {
		return w.wholeBytes(http.StatusOK, body)
	}
	h := http.Header{"Content-Type": {"application/json"}, "Content-Length": {itoa(len(body))}}
	if err := w.head(http.StatusOK, h); err != nil {
		return err
	}
	if err := w.body(body[:len(body)/2]); err != nil {
		return err
	}
	if p.stall >= 0 && p.stall <= n {
		return w.wait(-1)
	}
	return w.truncated()
}

// count reports the tokens beside the stream.
func (w *writer) count(p *plan, c counted) error {
	if p.noUsage {
		return nil
	}
	return w.sink.Usage(c.usage())
}

// counted is how many tokens a request and its answer have; output includes reasoning.
type counted struct{ input, output, reasoning int }

func (c counted) usage() execution.Usage {
	input, output, reasoning := int64(c.input), int64(c.output), int64(c.reasoning)
	return execution.Usage{Input: &input, Output: &output, Reasoning: &reasoning}
}
