package credentiallease

import "encoding/hex"

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

// step is where a held lease is. No step leads back.
type step uint8

const (
	verified step = iota
	admitted
	armed
	opening
	committedState
	burnt
)

// Held is a verified lease on its way to its one use: Admit, Arm, Redeem, End, in this order. A step that is refused
// burns it. Safe for concurrent use.
type Held struct {
	guard  *Guard // set once, as are the claims
	claims Claims

	envelope *envelope // guarded by guard.mu, as are the next two; nil once it was taken or burnt
	state    step
	why      Refusal // of a burnt one
}

// Claims is what the lease says.
func (h *Held) Claims() Claims { return h.claims }

// LeaseID is the lease's id, in hex, as the edge's ledger has it.
func (h *Held) LeaseID() string { return hex.EncodeToString(h.claims.LeaseID[:]) }

// Admit says that the node's own admission took the request. Once is enough; a second one is refused as replayed.
func (h *Held) Admit() error { return h.advance(verified, admitted) }

// Arm takes the lease for one connection to the provider. A second connection, on which a transport would send the
// request again, is refused as replayed.
func (h *Held) Arm() error { return h.advance(admitted, armed) }

func (h *Held) advance(from, to step) error {
	h.guard.mu.Lock()
	defer h.guard.mu.Unlock()
	return h.advanceLocked(from, to)
}

// advanceLocked takes one step. Too early a step and a repeated one burn a lease that isn't committed.
func (h *Held) advanceLocked(from, to step) error {
	switch {
	case h.state == burnt:
		return h.why
	case h.state < from:
		return h.burnLocked(Refusal{Reason: UnsealedTooEarly})
	case h.state > from:
		return h.burnLocked(Refusal{Reason: Replayed})
	}
	h.state = to
	return nil
}

// burnLocked ends the lease, unless it has ended, and returns why.
func (h *Held) burnLocked(why Refusal) error {
	if h.state < committedState {
		h.state, h.why, h.envelope = burnt, why, nil
	}
	return why
}

// Redeem opens the secret into page and has send write it. It checks again everything that can have changed, opens,
// checks the secret's bytes, and commits under the lock that Revoke takes; only then it calls send, with the front part
// of page. page is memory that the caller chose for it: MaxSecret bytes hold every secret. What was put into it is cleared
// before Redeem returns, however it returns. now is called twice. The error is a Refusal, or what send returned; after an
// error of send the lease counts as used.
func (h *Held) Redeem(page []byte, now func() Time, send func(secret []byte) error) error {
	n, err := h.open(page, now())
	if err != nil {
		return err // nothing was put into page
	}
	defer clear(page[:n])
	if err := h.commit(now()); err != nil {
		return err
	}
	return send(page[:n:n])
}

// open is the fence before the private key is used, and its use.
func (h *Held) open(page []byte, now Time) (n int, err error) {
	g := h.guard
	g.mu.Lock()
	if err := h.advanceLocked(armed, opening); err != nil {
		g.mu.Unlock()
		return 0, err
	}
	if err := g.fenceLocked(&h.claims, now); err != nil {
		err = h.burnLocked(err.(Refusal))
		g.mu.Unlock()
		return 0, err
	}
	private, ok := g.recipientLocked(h.claims.RecipientKeyID).box.get()
	e := h.envelope
	h.envelope = nil
	g.mu.Unlock()

	if !ok {
		return 0, h.burn(Refusal{Reason: OpenFailed})
	}
	if n, err = e.open(private, page); err != nil {
		return 0, h.burn(err.(Refusal))
	}
	return n, nil
}

// commit is the point after which the secret counts as sent, and up to which Revoke, Close, End and Burn prevent it.
func (h *Held) commit(now Time) error {
	g := h.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.state == burnt {
		return h.why
	}
	if err := g.fenceLocked(&h.claims, now); err != nil {
		return h.burnLocked(err.(Refusal))
	}
	h.state = committedState
	return nil
}

func (h *Held) burn(why Refusal) error {
	h.guard.mu.Lock()
	defer h.guard.mu.Unlock()
	return h.burnLocked(why)
}

// Burn ends the lease with a refusal that its user found (injection_failed, origin_refused), unless it is committed or
// burnt already.
func (h *Held) Burn(why Refusal) {
	_ = h.burn(why)
}

// End says that the request is over and returns what became of the lease: a lease that was never sent is burnt as
// unused. Calling it again changes nothing.
func (h *Held) End() Outcome {
	h.Burn(Refusal{Reason: Unused})
	g := h.guard
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.held, h)
	if h.state == committedState {
		return Outcome{State: Committed}
	}
	return Outcome{State: Refused, Refusal: h.why}
}
