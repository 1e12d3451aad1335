// Package execution says what a run and a tunnel are: their requests, events, outcomes, failure codes and usage, what
// a provider driver (an adapter) must offer, and the grammar that every stream of events keeps.
//
// It does no I/O, knows no wire format and writes no log; protobuf, sockets and HTTP servers live elsewhere and
// translate to these types.
package execution

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"
)

// Usage counts tokens. A nil field is unknown, which is not the same as zero.
type Usage struct {
	Input     *int64 // prompt tokens
	Output    *int64 // completion tokens, reasoning included
	Cached    *int64 // of Input: read from the provider's cache
	Reasoning *int64 // of Output: spent on reasoning
}

// Known reports whether any count is known.
func (u Usage) Known() bool {
	return u.Input != nil || u.Output != nil || u.Cached != nil || u.Reasoning != nil
}

// Status is how an execution ended; its numbers are on the wire.
type Status uint8

// The statuses.
const (
	StatusComplete  Status = 1
	StatusError     Status = 2
	StatusCancelled Status = 3
	StatusAbandoned Status = 4
)

// String returns the status's stable name.
func (s Status) String() string {
	switch s {
	case StatusComplete:
		return "complete"
	case StatusError:
		return "error"
	case StatusCancelled:
		return "cancelled"
	case StatusAbandoned:
		return "abandoned"
	}
	return "unknown"
}

// CancelCause is why somebody ended an execution; its numbers are on the wire. It is the cause of a cancelled context,
// so it implements error.
type CancelCause uint8

// The causes.
const (
	CauseClientGone        CancelCause = 1
	CauseClientSlow        CancelCause = 2
	CauseAPI               CancelCause = 3
	CauseDeadline          CancelCause = 4
	CauseLinkLost          CancelCause = 5
	CauseEdgeDraining      CancelCause = 6
	CauseNodeDraining      CancelCause = 7
	CauseCredentialRevoked CancelCause = 8
)

// Error returns the cause's stable name.
func (c CancelCause) Error() string {
	switch c {
	case CauseClientGone:
		return "client_gone"
	case CauseClientSlow:
		return "client_slow"
	case CauseAPI:
		return "api"
	case CauseDeadline:
		return "deadline"
	case CauseLinkLost:
		return "link_lost"
	case CauseEdgeDraining:
		return "edge_draining"
	case CauseNodeDraining:
		return "node_draining"
	case CauseCredentialRevoked:
		return "credential_revoked"
	}
	return "unknown"
}

// Code returns the failure code that a run ends with when it was cancelled for this cause.
func (c CancelCause) Code() Code {
	switch c {
	case CauseClientGone:
		return CodeClientGone
	case CauseClientSlow:
		return CodeClientSlow
	case CauseDeadline:
		return CodeDeadline
	case CauseLinkLost:
		return CodeNodeLost
	case CauseEdgeDraining:
		return CodeEdgeDraining
	case CauseNodeDraining:
		return CodeNodeDraining
	case CauseCredentialRevoked:
		return CodeCredentialRefused
	}
	return CodeCancelled
}

// Model is one thing that a provider can be asked to run.
type Model struct {
	Name    string
	Loaded  bool  // in memory now; false also when the provider doesn't tell
	Context int64 // longest context in tokens, 0 = the provider doesn't tell
}

// latestTag is the tag of a model that is named without one.
const latestTag = ":latest"

// SameModel reports whether a model that a provider lists, or that a configuration names, is meant by a name that is
// asked for: by its own, or by its own without the tag "latest". Ollama lists "tiny:latest", takes "tiny" for it, and its
// clients use either.
func SameModel(listed, asked string) bool {
	plain, tagged := strings.CutSuffix(listed, latestTag)
	return listed == asked || tagged && plain == asked
}

// Capabilities is what a provider said of itself when it was last asked.
type Capabilities struct {
	Available bool
	Reason    string  // why it isn't available
	Version   string  // "unknown" when the provider doesn't tell
	Models    []Model // empty when the provider doesn't tell
}

// Provider drives one configured provider. Its methods may be called concurrently. What more it can do it shows by
// also implementing [Tunneler].
type Provider interface {
	// Probe asks the provider what it is and has. It never runs a completion, and it returns by ctx's deadline at
	// the latest. A provider that can't be reached is not an error but Capabilities with Available false.
	Probe(ctx context.Context) Capabilities
	// Close releases what the driver holds (idle connections). Executions in flight are not its business.
	Close()
}

// TunnelRequest is one provider HTTP request as the caller sent it; the adapter decides the host, never the request.
type TunnelRequest struct {
	Method        string
	Path          string // origin-form, raw as it was received, without the query
	Query         string // raw, without the question mark
	Header        http.Header
	Body          io.ReadCloser // read once; nil = none
	ContentLength int64         // -1 = unknown
	Target        string
	Timers        Timers
	Credential    Credential // nil = the request goes without a key
}

// Credential is the right to show a provider one key in one request. Who has it never has the key: it is opened only
// while it is written. A driver uses it on one connection, once, and doesn't send the request again.
type Credential interface {
	// Field returns the header field that carries the key, and what stands before it in the value: "Bearer " or "".
	Field() (name, prefix string)
	// Bind is told where the request is about to go: the origin ("https://host:port", lower case, the port always
	// there), the method, and the path as the provider will see it, without the query. It is called once, when the
	// connection is chosen and nothing was sent. An error is a *Failure, and nothing may be sent then.
	Bind(origin, method, path string) error
	// Send opens the key and has write send it, after Bind. The slice is valid until write returns; what write gives it
	// to mustn't keep it. An error is write's own, or a *Failure: then the key wasn't opened or sent.
	Send(write func(secret []byte) error) error
}

// Timers bound the reads from a provider; they stand still while the caller is slow. Zero is no limit.
type Timers struct {
	FirstByte time.Duration // from the end of the request to the response's head
	Idle      time.Duration // between two pieces of the response
}

// TunnelSink takes a provider's response as it comes. Its methods are called by one goroutine, Head once and first.
// An error from it means that nobody wants the rest: the adapter closes its provider connection and returns.
type TunnelSink interface {
	// Head passes the status line and headers on. The sink doesn't keep header.
	Head(status int, header http.Header) error
	// Body passes a piece of the body on. The sink doesn't keep p.
	Body(p []byte) error
	// Usage reports token counts that were seen beside the body; at most once a tunnel.
	Usage(u Usage) error
}

// Commander is a provider that answers questions of the node's operator, beside its executions.
type Commander interface {
	Provider
	// Command sends one request of a closed list that the adapter knows (Ollama: GET /api/version, /api/tags, /api/ps;
	// POST /api/show) and passes the response on, as Tunnel does. It takes no place. Whatever isn't on the list is a
	// *Failure of the code bad_request, and nothing is sent.
	Command(ctx context.Context, req *TunnelRequest, sink TunnelSink) error
}

// Tunneler is a provider that carries HTTP requests byte for byte.
type Tunneler interface {
	Provider
	// Tunnel sends the request once and passes the response on. It returns nil after a whole response, and a
	// *Failure or ctx's cause otherwise. It can't send a terminal: its return value is the terminal. When it
	// returns, its provider connection is closed or idle.
	Tunnel(ctx context.Context, req *TunnelRequest, sink TunnelSink) error
}
