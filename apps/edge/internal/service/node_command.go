package service

import (
	"context"
	"net/http"
	"time"
	"unicode/utf8"

	"iop/apps/edge/internal/node"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
	"iop/packages/go/transport"
)

// CommandType is what a node is asked. The numbers are the wire's, and the set is closed: 3 and 4 are gone for good.
type CommandType uint8

// The commands.
const (
	CommandCapabilities    CommandType = 1 // what the node's adapters are and have
	CommandTransportStatus CommandType = 2 // how the link is, as the node sees it
	CommandOllamaAPI       CommandType = 5 // one request of a closed list to an adapter's Ollama API
)

// maxCommandSession is the longest session_id of a command, in bytes.
const maxCommandSession = 256

// String returns the command's name on the wire, "" when there is no such command.
func (t CommandType) String() string {
	switch t {
	case CommandCapabilities:
		return "CAPABILITIES"
	case CommandTransportStatus:
		return "TRANSPORT_STATUS"
	case CommandOllamaAPI:
		return "OLLAMA_API"
	}
	return ""
}

// ParseCommandType returns the command of that name.
func ParseCommandType(name string) (CommandType, bool) {
	for _, t := range []CommandType{CommandCapabilities, CommandTransportStatus, CommandOllamaAPI} {
		if t.String() == name {
			return t, true
		}
	}
	return 0, false
}

// MaxCommandBody is the largest body of an Ollama API command, in bytes; MaxCommandAnswer the largest answer.
const (
	MaxCommandBody   = 64 << 10
	MaxCommandAnswer = 16 << 20
)

// Command is one question to a node. It takes no place and isn't a run: nothing of it is in the table of runs, the
// scheduler or the node's store.
type Command struct {
	// NodeID is the node to ask; "" = any ready node that has the adapter.
	NodeID string
	Type   CommandType
	// SessionID is copied through everything; it means nothing.
	SessionID string
	// Adapter names the adapter. CommandOllamaAPI needs it; CommandCapabilities answers for this one alone if it is set.
	Adapter string

	// Method, Path and Body are the request of CommandOllamaAPI. The path has no query; only POST has a body.
	Method, Path string
	Body         []byte

	// Sink takes the response of CommandOllamaAPI as it comes, by the rules of [Sink]; nil = the result has it whole.
	Sink Sink
}

// CommandResult is what became of a command. With a Failure and HeadSent false the sink was given nothing.
type CommandResult struct {
	CommandID  string
	NodeID     string // "" = it was never sent
	Generation uint64
	Adapter    string
	SessionID  string // as the node copied it

	Failure *execution.Failure // nil = it was answered

	Capabilities []AdapterCapabilities // of CommandCapabilities
	Transport    *TransportStatus      // of CommandTransportStatus

	// Of CommandOllamaAPI: the provider's response. A status of 400 and above is an answer like any other.
	Status   int
	Header   http.Header
	Body     []byte // nil when a sink took it, or after a failure
	Bytes    int64  // of the body
	HeadSent bool   // the sink was given the head

	Queued   time.Duration // for its turn among the commands of the connection
	Duration time.Duration // in all
}

// OK reports whether the command was answered.
func (r *CommandResult) OK() bool { return r.Failure == nil }

// AdapterCapabilities is what one adapter of a node is and has; the JSON names are those of the admin API.
type AdapterCapabilities struct {
	Name      string              `json:"name"`
	Available bool                `json:"available"`
	Reason    string              `json:"reason"`  // why it isn't available
	Version   string              `json:"version"` // "unknown" when the provider doesn't tell
	InFlight  int                 `json:"in_flight"`
	Capacity  int                 `json:"capacity"`
	Models    []ModelCapabilities `json:"models"`
}

// ModelCapabilities is one model that a provider has.
type ModelCapabilities struct {
	Name    string `json:"name"`
	Loaded  bool   `json:"loaded"`
	Context int64  `json:"context"` // longest context in tokens, 0 = the provider doesn't tell
}

// TransportStatus is how a node sees its link.
type TransportStatus struct {
	Generation  uint64 `json:"connection_generation"`
	LinkAgeMS   int64  `json:"link_age_ms"`
	OpenStreams int    `json:"open_streams"`
	InFlight    int    `json:"in_flight"` // executions, of every connection to this edge
}

// CommandTarget is a node connection that commands may go to.
type CommandTarget struct {
	NodeID     string
	Generation uint64
	State      node.State
	Conn       CommandConn
}

// CommandConn is one node connection, as far as a command needs it. *node.Connection is one.
type CommandConn interface {
	// Open opens a work stream. It honours ctx.
	Open(ctx context.Context) (*transport.Stream, error)
	// SendCancel asks the node to end a command. It never blocks.
	SendCancel(commandID string, cause execution.CancelCause)
	// OllamaAPI reports whether the node knows that command.
	OllamaAPI() bool
	// Has reports whether the node was told of an adapter, and whether its provider can be asked.
	Has(adapter string) (told, available bool)
	// EnterCommand waits for its turn among the commands of the connection, which is given back by leave. An error is
	// ctx's cause, a *execution.Failure when too many wait, or transport.ErrLinkDown.
	EnterCommand(ctx context.Context) (leave func(), err error)
	// CommandAccepted tells that the node answered a command's open.
	CommandAccepted()
	// CommandTimeout tells that it didn't; after a few in a row the connection gets no work.
	CommandTimeout()
}

// Command asks a node, in the caller's goroutine, and returns what came of it. When ctx ends, the command is cancelled
// and the call returns within a second, whatever the node does; the cause of ctx may be an execution.CancelCause. It is
// bounded by itself, too: [Config.CommandLimit].
//
// Failures: bad_request (no such command, a path that isn't on the list, an adapter without that API), unknown_adapter,
// no_node (not connected, not ready, or none has the adapter), node_draining, edge_draining, overloaded (too many
// commands wait), body_too_large, dispatch_timeout (the node doesn't answer), deadline, node_lost (the link ended; the
// command may have been carried out), upstream_connect and the provider's other failures, cancelled, client_gone,
// protocol. Those that were found before anything was sent say so by NothingSent.
func (s *Service) Command(ctx context.Context, c *Command) *CommandResult {
	q := &commandCall{service: s, Command: c, started: time.Now(), out: &CommandResult{Adapter: c.Adapter, SessionID: c.SessionID}}
	if f := c.check(); f != nil {
		q.out.Failure = f
	} else if f := s.commands.enter(q, ctx); f != nil {
		q.out.Failure = f
	} else {
		q.drive()
		s.commands.leave(q)
	}
	if q.out.Failure != nil {
		q.out.Body = nil
	}
	q.out.Duration = time.Since(q.started)
	q.log()
	return q.out
}

// check refuses what no node could be asked.
func (c *Command) check() *execution.Failure {
	refuse := func(code execution.Code, format string, args ...any) *execution.Failure {
		f := execution.Failf(code, execution.OriginCaller, format, args...)
		f.NothingSent = true
		return f
	}
	ollama := c.Type == CommandOllamaAPI
	switch {
	case c.Type.String() == "":
		return refuse(execution.CodeBadRequest, "there is no such command; there are %s, %s and %s",
			CommandCapabilities, CommandTransportStatus, CommandOllamaAPI)
	case c.NodeID == "" && c.Adapter == "":
		return refuse(execution.CodeBadRequest, "name a node or an adapter")
	case !ollama && (c.Method != "" || c.Path != "" || len(c.Body) > 0):
		return refuse(execution.CodeBadRequest, "%s takes no method, path or body", c.Type)
	case ollama && c.Adapter == "":
		return refuse(execution.CodeBadRequest, "name the adapter whose Ollama API is meant")
	case ollama && !httprules.OllamaCommand(c.Method, c.Path):
		return refuse(execution.CodeBadRequest, "%s carries GET /api/version, /api/tags, /api/ps and POST /api/show", c.Type)
	case len(c.Body) > 0 && c.Method != http.MethodPost:
		return refuse(execution.CodeBadRequest, "only POST has a body")
	case len(c.Body) > MaxCommandBody:
		return refuse(execution.CodeBodyTooLarge, "a command's body is at most %d bytes", MaxCommandBody)
	case len(c.SessionID) > maxCommandSession || !utf8.ValidString(c.SessionID):
		return refuse(execution.CodeBadRequest, "session_id must be a text of at most %d bytes", maxCommandSession)
	}
	return nil
}
