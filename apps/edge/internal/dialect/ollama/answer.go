package ollama

import (
	"encoding/json"
	"strings"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// answer writes one run's answer as Ollama does: a line of JSON for each piece and one with done set at the end, or all
// of it as one object. It implements [dialect.Answer].
type answer struct {
	generate bool // else chat
	stream   bool
	ran      bool // else the model was only loaded or unloaded
	about    dialect.About
	now      func() time.Time

	whole dialect.Whole // of a stream the tool calls and the usage alone
}

// line is one line of a stream, or the whole answer. Members that are zero or unknown Ollama leaves out, too.
type line struct {
	Model     string    `json:"model"`
	CreatedAt time.Time `json:"created_at"`

	Message *said `json:"message,omitempty"` // chat

	Response *string `json:"response,omitempty"` // generate
	Thinking string  `json:"thinking,omitempty"` // generate

	Done            bool   `json:"done"`
	DoneReason      string `json:"done_reason,omitempty"`
	TotalDuration   int64  `json:"total_duration,omitempty"` // ns
	PromptEvalCount *int64 `json:"prompt_eval_count,omitempty"`
	EvalCount       *int64 `json:"eval_count,omitempty"`

	ToolCalls []call `json:"tool_calls,omitempty"` // generate
}

// said is what the model said in a chat. Content is there even when it is empty: clients read it without asking.
type said struct {
	Role      string `json:"role"`
	Content   string `json:"content"`
	Thinking  string `json:"thinking,omitempty"`
	ToolCalls []call `json:"tool_calls,omitempty"`
}

type call struct {
	ID       string       `json:"id,omitempty"`
	Function calledByName `json:"function"`
}

type calledByName struct {
	Index     int             `json:"index"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// ContentType implements [dialect.Answer].
func (a *answer) ContentType() string {
	if a.stream {
		return "application/x-ndjson"
	}
	return "application/json; charset=utf-8"
}

// Event implements [dialect.Answer]. A tool call is told whole, and so at the end: only there it is sure that no piece of
// it is to come.
func (a *answer) Event(dst []byte, e execution.Event) ([]byte, error) {
	if !a.stream {
		return dst, a.whole.Event(e)
	}
	switch e.Kind {
	case execution.EventDelta:
		return a.piece(dst, e.Text, ""), nil
	case execution.EventReasoning:
		return a.piece(dst, "", e.Text), nil
	case execution.EventToolCall, execution.EventUsage:
		return dst, a.whole.Event(e)
	}
	return dst, nil
}

// piece appends a line with a piece of text or of reasoning.
func (a *answer) piece(dst []byte, text, thinking string) []byte {
	if text == "" && thinking == "" {
		return dst
	}
	return append(append(dst, encode(a.line(text, thinking, nil))...), '\n')
}

// line returns a line that isn't the last.
func (a *answer) line(text, thinking string, calls []call) *line {
	l := &line{Model: a.about.Model, CreatedAt: a.now().UTC()}
	if a.generate {
		l.Response, l.Thinking, l.ToolCalls = &text, thinking, calls
	} else {
		l.Message = &said{Role: "assistant", Content: text, Thinking: thinking, ToolCalls: calls}
	}
	return l
}

// End implements [dialect.Answer].
func (a *answer) End(dst []byte, c execution.Completion) ([]byte, error) {
	calls, err := a.calls(c.FinishReason)
	if err != nil {
		return dst, err
	}
	if !a.stream {
		last := a.line(a.whole.Text.String(), a.whole.Reasoning.String(), calls)
		a.finish(last, c)
		return append(dst, encode(last)...), nil
	}
	for i := range calls {
		dst = append(append(dst, encode(a.line("", "", calls[i:i+1]))...), '\n')
	}
	last := a.line("", "", nil)
	a.finish(last, c)
	return append(append(dst, encode(last)...), '\n'), nil
}

// finish makes a line the last. How long loading and each of the two phases took nobody knows here, so only the whole
// time is told.
func (a *answer) finish(l *line, c execution.Completion) {
	l.Done, l.DoneReason = true, c.FinishReason
	if !a.ran {
		return
	}
	switch c.FinishReason {
	case "", "tool_calls": // Ollama has no word for a call
		l.DoneReason = "stop"
	}
	l.PromptEvalCount, l.EvalCount = a.whole.Usage.Input, a.whole.Usage.Output
	if c.Usage.Input != nil {
		l.PromptEvalCount = c.Usage.Input
	}
	if c.Usage.Output != nil {
		l.EvalCount = c.Usage.Output
	}
	if !a.about.Created.IsZero() {
		l.TotalDuration = max(a.now().Sub(a.about.Created).Nanoseconds(), 0)
	}
}

// calls returns the answer's tool calls. Ollama's clients take arguments for an object: what the provider gave as
// something else can't be told them. But a call that the answer's length cut off is left out, as the end's reason says.
func (a *answer) calls(reason string) ([]call, error) {
	var out []call
	for _, c := range a.whole.Calls {
		arguments := json.RawMessage(c.Arguments)
		if strings.TrimSpace(c.Arguments) == "" {
			arguments = json.RawMessage("{}")
		}
		var object map[string]json.RawMessage
		whole := json.Unmarshal(arguments, &object) == nil && object != nil
		switch {
		case c.ID == "" || c.Name == "":
			return nil, execution.Failf(execution.CodeAdapterDecode, execution.OriginNode, "the answer has a tool call without an id or a name")
		case whole:
			out = append(out, call{ID: c.ID, Function: calledByName{Index: len(out), Name: c.Name, Arguments: arguments}})
		case reason != "length":
			return nil, execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
				"the model called a tool with arguments that aren't a JSON object, which this API can't tell")
		}
	}
	return out, nil
}

// Fail implements [dialect.Answer].
func (a *answer) Fail(dst []byte, f *execution.Failure) []byte {
	if !a.stream {
		return dst // nothing of it was sent
	}
	return append(append(dst, encodeError(f)...), '\n')
}
