package anthropic

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"

	"iop/apps/node/internal/adapters/reply"
	"iop/apps/node/internal/adapters/sse"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// maxOpen is how many blocks of an answer may be open at once.
const maxOpen = 1024

// answer understands what a provider answers. It is complete after message_stop, or after a stop reason, behind which
// nothing but message_stop comes.
type answer struct {
	*reply.Reply
	calls   map[int]*call // open blocks that call tools, by their index
	count   int           // of calls
	finish  string
	stopped bool // message_stop came
}

// call is a block that calls a tool.
type call struct {
	number int   // of the answer's calls; an index may come twice
	begun  bool  // some of its arguments were emitted
	input  input // what the block began with, {} as a rule; it counts when no piece follows
}

func newAnswer(seed string, emit execution.Emit) *answer {
	a := &answer{calls: map[int]*call{}}
	a.Reply = reply.New(seed, emit, a, "message_stop or a stop reason")
	return a
}

// Event implements [reply.Dialect]. The type in an event's data counts; the event's name says the same.
func (a *answer) Event(e sse.Event) error {
	data := bytes.TrimSpace(e.Data)
	switch {
	case e.Name == "error":
		return upstream.Reported(a.Status(), data)
	case len(data) == 0, e.Name == "ping":
		return nil
	case data[0] != '{':
		return a.Undecodable("an event of the provider's stream isn't a JSON object")
	}
	var ev event
	if json.Unmarshal(data, &ev) != nil {
		return a.Undecodable("an event of the provider's stream isn't one of this dialect")
	}
	if ev.Type == "error" || upstream.IsError(ev.Error) {
		return upstream.Reported(a.Status(), data)
	}
	return a.take(&ev)
}

// take makes events of an event. Types that nobody knows are new ones: the API asks to pass over them.
func (a *answer) take(e *event) error {
	switch e.Type {
	case "message_start":
		if e.Message == nil {
			return a.Undecodable("the provider's message_start has no message")
		}
		a.CountInput(e.Message.Usage)
		return a.Start(e.Message.Model)
	case "content_block_start":
		return a.open(e.Index, &e.Block)
	case "content_block_delta":
		return a.grow(e.Index, &e.Delta)
	case "content_block_stop":
		return a.close(e.Index)
	case "message_delta":
		a.Count(e.Usage)
		if e.Delta.StopReason != "" {
			a.finish = finishReason(e.Delta.StopReason)
			return a.closeAll()
		}
	case "message_stop":
		a.stopped = true
		if err := a.closeAll(); err != nil {
			return err
		}
		return upstream.ErrEnough
	}
	return nil
}

// open begins a block. Its text is empty as a rule.
func (a *answer) open(index int, b *block) error {
	if err := a.Start(""); err != nil {
		return err
	}
	if b.Type != "tool_use" {
		return a.say(b)
	}
	if err := a.close(index); err != nil { // a provider that ends none of its blocks
		return err
	}
	if b.Name == "" { // held back for its name, it would let the next one begin with a number of its own
		return execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider, "the provider calls a tool without a name")
	}
	if len(a.calls) == maxOpen {
		return a.Undecodable("the provider opens too many blocks at once")
	}
	c := &call{number: a.count, input: b.Input}
	a.calls[index] = c
	a.count++
	return a.Call(execution.ToolCallPiece{Index: &c.number, ID: b.ID, Name: b.Name})
}

// say emits a text or a thought. Signatures, redacted thoughts, and what the provider's own tools do have no place in a
// run.
func (a *answer) say(b *block) error {
	switch b.Type {
	case "text":
		return a.Say(execution.EventDelta, b.Text)
	case "thinking":
		return a.Say(execution.EventReasoning, b.Thinking)
	}
	return nil
}

// grow takes what is new of a block.
func (a *answer) grow(index int, d *delta) error {
	if err := a.Start(""); err != nil {
		return err
	}
	switch d.Type {
	case "text_delta":
		return a.Say(execution.EventDelta, d.Text)
	case "thinking_delta":
		return a.Say(execution.EventReasoning, d.Thinking)
	case "input_json_delta":
		c := a.calls[index]
		if c == nil || d.PartialJSON == "" {
			return nil // of a tool of the provider's own
		}
		c.begun = true
		return a.Call(execution.ToolCallPiece{Index: &c.number, Arguments: d.PartialJSON})
	}
	return nil
}

// close ends a block. A call whose arguments weren't told in pieces has those that it began with, or none.
func (a *answer) close(index int) error {
	c := a.calls[index]
	if c == nil {
		return nil
	}
	delete(a.calls, index)
	if c.begun {
		return nil
	}
	if c.input == "" {
		c.input = noInput
	}
	return a.Call(execution.ToolCallPiece{Index: &c.number, Arguments: string(c.input)})
}

// closeAll ends the blocks that a provider left open.
func (a *answer) closeAll() error {
	for _, index := range slices.Sorted(maps.Keys(a.calls)) {
		if err := a.close(index); err != nil {
			return err
		}
	}
	return nil
}

// Object implements [reply.Dialect].
func (a *answer) Object(object []byte) error {
	var m message
	switch {
	case json.Unmarshal(object, &m) != nil:
		return a.Undecodable("provider's answer isn't a JSON object of this dialect")
	case m.Type == "error" || upstream.IsError(m.Error):
		return upstream.Reported(a.Status(), object)
	case m.Type != "message":
		return a.Undecodable("provider's answer isn't a message")
	}
	a.Count(m.Usage)
	if err := a.Start(m.Model); err != nil {
		return err
	}
	for i := range m.Content {
		if err := a.open(i, &m.Content[i]); err != nil {
			return err
		}
		if err := a.close(i); err != nil {
			return err
		}
	}
	a.finish = finishReason(m.StopReason)
	return nil
}

// End implements [reply.Dialect].
func (a *answer) End() (finish string, err error) {
	switch {
	case a.finish != "":
	case !a.stopped:
		return "", reply.ErrNoEnd
	case !a.Said():
		return "", a.Truncated("provider ended its answer without having said anything")
	}
	return a.finish, nil
}
