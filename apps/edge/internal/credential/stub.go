package credential

import (
	"context"
	"errors"
	"net/http"

	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
)

var errNotYet = errors.New("not built yet")

// ErrUnknownSlot is returned for a slot that the configuration doesn't have.
var ErrUnknownSlot = errors.New("there is no such slot in the configuration")

// Store has the slots, keys and leases of one edge. Safe for concurrent use.
type Store struct{}

// Open makes the store of an edge. Every slot's source must yield a key, except those of slots that aren't active.
func Open(cfg Config) (*Store, error) { return &Store{}, errNotYet }

// Run reads sources again and ends leases of which nothing was heard, until ctx ends.
func (s *Store) Run(ctx context.Context) { <-ctx.Done() }

// Check reports whether the sources of slots that next adds or changes yield keys. It changes nothing.
func (s *Store) Check(next *config.State) error { return nil }

// Reconfigured takes in that another configuration is in force: new slots, and the end of removed ones.
func (s *Store) Reconfigured() {}

// Keys returns the signing keys that nodes are to trust.
func (s *Store) Keys() []Key { return nil }

// OnKeys sets who brings changed Keys to the nodes. It returns when every connected node has taken them in, or ctx ends. Set
// it once, before Run.
func (s *Store) OnKeys(publish func(ctx context.Context)) {}

// RotateKey makes a new signing key, has nodes told, and signs with it from then on.
func (s *Store) RotateKey(ctx context.Context) error { return errNotYet }

// DropKey withdraws a signing key at once: what it signed is refused as soon as nodes are told.
func (s *Store) DropKey(ctx context.Context, id string) error { return errNotYet }

// Slots returns what a node is to be told of these slots.
func (s *Store) Slots(ids []string) []SlotState { return nil }

// Issue decides about a lease.
func (s *Store) Issue(o Order) (*Lease, *execution.Failure) {
	return nil, refusal(credentiallease.Refusal{Reason: credentiallease.Disabled})
}

// Ended takes what a node says became of a lease.
func (s *Store) Ended(nodeID, leaseID string, committed bool, why execution.LeaseRefusal) {}

// OnChange sets who tells nodes of a change. f must not block. Set it once, before Run.
func (s *Store) OnChange(f func(nodes []string, p Push)) {}

// Acked takes a connection's word that it has taken in a change, and which runs had the key on the wire by then.
func (s *Store) Acked(nodeID string, generation, epoch uint64, committed []string) {}

// Gone says that this connection of the node is over.
func (s *Store) Gone(nodeID string, generation uint64) {}

// Disable stops leases of a slot until it is enabled.
func (s *Store) Disable(ctx context.Context, id string) (Change, error) { return Change{}, errNotYet }

// Enable makes a disabled slot active.
func (s *Store) Enable(ctx context.Context, id string) (Change, error) { return Change{}, errNotYet }

// Revoke makes the slot's key worthless for good.
func (s *Store) Revoke(ctx context.Context, id string) (Change, error) { return Change{}, errNotYet }

// Refresh reads the slot's source now.
func (s *Store) Refresh(ctx context.Context, id string) (Change, error) { return Change{}, errNotYet }

// Status returns what operators see of the slots.
func (s *Store) Status() []SlotStatus { return nil }

// Counts returns what became of leases.
func (s *Store) Counts() Counts { return Counts{} }

// Inspect reads every slot's source and changes nothing.
func Inspect(cfg *config.Edge) ([]SlotStatus, error) { return nil, errNotYet }

// Lease is one attempt's lease. Its methods are for one goroutine; the first of Void, Lost and Refused counts.
type Lease struct{}

// Wire is what the node is sent.
func (l *Lease) Wire() []byte { return nil }

// ID is the lease's id, in hex.
func (l *Lease) ID() string { return "" }

// Slot is the slot whose key it lends.
func (l *Lease) Slot() string { return "" }

// Profile is the profile by which the key is used.
func (l *Lease) Profile() string { return "" }

// Current reports whether slot, profile and route are as they were when the lease was made: the fence before it is sent.
func (l *Lease) Current() bool { return false }

// Used says that the provider has answered: the key was sent.
func (l *Lease) Used() {}

// Void says that the node never got the lease.
func (l *Lease) Void() {}

// Refused says that the node refused the open because of the lease.
func (l *Lease) Refused(why execution.LeaseRefusal) {}

// Lost says that the link went after the lease was sent.
func (l *Lease) Lost() {}

// Close says that the attempt is over. It must be called for every lease.
func (l *Lease) Close() {}

// Scanner returns what finds the key in the provider's answer.
func (l *Lease) Scanner() *Scanner { return nil }

// Scanner looks for the key in what a provider answers.
type Scanner struct{}

// Head reports whether a header holds the key.
func (s *Scanner) Head(h http.Header) bool { return false }

// Pass takes the next piece of a body, and returns what may go on.
func (s *Scanner) Pass(p []byte) (out []byte, reflected bool) { return p, false }

// Rest returns what Pass still held back, at the body's end.
func (s *Scanner) Rest() []byte { return nil }

// Text reports whether a text holds the key.
func (s *Scanner) Text(text string) bool { return false }
