package openai

import (
	"strconv"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// whole writes an answer as one object. It implements [dialect.Answer].
type whole struct {
	dialect.Whole
	about dialect.About
}

// ContentType implements [dialect.Answer].
func (w *whole) ContentType() string { return "application/json" }

// Event implements [dialect.Answer].
func (w *whole) Event(dst []byte, e execution.Event) ([]byte, error) { return dst, w.Whole.Event(e) }

// End implements [dialect.Answer].
func (w *whole) End(dst []byte, c execution.Completion) ([]byte, error) {
	for i := range w.Calls {
		if w.Calls[i].ID == "" || w.Calls[i].Name == "" {
			return dst, nameless()
		}
	}
	dst = appendHead(dst, w.about, "chat.completion")
	dst = append(dst, `{"index":0,"message":{"role":"assistant","content":`...)
	if w.Text.Len() == 0 && len(w.Calls) > 0 {
		dst = append(dst, "null"...)
	} else {
		dst = dialect.AppendText(dst, w.Text.String())
	}
	dst = append(dst, `,"refusal":null`...)
	if w.Reasoning.Len() > 0 {
		dst = dialect.AppendText(append(dst, `,"reasoning_content":`...), w.Reasoning.String())
	}
	dst = appendCalls(dst, w.Calls)
	dst = append(dst, `},"logprobs":null,"finish_reason":`...)
	dst = dialect.AppendText(dst, finishReason(c.FinishReason, len(w.Calls) > 0))
	dst = append(dst, "}]"...)
	if u := told(c.Usage, w.Usage); counted(u) {
		dst = appendUsage(append(dst, `,"usage":`...), u)
	}
	return append(dst, "}\n"...), nil
}

// Fail implements [dialect.Answer]: nothing of the object was sent.
func (w *whole) Fail(dst []byte, _ *execution.Failure) []byte { return dst }

func appendCalls(dst []byte, calls []execution.ToolCall) []byte {
	for i, c := range calls {
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = dialect.AppendText(append(dst, `{"id":`...), c.ID)
		dst = dialect.AppendText(append(dst, `,"type":"function","function":{"name":`...), c.Name)
		dst = dialect.AppendText(append(dst, `,"arguments":`...), c.Arguments)
		dst = append(dst, "}}"...)
	}
	if len(calls) > 0 {
		dst = append(dst, ']')
	}
	return dst
}

// answerID makes an answer's id of its run's.
func answerID(runID string) string { return "chatcmpl-" + strings.TrimPrefix(runID, "run-") }

// finishReason is the API's word for how an answer ended: a run's words are the API's, and what a provider calls
// something else stays. Clients make their calls when the reason says so, whatever the provider does.
func finishReason(reason string, calls bool) string {
	switch {
	case calls && (reason == "" || reason == "stop"):
		return "tool_calls"
	case reason == "": // clients take an answer without a reason for broken
		return "stop"
	}
	return reason
}

// told returns the counts that came last.
func told(end, before execution.Usage) execution.Usage {
	if end.Known() {
		return end
	}
	return before
}

// counted reports whether what the API can't do without is known at least in part.
func counted(u execution.Usage) bool { return u.Input != nil || u.Output != nil }

// appendUsage appends token counts. The SDKs' types have the first three as plain numbers, so where one of two is
// unknown it is 0 here, and only here.
func appendUsage(dst []byte, u execution.Usage) []byte {
	var input, output int64
	if u.Input != nil {
		input = *u.Input
	}
	if u.Output != nil {
		output = *u.Output
	}
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), input, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), output, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), input+output, 10)
	if u.Cached != nil {
		dst = strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), *u.Cached, 10)
		dst = append(dst, '}')
	}
	if u.Reasoning != nil {
		dst = strconv.AppendInt(append(dst, `,"completion_tokens_details":{"reasoning_tokens":`...), *u.Reasoning, 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
