// Package credential keeps the providers' keys at the edge and decides which node may borrow one.
//
// It owns the slots' secrets, their revisions and states, the keys that leases are signed with, the ledger of leases, and
// their audit. It knows nothing of HTTP servers, protobuf, links and the scheduler, and decides neither what a run may do
// nor which node gets it: it answers whether this node may be given this key for this request, now.
//
// # Slots
//
// A slot is active, disabled or revoked. Its revision is one number that only grows, whatever the clock does: each change
// of the key or of the state raises it, and leases of an earlier revision are worth nothing. Revisions and states are in
// slots.json in the state directory before they are in force, so that a restart forgets none; what can't be written isn't
// done, and whoever asked is told.
//
// Revoking is about the key, disabling about the slot. A revoked key stays revoked: no enable, restart or removal of the slot
// from the configuration makes it good again, and neither does putting it back after another one. The slot becomes
// active by a new key in its source, by itself at the next refresh; one that was disabled, too, stays disabled until it
// is enabled. A slot whose source can't be read for stale_max is disabled, and active again when the source is.
package credential

import (
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
)

// Config is what a [Store] is made of.
type Config struct {
	// State returns the configuration in force.
	State func() *config.State
	// EdgeID is the edge's name, which its nodes know from registration.
	EdgeID string
	// Dir is the state directory, where slots.json is. It is made when it is missing.
	Dir string
	// SigningKey is the path of the key that leases are signed with; "" is lease.key in Dir.
	SigningKey string
	// Events is told of refused leases and of what becomes of slots; nil = nobody is.
	Events *events.Bus
	// Log takes the audit.
	Log zerolog.Logger
	// Now is the clock of leases, which must be the one that nodes are told of; nil = the wall clock.
	Now func() time.Time
	// AckWait is how long a change of a slot waits for nodes to take it in; 0 = 30 s.
	AckWait time.Duration
}

// Key is a signing key that nodes are to trust, by its public half.
type Key = credentiallease.VerifyKey

// SlotState is what a node is told of a slot.
type SlotState = credentiallease.SlotState

// Order is the request for which a lease is wanted: what was decided of it, and the place that it was granted.
type Order struct {
	Principal  string // "" = callers have no names here
	Route      *config.Route
	RunID      string
	Attempt    uint32 // from 1
	NodeID     string
	Generation uint64 // of the node's connection
	Projection uint64 // the number of the configuration that the node has taken in
	Recipient  credentiallease.Recipient
	Proven     bool // the connection proved a recipient key in a TLS session that proved the node
	Adapter    *config.Adapter
	Target     string // the provider's name of the model
	Method     string // of a tunnel; a normalized run is a POST
	Path       string // as the caller sent it, "" = a normalized run
}

// Push is what nodes are told of a slot that changed: it is on the wire as CredentialRevoked.
type Push struct {
	Slot        string
	MinRevision uint64
	Disabled    bool
	Epoch       uint64 // which change this is; the acknowledgement names it
}

// Change is what a command did to a slot.
type Change struct {
	Slot     string
	State    State  // as it is when the nodes have been waited for, which another change may have made
	Revision uint64 // the same
	// Running are the ids of runs that have the key on the wire, or may have. They go on unless somebody cancels them.
	Running []string
	// Unanswered are the nodes that had leases and didn't say in time that they have taken the change in.
	Unanswered []string
}

// State is what a slot may be used for.
type State string

// The states of a slot.
const (
	StateActive   State = "active"
	StateDisabled State = "disabled"
	StateRevoked  State = "revoked"
)

// SlotStatus is what operators see of a slot.
type SlotStatus struct {
	ID          string
	State       State
	Reason      string // why it isn't active, or what is wrong with its source
	Revision    uint64
	SourceKind  string
	Profile     string
	Header      string
	Origin      string
	Nodes       []string
	Length      int       // of the key in bytes, 0 = there is none
	Fingerprint string    // 8 hex digits of an HMAC with a key of this edge, "" = there is none
	Since       time.Time // of the revision
	LastRefresh time.Time // when its source was read last, well or not
}

// Counts is what became of leases since the start.
type Counts struct {
	Leases          map[string]map[string]uint64 // by slot and result: committed, refused, void, expired, unavailable
	Refusals        map[string]uint64            // by reason, the edge's and the nodes'
	RefreshFailures map[string]uint64            // by slot
	Security        uint64                       // leases that were used though they were void, and refusals that only an attack explains
	Unknown         uint64                       // ends of leases that this process doesn't know
}

// unavailable is what a caller learns of a refusal of this edge. Why is in the log.
const unavailable = "the key that the provider needs can't be lent out now"

func refusal(why credentiallease.Refusal) *execution.Failure {
	f := execution.Failf(execution.CodeCredentialUnavailable, execution.OriginEdge, unavailable)
	f.NothingSent = true
	f.Lease = execution.LeaseRefusal{Reason: uint8(why.Reason), Field: uint8(why.Field)}
	return f
}
