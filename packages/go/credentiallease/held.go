package credentiallease

// State is what became of a lease at the node; its numbers are on the wire.
type State uint8

// The states in which a lease ends.
const (
	Committed State = 1 // the secret may have been sent
	Refused   State = 2 // no byte of it was
)

// Outcome is what a run's end reports of its lease.
type Outcome struct {
	State   State
	Refusal Refusal // of a refused one
}

// Held is a verified lease on its way to its one use: Admit, Arm, Redeem, End, in this order. A step that is refused
// burns it. Safe for concurrent use.
type Held struct{}

// Claims is what the lease says.
func (h *Held) Claims() Claims { panic("declared") }

// LeaseID is the lease's id, in hex, as the edge's ledger has it.
func (h *Held) LeaseID() string { panic("declared") }

// Admit says that the node's own admission took the request.
func (h *Held) Admit() error { panic("declared") }

// Arm takes the lease for one connection to the provider. A second connection, on which a transport would send the
// request again, is refused as replayed.
func (h *Held) Arm() error { panic("declared") }

// Redeem opens the secret into page and has send write it. It checks again everything that can have changed, opens,
// checks the secret's bytes, and commits under the lock that Revoke takes; only then it calls send, with the front part
// of page. page is memory that the caller chose for it (at least MaxSecret bytes, or the secret's length where that is
// known); it is cleared before Redeem returns, however it returns. now is called twice. The error is a Refusal, or what
// send returned.
func (h *Held) Redeem(page []byte, now func() Time, send func(secret []byte) error) error {
	panic("declared")
}

// Burn ends the lease with a refusal that its user found (injection_failed, origin_refused), unless it is committed or
// burnt already.
func (h *Held) Burn(why Refusal) { panic("declared") }

// End says that the request is over and returns what became of the lease: a lease that was never sent is burnt as
// unused. Calling it again changes nothing.
func (h *Held) End() Outcome { panic("declared") }
