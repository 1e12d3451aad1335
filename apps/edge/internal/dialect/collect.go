package dialect

import (
	"strings"

	"iop/packages/go/execution"
)

// MaxWhole bounds what is collected for a caller that doesn't stream, in bytes of text, reasoning and arguments.
const MaxWhole = 64 << 20

// Whole collects a run's events for an answer that is one object.
type Whole struct {
	Text      strings.Builder
	Reasoning strings.Builder
	Calls     []execution.ToolCall // in the order of their index
	Model     string               // as the provider calls it, "" = untold
	Usage     execution.Usage      // as told last
	size      int
}

// Event takes an event in. An error is a *execution.Failure: the answer got too long.
func (w *Whole) Event(e execution.Event) error {
	switch e.Kind {
	case execution.EventStart:
		w.Model = e.Model
	case execution.EventDelta:
		w.Text.WriteString(e.Text)
	case execution.EventReasoning:
		w.Reasoning.WriteString(e.Text)
	case execution.EventToolCall:
		w.call(e.ToolCall)
	case execution.EventUsage:
		w.Usage = e.Usage
	}
	if w.size += len(e.Text) + len(e.ToolCall.Arguments); w.size > MaxWhole {
		return execution.Failf(execution.CodeLimitExceeded, execution.OriginEdge,
			"the answer is longer than %d bytes; ask for a stream", MaxWhole)
	}
	return nil
}

func (w *Whole) call(d execution.ToolCallDelta) {
	for len(w.Calls) <= d.Index {
		w.Calls = append(w.Calls, execution.ToolCall{})
	}
	c := &w.Calls[d.Index]
	if d.ID != "" {
		c.ID, c.Name = d.ID, d.Name
	}
	c.Arguments += d.Arguments
}
