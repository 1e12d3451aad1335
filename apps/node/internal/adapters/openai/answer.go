package openai

import (
	"bytes"
	"encoding/json"

	"iop/apps/node/internal/adapters/reply"
	"iop/apps/node/internal/adapters/sse"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// answer understands what a provider answers. It is complete after a finish reason, or after [DONE] when something was
// said before it.
type answer struct {
	*reply.Reply
	finish string
	done   bool // [DONE] came
}

func newAnswer(seed string, emit execution.Emit) *answer {
	a := &answer{}
	a.Reply = reply.New(seed, emit, a, "a finish reason or [DONE]")
	return a
}

// Event implements [reply.Dialect].
func (a *answer) Event(e sse.Event) error {
	data := bytes.TrimSpace(e.Data)
	switch {
	case e.Name == "error":
		return a.reported(data)
	case len(data) == 0:
		return nil
	case string(data) == "[DONE]":
		a.done = true
		return upstream.ErrEnough
	case data[0] != '{':
		return a.Undecodable("an event of the provider's stream isn't a JSON object")
	}
	var c chunk
	if json.Unmarshal(data, &c) != nil {
		return a.Undecodable("an event of the provider's stream isn't one of this dialect")
	}
	return a.take(&c)
}

// Object implements [reply.Dialect].
func (a *answer) Object(object []byte) error {
	var c chunk
	if json.Unmarshal(object, &c) != nil {
		return a.Undecodable("provider's answer isn't a JSON object of this dialect")
	}
	if err := a.take(&c); err != nil {
		return err
	}
	if choice := c.first(); choice == nil || choice.Message == nil && choice.Delta == nil {
		return a.Undecodable("provider's answer has no message")
	}
	return nil
}

// End implements [reply.Dialect].
func (a *answer) End() (finish string, err error) {
	switch a.finish {
	case "error":
		return "", upstream.Reported(a.Status(), nil)
	case "abort":
		return "", a.Truncated("provider broke its answer off")
	case "":
		switch {
		case !a.done:
			return "", reply.ErrNoEnd
		case !a.Said():
			return "", a.Truncated("provider ended its answer without having said anything")
		}
	}
	return a.finish, nil
}

// reported is the failure that an error event tells: an object with an error, or the error itself.
func (a *answer) reported(data []byte) error {
	var c chunk
	if json.Unmarshal(data, &c) == nil && upstream.IsError(c.Error) {
		return upstream.Reported(a.Status(), c.Error)
	}
	return upstream.Reported(a.Status(), data)
}

// take makes events of a chunk.
func (a *answer) take(c *chunk) error {
	if err := c.failure(a.Status()); err != nil {
		return err
	}
	a.Count(c.Usage)
	if len(c.Choices) == 0 && c.Model == "" {
		return nil // a sign of life
	}
	if err := a.Start(c.Model); err != nil {
		return err
	}
	choice := c.first()
	if choice == nil {
		return nil
	}
	a.Count(choice.Usage)
	s := choice.Delta
	if s == nil && !a.Said() {
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
	for _, piece := range []struct {
		kind execution.EventKind
		text string
	}{
		{execution.EventReasoning, s.reasoning()},
		{execution.EventDelta, s.Content.text},
		{execution.EventDelta, s.Refusal},
	} {
		if err := a.Say(piece.kind, piece.text); err != nil {
			return err
		}
	}
	return a.Call(s.pieces()...)
}
