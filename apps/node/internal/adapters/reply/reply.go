// Package reply turns a provider's answer to a run into events and one outcome, as far as the dialects of event streams
// do that alike: it tells streams, whole objects and refusals apart, bounds what is kept, puts tool calls together,
// counts tokens, and decides which of several troubles the run ends with.
//
// It knows no dialect: what an event or an object says, and what ends an answer, is for a [Dialect] to tell. It does no
// I/O.
package reply

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

// MaxWhole is the largest answer that is taken whole, when a provider doesn't stream.
const MaxWhole = 16 << 20

// ErrNoEnd is what a dialect says of an answer whose own end didn't come.
var ErrNoEnd = errors.New("no end")

// Dialect understands the answers of one dialect. One goroutine calls it. What it makes of them it says by the methods
// of the Reply; an error of theirs it returns.
type Dialect interface {
	// Event takes one event of a stream. An error ends the answer; [upstream.ErrEnough] says that nothing more is needed.
	Event(e sse.Event) error
	// Object takes an answer that is one JSON object, which ends it.
	Object(object []byte) error
	// End returns the finish reason of a stream that is over, in the words of runs: an error if the answer isn't whole
	// after all, ErrNoEnd if the dialect's own end didn't come. Answers of one object are asked too, but need no end.
	End() (finish string, err error)
}

// Reply is a sink for one answer. An answer is complete by its dialect's own end; what happens on the connection after
// that doesn't matter any more, except for an error that the provider itself reports.
type Reply struct {
	emit    execution.Emit
	dialect Dialect
	ending  string
	events  *sse.Reader
	calls   *execution.Assembler
	counter upstream.Counter

	status int
	header http.Header
	form   form
	whole  []byte // of an answer that is one object, or of a refusal

	started bool // the start was emitted
	heard   bool // an event came
	said    bool // text, reasoning or a call was emitted
	emitErr error
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

// New returns the sink for the answer to the run with the id seed. ending names the dialect's own end, for the text of
// a failure.
func New(seed string, emit execution.Emit, d Dialect, ending string) *Reply {
	r := &Reply{emit: emit, dialect: d, ending: ending, calls: execution.NewAssembler(seed)}
	r.events = sse.New(0, r.event)
	return r
}

// Head implements [execution.TunnelSink].
func (r *Reply) Head(status int, header http.Header) error {
	r.status, r.header = status, header.Clone()
	if status < 200 || status > 299 {
		r.form = formRefusal
		return nil
	}
	if f := upstream.Compressed(status, header); f != nil {
		return r.wrong(f)
	}
	return nil
}

// Body implements [execution.TunnelSink].
func (r *Reply) Body(p []byte) error {
	if r.form == formUnknown {
		// The first byte tells, whatever the head says: providers label streams as JSON and errors as streams.
		if p = bytes.TrimLeft(p, " \t\r\n"); len(p) == 0 {
			return nil
		}
		if r.form = formEvents; p[0] == '{' {
			r.form = formWhole
		}
	}
	switch r.form {
	case formRefusal:
		r.whole = append(r.whole, p[:min(len(p), upstream.MaxRefusal-len(r.whole))]...)
		if len(r.whole) == upstream.MaxRefusal {
			return upstream.ErrEnough
		}
		return nil
	case formWhole:
		if len(r.whole)+len(p) > MaxWhole {
			return r.wrong(r.Undecodable(fmt.Sprintf("provider's answer is over the limit of %d bytes", MaxWhole)))
		}
		r.whole = append(r.whole, p...)
		return nil
	}
	if err := r.events.Feed(p); err != nil {
		return r.stop(err)
	}
	return nil
}

// Usage implements [execution.TunnelSink]. The reply counts for itself: it knows what it has counted when the stream
// breaks off.
func (r *Reply) Usage(execution.Usage) error { return nil }

func (r *Reply) event(e sse.Event) error {
	r.heard = true
	return r.dialect.Event(e)
}

// stop keeps why the reading of events ended, unless it was the emitter or the dialect's own end.
func (r *Reply) stop(err error) error {
	if r.emitErr != nil || errors.Is(err, upstream.ErrEnough) {
		return err
	}
	return r.wrong(err)
}

// wrong keeps the first thing that the answer itself says went wrong.
func (r *Reply) wrong(err error) error {
	if r.verdict == nil {
		r.verdict = err
	}
	return err
}

// Start emits the start, once; model is what the provider calls it.
func (r *Reply) Start(model string) error {
	if r.started {
		return nil
	}
	r.started = true
	return r.out(execution.Event{Kind: execution.EventStart, Model: model})
}

// Say emits a piece of the answer's text or of its reasoning, by its kind; an empty one is none.
func (r *Reply) Say(kind execution.EventKind, text string) error {
	if text == "" {
		return nil
	}
	r.said = true
	return r.out(execution.Event{Kind: kind, Text: text})
}

// Call emits what one message of the provider tells of tool calls.
func (r *Reply) Call(pieces ...execution.ToolCallPiece) error {
	deltas, err := r.calls.Add(pieces...)
	if err != nil {
		return err
	}
	for _, d := range deltas {
		r.said = true
		if err := r.out(execution.Event{Kind: execution.EventToolCall, ToolCall: d}); err != nil {
			return err
		}
	}
	return nil
}

// Count reads a usage object.
func (r *Reply) Count(object []byte) { r.counter.Add(object) }

// CountInput reads a usage object that was told before the answer's length was known.
func (r *Reply) CountInput(object []byte) {
	r.counter.Add(object)
	r.counter.ForgetOutput()
}

// Said reports whether the provider said anything: text, reasoning, or a call.
func (r *Reply) Said() bool { return r.said }

// Status returns the status of the answer, 0 before its head.
func (r *Reply) Status() int { return r.status }

// Undecodable is the failure of an answer that can't be read.
func (r *Reply) Undecodable(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeAdapterDecode, Origin: execution.OriginProvider, Text: text, UpstreamStatus: r.status}
}

// Truncated is the failure of an answer that ended, as far as the connection goes, before it was over. (ST-18)
func (r *Reply) Truncated(text string) *execution.Failure {
	return &execution.Failure{Code: execution.CodeUpstreamTruncated, Origin: execution.OriginProvider, Text: text, UpstreamStatus: r.status}
}

func (r *Reply) out(e execution.Event) error {
	if err := r.emit(e); err != nil {
		r.emitErr = err
		return err
	}
	return nil
}

// Finish makes the outcome of what came and of err, which is how the exchange ended.
func (r *Reply) Finish(ctx context.Context, err error) (execution.Completion, error) {
	if err != nil && ctx.Err() != nil {
		return execution.Completion{}, context.Cause(ctx)
	}
	finish, err := r.outcome(err)
	if r.emitErr != nil {
		return execution.Completion{}, r.emitErr
	}
	usage := r.counter.Usage()
	if usage.Known() {
		if e := r.out(execution.Event{Kind: execution.EventUsage, Usage: usage}); e != nil {
			return execution.Completion{}, e
		}
	}
	if err != nil {
		return execution.Completion{}, err
	}
	return execution.Completion{FinishReason: finish, Usage: usage}, nil
}

// outcome returns the finish reason, or why the answer isn't complete. broken is how the exchange failed.
func (r *Reply) outcome(broken error) (finish string, err error) {
	switch {
	case r.verdict != nil:
		return "", r.verdict
	case r.form == formRefusal:
		return "", upstream.Refused(r.status, r.header, r.whole) // whether its text came whole or not
	case r.form == formWhole:
		if err := r.takeWhole(broken); err != nil {
			return "", err
		}
	}
	finish, err = r.dialect.End()
	switch {
	case !errors.Is(err, ErrNoEnd):
	case r.form == formWhole:
		err = nil
	case broken != nil:
		err = broken
	default:
		err = r.incomplete()
	}
	if err != nil {
		return "", err
	}
	return finish, r.calls.Finish()
}

// takeWhole reads an answer that came as one object, whose end is the answer's.
func (r *Reply) takeWhole(broken error) error {
	switch {
	case json.Valid(r.whole):
		return r.dialect.Object(r.whole)
	case broken != nil:
		return broken
	case errors.Is(json.NewDecoder(bytes.NewReader(r.whole)).Decode(&json.RawMessage{}), io.ErrUnexpectedEOF):
		return r.Truncated("provider's answer ends inside its JSON object")
	}
	return r.Undecodable("provider's answer isn't a JSON object of this dialect")
}

// incomplete says why an answer whose connection ended well isn't complete.
func (r *Reply) incomplete() error {
	kind, _, _ := mime.ParseMediaType(r.header.Get("Content-Type"))
	switch {
	case r.form == formUnknown:
		return r.Truncated("provider's answer is empty")
	case !r.heard && kind != "text/event-stream":
		return r.Undecodable("provider's answer is neither an event stream nor a JSON object")
	}
	return r.Truncated("provider ended its answer without " + r.ending)
}
