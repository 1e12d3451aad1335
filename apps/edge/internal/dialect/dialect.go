// Package dialect says what the APIs that callers speak look like as normalized runs: a request's body is read into an
// execution.Request, and a run's events are written as the answer that the API's clients expect. Each API is a package
// below this one; what they share is here.
//
// It does no I/O and knows no HTTP beyond a content type; who may ask, where a run goes and how an answer gets to its
// caller is not its business. A member of a request that a run can't carry is refused by name and never dropped, unless
// the answer doesn't depend on it.
package dialect

import (
	"time"

	"iop/packages/go/execution"
)

// Request is a caller's request as a run.
type Request struct {
	Model  string            // as it was asked for
	Stream bool              // the answer is a stream
	Input  execution.Request // Messages, Tools, ToolChoice and Options; the rest is filled in by who runs it

	// IncludeUsage asks for token counts in a stream, where the API leaves that to the caller.
	IncludeUsage bool

	// HideReasoning leaves what a model thinks out of the answer, where the API lets the caller say so.
	HideReasoning bool

	// Names are what the API calls the places of Input.
	Names Names

	// AtOnce, when it isn't "", says that the request asks for nothing that a run would do (Ollama: load or unload a
	// model): where no adapter that carries the path takes it, its whole answer is what End of [Endpoint.Answer]
	// appends for a completion with AtOnce as its finish reason, with the status 200. Input is empty then.
	AtOnce string
}

// About is what an answer says of itself.
type About struct {
	RunID   string    // ids in the answer are made of it
	Model   string    // as it was asked for
	Created time.Time // when the run was submitted
}

// Endpoint is one endpoint of an API that a run can serve. It has no state.
type Endpoint interface {
	// Parse reads a request's body. Model has been found in it before and may be trusted to be there.
	Parse(body []byte) (*Request, *Refusal)
	// Answer returns what writes the answer to one request: a stream when it asked for one, else one object.
	Answer(r *Request, about About) Answer
	// EncodeError returns the body of an error response in the API's shape, with the failure's stable code in it.
	// Field is the member of the request at fault, "" = none.
	EncodeError(status int, f *execution.Failure, field string) []byte
}

// Answer writes one run's answer. Its methods append to dst and return it; one goroutine calls them, in the run's
// order, and exactly one of End and Fail at most, last. What it returns empty isn't sent.
type Answer interface {
	// ContentType is the answer's.
	ContentType() string
	// Event appends what one event looks like: nothing yet, when the answer is one object. An error is a
	// *execution.Failure, and the answer ends as after any other.
	Event(dst []byte, e execution.Event) ([]byte, error)
	// End appends what ends a whole answer: its end mark, or the whole object. An error is a *execution.Failure: what
	// the provider said can't be told in this API (arguments that aren't an object, where they must be); then what
	// End returned isn't sent, and the answer ends as after any other failure.
	End(dst []byte, c execution.Completion) ([]byte, error)
	// Fail appends how the API tells within a stream that has begun that it failed. What it appends is never an end
	// mark: no client may take what it has for whole.
	Fail(dst []byte, f *execution.Failure) []byte
}
