package dialect

import (
	"strings"

	"iop/packages/go/execution"
)

// MaxWhole bounds what is collected for a caller that doesn't stream, in bytes of text, reasoning and arguments.
const MaxWhole = 64 << 20

// MaxCalls bounds how many tools one answer calls; a provider driver counts to the same.
const MaxCalls = 1024

// Whole collects a run's events for an answer that is one object.
type Whole struct {
	Text      strings.Builder
	Reasoning strings.Builder
	Calls     []execution.ToolCall // in the order of their index
	Model     string               // as the provider calls it, "" = untold
	Usage     execution.Usage      // as told last

	arguments []*strings.Builder // of Calls, which share their bytes: a call may come in very many pieces
	size      int
}

// Event takes an event in. An error is a *execution.Failure: the answer got too long, or calls too many tools.
func (w *Whole) Event(e execution.Event) error {
	switch e.Kind {
	case execution.EventStart:
		w.Model = e.Model
	case execution.EventDelta:
		w.Text.WriteString(e.Text)
	case execution.EventReasoning:
		w.Reasoning.WriteString(e.Text)
	case execution.EventToolCall:
		if err := w.call(e.ToolCall); err != nil {
			return err
		}
	case execution.EventUsage:
		w.Usage = e.Usage
	}
	if w.size += len(e.Text) + len(e.ToolCall.Arguments); w.size > MaxWhole {
		// Not limit_exceeded: clients wait and ask again for that, and the same would come of it.
		return execution.Failf(execution.CodeBadRequest, execution.OriginCaller,
			"the answer is longer than %d bytes; ask for a stream", MaxWhole)
	}
	return nil
}

func (w *Whole) call(d execution.ToolCallDelta) error {
	if d.Index < 0 || d.Index >= MaxCalls { // it comes from the wire
		return execution.Failf(execution.CodeAdapterDecode, execution.OriginNode, "the answer has a tool call numbered %d, over %d", d.Index, MaxCalls)
	}
	for len(w.Calls) <= d.Index {
		w.Calls = append(w.Calls, execution.ToolCall{})
		w.arguments = append(w.arguments, &strings.Builder{})
	}
	c, text := &w.Calls[d.Index], w.arguments[d.Index]
	if d.ID != "" {
		c.ID, c.Name = d.ID, d.Name
	}
	text.WriteString(d.Arguments)
	c.Arguments = text.String()
	return nil
}
