package anthropic

import (
	"encoding/json"
	"strconv"
	"strings"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// signature stands where Anthropic signs what its model thought. Clients that keep thinking only with a signature send
// it back with this one, and a run's provider sees it again. Anthropic's own servers refuse it.
const signature = "iop-unsigned"

// whole writes the answer as one object. It implements [dialect.Answer].
type whole struct {
	dialect.Whole
	about  dialect.About
	silent bool // about reasoning
}

// ContentType implements [dialect.Answer].
func (w *whole) ContentType() string { return "application/json" }

// Event implements [dialect.Answer].
func (w *whole) Event(dst []byte, e execution.Event) ([]byte, error) {
	if e.Kind == execution.EventReasoning && w.silent {
		return dst, nil
	}
	return dst, w.Whole.Event(e)
}

// End implements [dialect.Answer].
func (w *whole) End(dst []byte, c execution.Completion) ([]byte, error) {
	begin := len(dst)
	dst = appendMessage(dst, w.about)
	blocks := 0
	block := func(kind string) {
		if blocks++; blocks > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, `{"type":"`...), kind...), '"')
	}
	if w.Reasoning.Len() > 0 {
		block("thinking")
		dst = dialect.AppendText(append(dst, `,"thinking":`...), w.Reasoning.String())
		dst = append(dst, `,"signature":"`+signature+`"}`...)
	}
	if w.Text.Len() > 0 {
		block("text")
		dst = dialect.AppendText(append(dst, `,"text":`...), w.Text.String())
		dst = append(dst, '}')
	}
	for i := range w.Calls {
		call := &w.Calls[i]
		input, err := callInput(call, c.FinishReason)
		if err != nil {
			return dst[:begin], err
		}
		block("tool_use")
		dst = appendCall(dst, call.ID, call.Name)
		dst = append(append(append(dst, `,"input":`...), input...), '}')
	}
	dst = append(append(dst, `],"stop_reason":`...), stopReason(c.FinishReason, len(w.Calls) > 0)...)
	dst = append(dst, `,"stop_sequence":null,"usage":`...)
	dst = appendUsage(dst, latest(w.Usage, c.Usage))
	return append(dst, "}\n"...), nil
}

// Fail implements [dialect.Answer]: of an answer that is one object nothing was sent.
func (w *whole) Fail(dst []byte, _ *execution.Failure) []byte { return dst }

// appendMessage appends the beginning of a Message, up to its content.
func appendMessage(dst []byte, about dialect.About) []byte {
	dst = append(dst, `{"id":`...)
	dst = dialect.AppendText(dst, "msg_"+strings.TrimPrefix(about.RunID, "run-"))
	dst = append(dst, `,"type":"message","role":"assistant","model":`...)
	dst = dialect.AppendText(dst, about.Model)
	return append(dst, `,"content":[`...)
}

func appendCall(dst []byte, id, name string) []byte {
	dst = dialect.AppendText(append(dst, `,"id":`...), id)
	return dialect.AppendText(append(dst, `,"name":`...), name)
}

// callInput returns a call's arguments, which this API has as an object. Only where the answer's length ended within
// them is nothing said of them: no client makes a call after the stop reason max_tokens.
func callInput(c *execution.ToolCall, finish string) (string, error) {
	switch {
	case c.ID == "" || c.Name == "":
		return "", nameless()
	case blank(c.Arguments):
		return "{}", nil
	case isObject(c.Arguments):
		return c.Arguments, nil
	case finish == finishLength:
		return "{}", nil
	}
	return "", execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
		"the model called a tool with arguments that aren't a JSON object, which this API can't tell")
}

// nameless is the failure of an answer with a call that nobody could make.
func nameless() *execution.Failure {
	return execution.Failf(execution.CodeAdapterDecode, execution.OriginNode, "the answer has a tool call without an id or a name")
}

func isObject(text string) bool {
	for i := range len(text) {
		if c := text[i]; !isBlank(c) {
			return c == '{' && json.Valid([]byte(text))
		}
	}
	return false
}

func blank(text string) bool { return len(trimBlank(text)) == 0 }

// trimBlank cuts blanks in front of JSON.
func trimBlank(text string) string {
	for len(text) > 0 && isBlank(text[0]) {
		text = text[1:]
	}
	return text
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// The words with which a run ends.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishCalls  = "tool_calls"
	finishFilter = "content_filter"
)

// stopReason is the API's word for how an answer ended, in JSON. Words of a provider's that the API has too stay as
// they are, and others say no more than that the answer is over. A client makes its calls only after tool_use, so an
// answer with calls ends so, unless it was cut off.
func stopReason(finish string, calls bool) string {
	switch finish {
	case finishLength:
		return `"max_tokens"`
	case finishFilter:
		return `"refusal"`
	case "max_tokens", "refusal", "pause_turn", "model_context_window_exceeded", "stop_sequence", "tool_use":
		return `"` + finish + `"`
	}
	if calls || finish == finishCalls {
		return `"tool_use"`
	}
	return `"end_turn"`
}

// latest puts what an answer's end tells over what its events told.
func latest(u, end execution.Usage) execution.Usage {
	for _, count := range []struct{ seen, told **int64 }{
		{&u.Input, &end.Input}, {&u.Output, &end.Output}, {&u.Cached, &end.Cached}, {&u.Reasoning, &end.Reasoning},
	} {
		if *count.told != nil {
			*count.seen = *count.told
		}
	}
	return u
}

// appendUsage appends token counts. The SDKs can't do without input_tokens and output_tokens, so what is unknown of
// those is 0 here, and only here; the others are left out. The API counts what came from the cache beside
// input_tokens, not within.
func appendUsage(dst []byte, u execution.Usage) []byte {
	number := func(name string, n *int64) {
		dst = append(append(dst, name...), ':')
		if n == nil {
			n = new(int64)
		}
		dst = strconv.AppendInt(dst, *n, 10)
	}
	input := u.Input
	if input != nil && u.Cached != nil {
		rest := max(*input-*u.Cached, 0)
		input = &rest
	}
	number(`{"input_tokens"`, input)
	number(`,"output_tokens"`, u.Output)
	if u.Cached != nil {
		number(`,"cache_read_input_tokens"`, u.Cached)
	}
	if u.Reasoning != nil {
		number(`,"output_tokens_details":{"thinking_tokens"`, u.Reasoning)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
