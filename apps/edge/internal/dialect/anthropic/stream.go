package anthropic

import (
	"strconv"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// maxHeld bounds what a stream holds back, in bytes.
const maxHeld = 4 << 20

// blockCost is what a block that waits takes beside its text, in bytes: many may have next to none.
const blockCost = 256

// stream writes the answer as events. Content blocks come one after the other in this API, and clients rely on that,
// while a run's calls may come side by side and mixed with text. So a call's block stays open until its arguments are
// an object: what belongs elsewhere waits until then and follows in the order in which it came. The first call is
// never held back, and nothing is held back where a provider tells one thing after the other.
//
// It implements [dialect.Answer].
type stream struct {
	about  dialect.About
	silent bool // about reasoning
	most   int  // that is held

	begun   bool
	index   int      // of the block that is open, or comes next
	open    *block   // nil = none
	waiting []*block // behind open, which is a call
	closed  map[int]bool
	calls   bool // there were some
	held    int  // bytes in waiting, and of open's arguments
	usage   execution.Usage
}

// block is one content block.
type block struct {
	kind execution.EventKind // EventDelta, EventReasoning or EventToolCall
	call execution.ToolCall  // of EventToolCall; without arguments
	at   int                 // the call's index
	text []byte              // of a call: its arguments so far; else what waits
	end  objectEnd
}

// ContentType implements [dialect.Answer].
func (s *stream) ContentType() string { return "text/event-stream" }

// Event implements [dialect.Answer].
func (s *stream) Event(dst []byte, e execution.Event) ([]byte, error) {
	switch e.Kind {
	case execution.EventUsage:
		s.usage = latest(s.usage, e.Usage)
		return dst, nil // message_start shows them, if it is still to come
	case execution.EventToolCall:
		dst = s.begin(dst)
		s.calls = true
		return s.call(dst, e.ToolCall)
	case execution.EventReasoning, execution.EventDelta:
		dst = s.begin(dst)
		if e.Text == "" || e.Kind == execution.EventReasoning && s.silent {
			return dst, nil
		}
		return s.text(dst, e.Kind, e.Text)
	}
	return s.begin(dst), nil
}

// text takes a piece of text or reasoning.
func (s *stream) text(dst []byte, kind execution.EventKind, text string) ([]byte, error) {
	b := s.open
	if len(s.waiting) > 0 {
		b = s.waiting[len(s.waiting)-1]
	}
	if b == nil || b.kind != kind {
		var err error
		b = &block{kind: kind}
		if dst, err = s.add(dst, b); err != nil {
			return dst, err
		}
	}
	if b == s.open {
		return s.delta(dst, b, text), nil
	}
	b.text = append(b.text, text...)
	return dst, s.hold(len(text))
}

// call takes a piece of a call.
func (s *stream) call(dst []byte, d execution.ToolCallDelta) ([]byte, error) {
	b := s.find(d.Index)
	if b == nil {
		switch {
		case d.Index < 0 || d.Index >= dialect.MaxCalls: // it comes from the wire
			return dst, execution.Failf(execution.CodeAdapterDecode, execution.OriginNode,
				"the answer has a tool call numbered %d, over %d", d.Index, dialect.MaxCalls)
		case s.closed[d.Index] && blank(d.Arguments):
			return dst, nil
		case s.closed[d.Index]:
			return dst, execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
				"the answer goes on with a tool call after its arguments were complete")
		case d.ID == "" || d.Name == "":
			return dst, nameless()
		}
		var err error
		b = &block{kind: execution.EventToolCall, at: d.Index, call: execution.ToolCall{ID: d.ID, Name: d.Name}}
		if dst, err = s.add(dst, b); err != nil {
			return dst, err
		}
	}
	text := d.Arguments
	if len(b.text) == 0 {
		text = trimBlank(text) // clients read no arguments at all from blanks
	}
	b.text = append(b.text, text...)
	b.end.write(text)
	if err := s.hold(len(text)); err != nil || b != s.open {
		return dst, err
	}
	dst = s.delta(dst, b, text)
	if b.end.complete() && len(s.waiting) > 0 {
		return s.advance(dst)
	}
	return dst, nil
}

// find returns the block of a call that is open or waits.
func (s *stream) find(index int) *block {
	if b := s.open; b != nil && b.kind == execution.EventToolCall && b.at == index {
		return b
	}
	for _, b := range s.waiting {
		if b.kind == execution.EventToolCall && b.at == index {
			return b
		}
	}
	return nil
}

// add begins a block, or lets it wait behind a call whose arguments aren't complete.
func (s *stream) add(dst []byte, b *block) ([]byte, error) {
	if s.open != nil && s.open.kind == execution.EventToolCall && !s.open.end.complete() {
		s.waiting = append(s.waiting, b)
		return dst, s.hold(blockCost)
	}
	dst, err := s.stop(dst, "")
	if err != nil {
		return dst, err
	}
	return s.start(dst, b), nil
}

// advance ends the block that is open and begins those that wait behind it, up to the first that isn't complete. The
// last one stays open.
func (s *stream) advance(dst []byte) ([]byte, error) {
	for {
		var err error
		if dst, err = s.stop(dst, ""); err != nil {
			return dst, err
		}
		b := s.next()
		dst = s.start(dst, b)
		if len(s.waiting) == 0 || b.kind == execution.EventToolCall && !b.end.complete() {
			return dst, nil
		}
	}
}

// next takes the first block that waits.
func (s *stream) next() *block {
	b := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	s.held -= blockCost
	return b
}

// hold counts what is kept.
func (s *stream) hold(n int) error {
	if s.held += n; s.held > s.most {
		return execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
			"the answer has more than %d bytes of tool calls that come side by side", s.most)
	}
	return nil
}

// End implements [dialect.Answer].
func (s *stream) End(dst []byte, c execution.Completion) ([]byte, error) {
	dst = s.begin(dst)
	for {
		var err error
		if dst, err = s.stop(dst, c.FinishReason); err != nil {
			return dst, err
		}
		if len(s.waiting) == 0 {
			break
		}
		dst = s.start(dst, s.next())
	}
	dst = event(dst, "message_delta")
	dst = append(append(dst, `,"delta":{"stop_reason":`...), stopReason(c.FinishReason, s.calls)...)
	dst = append(dst, `,"stop_sequence":null},"usage":`...)
	dst = appendUsage(dst, latest(s.usage, c.Usage))
	return done(event(done(dst), "message_stop")), nil
}

// Fail implements [dialect.Answer].
func (s *stream) Fail(dst []byte, f *execution.Failure) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = appendError(dst, streamErrorType(f.Code), f, "")
	return append(dst, "\n\n"...)
}

// begin writes the message's beginning, once.
func (s *stream) begin(dst []byte) []byte {
	if s.begun {
		return dst
	}
	s.begun = true
	dst = append(event(dst, "message_start"), `,"message":`...)
	dst = appendMessage(dst, s.about)
	dst = append(dst, `],"stop_reason":null,"stop_sequence":null,"usage":`...)
	dst = appendUsage(dst, execution.Usage{Input: s.usage.Input, Cached: s.usage.Cached})
	return done(append(dst, '}'))
}

// start opens a block and writes what it has.
func (s *stream) start(dst []byte, b *block) []byte {
	s.open = b
	dst = s.place(event(dst, "content_block_start"))
	dst = append(dst, `,"content_block":`...)
	switch b.kind {
	case execution.EventReasoning:
		dst = append(dst, `{"type":"thinking","thinking":"","signature":""}`...)
	case execution.EventToolCall:
		dst = appendCall(append(dst, `{"type":"tool_use"`...), b.call.ID, b.call.Name)
		dst = append(dst, `,"input":{}}`...)
	default:
		dst = append(dst, `{"type":"text","text":""}`...)
	}
	dst = s.delta(done(dst), b, string(b.text))
	if b.kind != execution.EventToolCall {
		s.held -= len(b.text)
		b.text = nil
	}
	return dst
}

// delta writes a piece of the block that is open.
func (s *stream) delta(dst []byte, b *block, text string) []byte {
	if text == "" {
		return dst
	}
	dst = s.place(event(dst, "content_block_delta"))
	switch b.kind {
	case execution.EventReasoning:
		dst = append(dst, `,"delta":{"type":"thinking_delta","thinking":`...)
	case execution.EventToolCall:
		dst = append(dst, `,"delta":{"type":"input_json_delta","partial_json":`...)
	default:
		dst = append(dst, `,"delta":{"type":"text_delta","text":`...)
	}
	return done(append(dialect.AppendText(dst, text), '}'))
}

// stop closes the block that is open. Finish is how the answer ended, "" = it goes on.
func (s *stream) stop(dst []byte, finish string) ([]byte, error) {
	b := s.open
	if b == nil {
		return dst, nil
	}
	switch b.kind {
	case execution.EventReasoning:
		dst = s.place(event(dst, "content_block_delta"))
		dst = done(append(dst, `,"delta":{"type":"signature_delta","signature":"`+signature+`"}`...))
	case execution.EventToolCall:
		b.call.Arguments = string(b.text)
		if _, err := callInput(&b.call, finish); err != nil {
			return dst, err
		}
		if s.closed == nil {
			s.closed = map[int]bool{}
		}
		s.closed[b.at] = true
		s.held -= len(b.text)
	}
	dst = done(s.place(event(dst, "content_block_stop")))
	s.open = nil
	s.index++
	return dst, nil
}

// event begins an event, whose data begins with its name.
func event(dst []byte, name string) []byte {
	dst = append(append(dst, "event: "...), name...)
	dst = append(append(dst, "\ndata: {\"type\":\""...), name...)
	return append(dst, '"')
}

// place writes the index of the block that is open.
func (s *stream) place(dst []byte) []byte {
	return strconv.AppendInt(append(dst, `,"index":`...), int64(s.index), 10)
}

// done ends an event.
func done(dst []byte) []byte { return append(dst, "}\n\n"...) }
