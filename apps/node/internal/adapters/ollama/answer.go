package ollama

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"iop/apps/node/internal/adapters/ndjson"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// answer is a sink that makes events of a provider's answer as it comes, and at the end the outcome.
//
// An answer is complete after the object that says "done":true, whatever the connection does after that, and by nothing
// else: when the engine dies Ollama's HTTP answer ends well. (provider notes 2, ST-18)
type answer struct {
	emit  execution.Emit
	lines *ndjson.Reader
	calls *execution.Assembler

	status  int
	header  http.Header
	refused bool   // of a status that is no success
	refusal []byte // what such an answer says

	started bool  // the start was emitted
	heard   bool  // a line came
	said    bool  // text, reasoning or a call was emitted
	made    int   // calls that the provider made
	last    reply // the one that says done
	emitErr error // the emitter wants no more
	verdict error // what the answer itself says went wrong
}

func newAnswer(seed string, emit execution.Emit) *answer {
	a := &answer{emit: emit, calls: execution.NewAssembler(seed)}
	a.lines = ndjson.New(0, a.line)
	return a
}

// Head implements [execution.TunnelSink].
func (a *answer) Head(status int, header http.Header) error {
	a.status, a.header = status, header.Clone()
	if status < 200 || status > 299 {
		a.refused = true
		return nil
	}
	if f := upstream.Compressed(status, header); f != nil {
		return a.wrong(f)
	}
	return nil
}

// Body implements [execution.TunnelSink].
func (a *answer) Body(p []byte) error {
	if a.refused {
		a.refusal = append(a.refusal, p[:min(len(p), upstream.MaxRefusal-len(a.refusal))]...)
		if len(a.refusal) == upstream.MaxRefusal {
			return upstream.ErrEnough
		}
		return nil
	}
	return a.stop(a.lines.Feed(p))
}

// stop tells apart why the reading of lines ended: one that is too long is the answer's fault.
func (a *answer) stop(err error) error {
	if err == nil || a.emitErr != nil || a.verdict != nil || errors.Is(err, upstream.ErrEnough) {
		return err
	}
	return a.wrong(err)
}

// Usage implements [execution.TunnelSink]. The answer counts for itself.
func (a *answer) Usage(execution.Usage) error { return nil }

// wrong keeps what the answer itself says went wrong.
func (a *answer) wrong(err error) error {
	if a.verdict == nil {
		a.verdict = err
	}
	return err
}

// fail is a failure of the answer.
func (a *answer) fail(code execution.Code, text string) *execution.Failure {
	return &execution.Failure{Code: code, Origin: execution.OriginProvider, Text: text, UpstreamStatus: a.status}
}

// line takes one line of the answer.
func (a *answer) line(text []byte) error {
	a.heard = true
	if text[0] != '{' {
		return a.wrong(a.fail(execution.CodeAdapterDecode, "a line of the provider's answer isn't a JSON object"))
	}
	var r reply
	if json.Unmarshal(text, &r) != nil {
		return a.wrong(a.fail(execution.CodeAdapterDecode, "a line of the provider's answer isn't one of this dialect"))
	}
	return a.take(&r)
}

// take makes events of a line. One that reports an error ends the answer, also after text. (ST-23)
func (a *answer) take(r *reply) error {
	if upstream.IsError(r.Error) {
		return a.wrong(upstream.Reported(a.status, r.Error))
	}
	if r.empty() {
		return nil // a sign of life
	}
	if !a.started {
		a.started = true
		if err := a.out(execution.Event{Kind: execution.EventStart, Model: r.Model}); err != nil {
			return err
		}
	}
	if err := a.say(r); err != nil {
		return err
	}
	if r.Done {
		a.last = *r
		return upstream.ErrEnough
	}
	return nil
}

// say emits what the model says.
func (a *answer) say(r *reply) error {
	for _, e := range []execution.Event{
		{Kind: execution.EventReasoning, Text: r.reasoning()},
		{Kind: execution.EventDelta, Text: r.text()},
	} {
		if e.Text == "" {
			continue
		}
		a.said = true
		if err := a.out(e); err != nil {
			return err
		}
	}
	pieces := r.pieces(a.made)
	a.made += len(pieces)
	calls, err := a.calls.Add(pieces...)
	if err != nil {
		return a.wrong(err)
	}
	for _, d := range calls {
		a.said = true
		if err := a.out(execution.Event{Kind: execution.EventToolCall, ToolCall: d}); err != nil {
			return err
		}
	}
	return nil
}

// out emits one event.
func (a *answer) out(e execution.Event) error {
	err := a.emit(e)
	if err != nil {
		a.emitErr = err
	}
	return err
}

// end returns how the run ended; err is how the exchange did.
func (a *answer) end(ctx context.Context, err error) (execution.Completion, error) {
	if err != nil && ctx.Err() != nil {
		return execution.Completion{}, context.Cause(ctx)
	}
	err = a.outcome(err)
	if a.emitErr != nil {
		return execution.Completion{}, a.emitErr
	}
	usage := a.last.usage()
	if usage.Known() {
		if e := a.out(execution.Event{Kind: execution.EventUsage, Usage: usage}); e != nil {
			return execution.Completion{}, e
		}
	}
	if err != nil {
		return execution.Completion{}, err
	}
	return execution.Completion{FinishReason: a.finish(), Usage: usage}, nil
}

// outcome returns why the answer isn't complete, nil if it is. broken is how the exchange failed.
func (a *answer) outcome(broken error) error {
	if rest := a.lines.Rest(); len(rest) > 0 && a.verdict == nil && a.emitErr == nil {
		a.takeRest(rest, broken)
	}
	switch {
	case a.verdict != nil:
		return a.verdict
	case a.refused:
		return upstream.Refused(a.status, a.header, a.refusal) // whether its text came whole or not
	case a.last.Done:
		return a.complete()
	case broken != nil:
		return broken
	case !a.heard:
		return a.fail(execution.CodeUpstreamTruncated, "provider's answer is empty")
	}
	return a.fail(execution.CodeUpstreamTruncated, `provider ended its answer without "done":true`)
}

// takeRest takes what came after the last line end: a whole answer, or a line that the provider didn't finish.
func (a *answer) takeRest(rest []byte, broken error) {
	err := json.NewDecoder(bytes.NewReader(rest)).Decode(&json.RawMessage{})
	switch {
	case !errors.Is(err, io.ErrUnexpectedEOF):
		_ = a.line(rest) // which keeps what it comes to
	case broken == nil:
		_ = a.wrong(a.fail(execution.CodeUpstreamTruncated, "provider's answer ends inside a JSON object"))
	}
}

// complete returns what may be wrong with an answer that has its end.
func (a *answer) complete() error {
	if reason := a.last.DoneReason; !a.said && (reason == "load" || reason == "unload") {
		return a.fail(execution.CodeUpstreamError, fmt.Sprintf("provider answered nothing; its done_reason is %q", reason))
	}
	return a.calls.Finish()
}

// finish returns why the model stopped, in the words that runs have: the dialect says stop after calls of tools, too.
func (a *answer) finish() string {
	if reason := a.last.DoneReason; a.calls.Len() == 0 || reason != "stop" && reason != "" {
		return reason
	}
	return "tool_calls"
}
