package openai

import (
	"strconv"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// stream writes an answer as server-sent events: a chunk for the role, one for each piece of the answer, one for how it
// ended, with include_usage one for the token counts, and [DONE]. It implements [dialect.Answer].
type stream struct {
	head  []byte // of each chunk, up to the list of choices
	tail  []byte // of each chunk but that with the counts, behind the list
	count bool   // the caller asked for token counts
	begun bool   // the role was told
	calls []bool // by index: the call has begun
	usage execution.Usage
}

func newStream(about dialect.About, includeUsage bool) *stream {
	s := &stream{count: includeUsage}
	s.head = appendHead(append(s.head, "data: "...), about, "chat.completion.chunk")
	s.tail = []byte("]}\n\n")
	if includeUsage {
		// Each chunk but one has it, as the API says, and readers of its own SDKs take null for untold.
		s.tail = []byte(`],"usage":null}` + "\n\n")
	}
	return s
}

// appendHead appends the beginning of an answer's object, up to its choices.
func appendHead(dst []byte, about dialect.About, object string) []byte {
	dst = dialect.AppendText(append(dst, `{"id":`...), answerID(about.RunID))
	dst = append(append(append(dst, `,"object":"`...), object...), `","created":`...)
	dst = strconv.AppendInt(dst, about.Created.Unix(), 10)
	dst = dialect.AppendText(append(dst, `,"model":`...), about.Model)
	return append(dst, `,"choices":[`...)
}

// ContentType implements [dialect.Answer].
func (s *stream) ContentType() string { return "text/event-stream" }

// Event implements [dialect.Answer].
func (s *stream) Event(dst []byte, e execution.Event) ([]byte, error) {
	dst = s.begin(dst)
	switch e.Kind {
	case execution.EventDelta:
		dst = s.text(dst, "content", e.Text)
	case execution.EventReasoning:
		dst = s.text(dst, "reasoning_content", e.Text)
	case execution.EventToolCall:
		return s.call(dst, e.ToolCall)
	case execution.EventUsage:
		s.usage = e.Usage
	}
	return dst, nil
}

// End implements [dialect.Answer].
func (s *stream) End(dst []byte, c execution.Completion) ([]byte, error) {
	dst = s.begin(dst)
	dst = append(append(dst, s.head...), `{"index":0,"delta":{},"finish_reason":`...)
	dst = dialect.AppendText(dst, finishReason(c.FinishReason, len(s.calls) > 0))
	dst = append(append(dst, '}'), s.tail...)
	if u := told(c.Usage, s.usage); s.count && counted(u) {
		dst = append(append(dst, s.head...), `],"usage":`...)
		dst = append(appendUsage(dst, u), "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...), nil
}

// Fail implements [dialect.Answer].
func (s *stream) Fail(dst []byte, f *execution.Failure) []byte {
	return append(append(append(dst, "data: "...), encodeError(typeServer, f, "")...), "\n\n"...)
}

// begin appends the first chunk, which every answer has: SDKs refuse one without a role. Its content is null, since an
// empty text makes some of them believe that the answer's text has begun.
func (s *stream) begin(dst []byte) []byte {
	if s.begun {
		return dst
	}
	s.begun = true
	dst = append(dst, s.head...)
	return s.end(append(dst, `{"index":0,"delta":{"role":"assistant","content":null`...))
}

// end appends the end of a chunk that says something of the message.
func (s *stream) end(dst []byte) []byte {
	return append(append(dst, `},"finish_reason":null}`...), s.tail...)
}

func (s *stream) text(dst []byte, member, text string) []byte {
	if text == "" {
		return dst
	}
	dst = append(append(dst, s.head...), `{"index":0,"delta":{"`...)
	dst = append(append(dst, member...), `":`...)
	return s.end(dialect.AppendText(dst, text))
}

// call appends a piece of a tool call. The first of a call has its id, type and name, the others have an index and
// arguments only, since SDKs put together what repeats.
func (s *stream) call(dst []byte, d execution.ToolCallDelta) ([]byte, error) {
	if d.Index < 0 || d.Index >= dialect.MaxCalls { // it comes from the wire
		return dst, execution.Failf(execution.CodeAdapterDecode, execution.OriginNode,
			"the answer has a tool call numbered %d, over %d", d.Index, dialect.MaxCalls)
	}
	for len(s.calls) <= d.Index {
		s.calls = append(s.calls, false)
	}
	if !s.calls[d.Index] && (d.ID == "" || d.Name == "") {
		return dst, nameless()
	}
	if s.calls[d.Index] && d.Arguments == "" {
		return dst, nil
	}
	dst = append(append(dst, s.head...), `{"index":0,"delta":{"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(d.Index), 10)
	dst = append(dst, ',')
	if !s.calls[d.Index] {
		s.calls[d.Index] = true
		dst = dialect.AppendText(append(dst, `"id":`...), d.ID)
		dst = dialect.AppendText(append(dst, `,"type":"function","function":{"name":`...), d.Name)
		dst = append(dst, ',')
	} else {
		dst = append(dst, `"function":{`...)
	}
	dst = dialect.AppendText(append(dst, `"arguments":`...), d.Arguments)
	return s.end(append(dst, "}}]"...)), nil
}

// nameless is the failure of an answer with a tool call that nobody could make.
func nameless() *execution.Failure {
	return execution.Failf(execution.CodeAdapterDecode, execution.OriginNode, "the answer has a tool call without an id or a name")
}
