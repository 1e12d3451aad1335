package service

import (
	"strings"

	"iop/packages/go/execution"
)

// How many tokens a text has, roughly, where nobody counted them. A budget must be charged something for an answer that
// tells no counts, or asking for no counts would evade it.
const (
	// bytesPerToken is what a token of plain text takes, by the rule of thumb of the providers' own documentation.
	bytesPerToken = 4
	// bytesPerEvent is what a token of a stream takes at most on average, the JSON around it included: where a provider
	// puts several tokens into an event, the bytes tell more than the events.
	bytesPerEvent = 256
)

// Tokens returns what the run has used: the provider's own counts, and where it told none, an estimate.
func (o *Outcome) Tokens() (used execution.Usage, estimated bool) {
	used = o.Usage
	switch {
	case o.Attempts == 0 || o.Failure != nil && o.Failure.NothingSent:
		return execution.Usage{}, false
	case used.Input != nil && (used.Output != nil || o.OK()):
		return used, false // embeddings have no output
	}
	if used.Input == nil {
		n := (o.BytesIn + bytesPerToken - 1) / bytesPerToken
		used.Input = &n
	}
	if used.Output == nil {
		n := o.answerTokens()
		used.Output = &n
	}
	return used, true
}

// answerTokens estimates what the answer has.
func (o *Outcome) answerTokens() int64 {
	switch {
	case o.Kind == execution.KindTunnel && o.lines > 0:
		return max(o.lines/o.linesPerEvent, o.BytesOut/bytesPerEvent)
	case o.Kind == execution.KindTunnel && o.Status >= 400:
		return 0 // an error's text is nobody's answer
	}
	return (o.BytesOut + bytesPerToken - 1) / bytesPerToken
}

// linesOf returns how many lines an event of an answer of this type has, 0 where it isn't a stream of events.
func linesOf(contentType string) int64 {
	switch {
	case strings.HasPrefix(contentType, "text/event-stream"):
		return 2
	case strings.HasPrefix(contentType, "application/x-ndjson"):
		return 1
	}
	return 0
}

// Meter keeps what principals use.
type Meter interface {
	// Today returns how many tokens a principal has used on this day (UTC) by runs that have ended.
	Today(principal string) int64
	// Ended takes a run that has ended, before it gives up what it was expected to use.
	Ended(o *Outcome)
}

// usedTokens is the sum that budgets are charged.
func (o *Outcome) usedTokens() int64 {
	used, _ := o.Tokens()
	return count64(used.Input) + count64(used.Output)
}

func count64(n *int64) int64 {
	if n == nil {
		return 0
	}
	return max(*n, 0)
}
