package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"iop/apps/node/internal/adapters/sse"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// maxWhole is the largest answer that is taken whole, when a provider doesn't stream.
const maxWhole = 16 << 20

// answer is a sink that makes events of a provider's answer as it comes, and at the end the outcome.
//
// An answer is complete after a finish reason, or after [DONE] when something was said before it. What happens on the
// connection after that doesn't matter any more, except for an error that the provider itself reports.
type answer struct {
	emit   execution.Emit
	events *sse.Reader
	calls  *execution.Assembler

	status int
	header http.Header
	form   form
	whole  []byte // of a whole answer, or of a refusal

	started bool // the start was emitted
	heard   bool // an event came
	said    bool // text, reasoning or a call was emitted
	finish  string
	done    bool // [DONE] came
	counter upstream.Counter
	emitErr error // the emitter wants no more
	verdict error // what the answer itself says went wrong
}

// form is what an answer's body is.
type form uint8

const (
	formUnknown form = iota // nothing but blanks came
	formEvents
	formWhole   // one JSON object
	formRefusal // of a status that is no success
)

func newAnswer(seed string, emit execution.Emit) *answer {
	a := &answer{emit: emit, calls: execution.NewAssembler(seed)}
	a.events = sse.New(0, a.event)
	return a
}

// Head implements [execution.TunnelSink].
func (a *answer) Head(status int, header http.Header) error {
	a.status, a.header = status, header.Clone()
	if status < 200 || status > 299 {
		a.form = formRefusal
		return nil
	}
	if f := upstream.Compressed(status, header); f != nil {
		return a.wrong(f)
	}
	return nil
}

// Body implements [execution.TunnelSink].
func (a *answer) Body(p []byte) error {
	if a.form == formUnknown {
		// The first byte tells, whatever the head says: providers label streams as JSON and errors as streams.
		if p = bytes.TrimLeft(p, " \t\r\n"); len(p) == 0 {
			return nil
		}
		if a.form = formEvents; p[0] == '{' {
			a.form = formWhole
		}
	}
	switch a.form {
	case formRefusal:
		a.whole = append(a.whole, p[:min(len(p), upstream.MaxRefusal-len(a.whole))]...)
		if len(a.whole) == upstream.MaxRefusal {
			return upstream.ErrEnough
		}
		return nil
	case formWhole:
		if len(a.whole)+len(p) > maxWhole {
			return a.wrong(a.decode(fmt.Sprintf("provider's answer is over the limit of %d bytes", maxWhole)))
		}
		a.whole = append(a.whole, p...)
		return nil
	}
	if err := a.events.Feed(p); err != nil {
		return a.stop(err)
	}
	return nil
}

// stop tells apart why the reading of events ended.
func (a *answer) stop(err error) error {
	if a.emitErr != nil || a.verdict != nil || errors.Is(err, upstream.ErrEnough) {
		return err
	}
	return a.wrong(err)
}

// Usage implements [execution.TunnelSink]. The answer counts for itself: it knows what it has counted when the stream
// breaks off.
func (a *answer) Usage(execution.Usage) error { return nil }

// wrong keeps what the answer itself says went wrong.
func (a *answer) wrong(err error) error {
	if a.verdict == nil {
		a.verdict = err
	}
	return err
}

// decode is the failure of an answer that can't be read.
func (a *answer) decode(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeAdapterDecode, Origin: execution.OriginProvider, Text: text, UpstreamStatus: a.status}
}

// truncated is the failure of an answer that ended, as far as the connection goes, before it was over. (ST-18)
func (a *answer) truncated(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeUpstreamTruncated, Origin: execution.OriginProvider, Text: text, UpstreamStatus: a.status}
}

// event takes one event of the stream.
func (a *answer) event(e sse.Event) error {
	data := bytes.TrimSpace(e.Data)
	a.heard = true
	switch {
	case e.Name == "error":
		return a.wrong(a.reported(data))
	case len(data) == 0:
		return nil
	case string(data) == "[DONE]":
		a.done = true
		return upstream.ErrEnough
	case data[0] != '{':
		return a.wrong(a.decode("an event of the provider's stream isn't a JSON object"))
	}
	var c chunk
	if json.Unmarshal(data, &c) != nil {
		return a.wrong(a.decode("an event of the provider's stream isn't one of this dialect"))
	}
	return a.take(&c)
}

// reported is the failure that an error event tells: an object with an error, or the error itself.
func (a *answer) reported(data []byte) error {
	var c chunk
	if json.Unmarshal(data, &c) == nil && upstream.IsError(c.Error) {
		return upstream.Reported(a.status, c.Error)
	}
	return upstream.Reported(a.status, data)
}

// take makes events of a chunk.
func (a *answer) take(c *chunk) error {
	if err := c.failure(a.status); err != nil {
		return a.wrong(err)
	}
	a.counter.Add(c.Usage)
	if len(c.Choices) == 0 && c.Model == "" {
		return nil // a sign of life
	}
	if !a.started {
		a.started = true
		if err := a.out(execution.Event{Kind: execution.EventStart, Model: c.Model}); err != nil {
			return err
		}
	}
	choice := c.first()
	if choice == nil {
		return nil
	}
	a.counter.Add(choice.Usage)
	s := choice.Delta
	if s == nil && !a.said {
		s = choice.Message // a whole answer
	}
	if s != nil {
		if err := a.say(s); err != nil {
			return err
		}
	}
	if reason := choice.finishReason(); reason != "" {
		a.finish = reason
	}
	return nil
}

// say emits what the model says.
func (a *answer) say(s *said) error {
	for _, e := range []execution.Event{
		{Kind: execution.EventReasoning, Text: s.reasoning()},
		{Kind: execution.EventDelta, Text: s.Content.text},
		{Kind: execution.EventDelta, Text: s.Refusal},
	} {
		if e.Text == "" {
			continue
		}
		a.said = true
		if err := a.out(e); err != nil {
			return err
		}
	}
	deltas, err := a.calls.Add(s.pieces()...)
	if err != nil {
		return a.wrong(err)
	}
	for _, d := range deltas {
		a.said = true
		if err := a.out(execution.Event{Kind: execution.EventToolCall, ToolCall: d}); err != nil {
			return err
		}
	}
	return nil
}

func (a *answer) out(e execution.Event) error {
	if err := a.emit(e); err != nil {
		a.emitErr = err
		return err
	}
	return nil
}

// end makes the outcome of what came and of how the exchange ended.
func (a *answer) end(ctx context.Context, err error) (execution.Completion, error) {
	if err != nil && ctx.Err() != nil {
		return execution.Completion{}, context.Cause(ctx)
	}
	err = a.outcome(err)
	if a.emitErr != nil {
		return execution.Completion{}, a.emitErr
	}
	usage := a.counter.Usage()
	if usage.Known() {
		if e := a.out(execution.Event{Kind: execution.EventUsage, Usage: usage}); e != nil {
			return execution.Completion{}, e
		}
	}
	if err != nil {
		return execution.Completion{}, err
	}
	return execution.Completion{FinishReason: a.finish, Usage: usage}, nil
}

// outcome returns why the answer isn't complete, nil if it is. broken is how the exchange failed.
func (a *answer) outcome(broken error) error {
	if a.verdict != nil {
		return a.verdict
	}
	switch a.form {
	case formRefusal:
		return upstream.Refused(a.status, a.header, a.whole) // whether its text came whole or not
	case formWhole:
		return a.takeWhole(broken)
	}
	if a.complete() {
		if err := a.brokenOff(); err != nil {
			return err
		}
		return a.calls.Finish()
	}
	if broken != nil {
		return broken
	}
	return a.incomplete()
}

// complete reports whether the dialect's own end was seen.
func (a *answer) complete() bool { return a.finish != "" || a.done && a.said }

// brokenOff is the failure that some finish reasons are.
func (a *answer) brokenOff() error {
	switch a.finish {
	case "error":
		return upstream.Reported(a.status, nil)
	case "abort":
		return a.truncated("provider broke its answer off")
	}
	return nil
}

// incomplete says why an answer whose connection ended well isn't complete.
func (a *answer) incomplete() error {
	kind, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	switch {
	case a.done:
		return a.truncated("provider ended its answer without having said anything")
	case a.form == formUnknown:
		return a.truncated("provider's answer is empty")
	case !a.heard && kind != "text/event-stream":
		return a.decode("provider's answer is neither an event stream nor a JSON object")
	}
	return a.truncated("provider ended its answer without a finish reason or [DONE]")
}

// takeWhole reads an answer that came as one object, whose end is the answer's.
func (a *answer) takeWhole(broken error) error {
	var c chunk
	switch err := json.Unmarshal(a.whole, &c); {
	case err == nil:
	case broken != nil:
		return broken
	case errors.Is(json.NewDecoder(bytes.NewReader(a.whole)).Decode(&json.RawMessage{}), io.ErrUnexpectedEOF):
		return a.truncated("provider's answer ends inside its JSON object")
	default:
		return a.decode("provider's answer isn't a JSON object of this dialect")
	}
	if err := a.take(&c); err != nil {
		return err
	}
	if choice := c.first(); choice == nil || choice.Message == nil && choice.Delta == nil {
		return a.decode("provider's answer has no message")
	}
	if err := a.brokenOff(); err != nil {
		return err
	}
	return a.calls.Finish()
}
