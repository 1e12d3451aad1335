package admin

import (
	"context"
	"errors"
	"net/http"
	"time"

	"iop/packages/go/execution"
)

// ErrUnknownSlot is what the functions of [Slots] return for a slot that the configuration doesn't have.
var ErrUnknownSlot = errors.New("no slot of that id is configured")

// Slots is what operators see of the providers' keys and may do with them. No function returns a key, and no error holds
// one. A change that returns an error wasn't done; one that was done is in force for the next request.
type Slots struct {
	// Status returns the slots of the configuration, in its order.
	Status func() []SlotStatus
	// Refresh reads the slot's source now.
	Refresh func(ctx context.Context, id string) (SlotChange, error)
	// Disable stops leases of the slot until it is enabled.
	Disable func(ctx context.Context, id string) (SlotChange, error)
	// Enable makes a disabled slot active.
	Enable func(ctx context.Context, id string) (SlotChange, error)
	// Revoke makes the key that the slot has worthless for good. cancelRunning ends the runs that have it on the wire, too.
	Revoke func(ctx context.Context, id string, cancelRunning bool) (SlotChange, error)

	// Keys returns the keys that leases are signed with, the one in use first.
	Keys func() []LeaseKey
	// RotateKey puts a new one in its place: nodes are told first.
	RotateKey func(ctx context.Context) error
	// DropKey withdraws one at once.
	DropKey func(ctx context.Context, id string) error
}

// LeaseKey is a key that leases are signed with, by its name.
type LeaseKey struct {
	ID       string
	NotAfter time.Time // until when what it has signed is accepted, zero = it is in use, or about to be
}

// The states of a slot.
const (
	SlotActive   = "active"
	SlotDisabled = "disabled"
	SlotRevoked  = "revoked"
)

// SlotStatus is one slot.
type SlotStatus struct {
	ID          string
	State       string // [SlotActive], [SlotDisabled] or [SlotRevoked]
	Reason      string // why it isn't active, or what is wrong with its source; "" = nothing
	Revision    uint64
	SourceKind  string // file, cred, env or exec
	Profile     string
	Header      string
	Origin      string
	Nodes       []string  // that may be given the key
	Length      int       // of the key in bytes, 0 = there is none
	Fingerprint string    // tells keys apart and nothing of them, "" = there is none
	Since       time.Time // of the revision
	LastRefresh time.Time // when its source was read last, well or not; zero = never
	Routes      []string  // models of the routes that use it
}

// SlotChange is what a change of a slot came to.
type SlotChange struct {
	Slot     string
	State    string
	Revision uint64
	// Running are the runs that have the key on the wire, or may have.
	Running []string
	// Unanswered are the nodes that had leases of the slot and didn't say in time that they know.
	Unanswered []string
	// Cancelled are those of Running that were cancelled.
	Cancelled []string
}

// SlotView is a slot as GET /admin/v1/slots shows it; the names are settled.
type SlotView struct {
	ID          string     `json:"id"`
	State       string     `json:"state"`
	Reason      string     `json:"reason"`
	Revision    uint64     `json:"revision"`
	Source      string     `json:"source"`
	Profile     string     `json:"profile"`
	Header      string     `json:"header"`
	Origin      string     `json:"origin"`
	Nodes       []string   `json:"nodes"`
	Length      int        `json:"length"`
	Fingerprint string     `json:"fingerprint"`
	Since       *time.Time `json:"since"`
	LastRefresh *time.Time `json:"last_refresh"`
	Routes      []string   `json:"routes"`
}

// LeaseKeyView is a signing key as GET /admin/v1/lease-keys shows it; the names are settled.
type LeaseKeyView struct {
	ID       string     `json:"id"`
	NotAfter *time.Time `json:"not_after"`
}

// SlotChangeView is the answer to a change of a slot; the names are settled.
type SlotChangeView struct {
	Slot       string   `json:"slot"`
	State      string   `json:"state"`
	Revision   uint64   `json:"revision"`
	Running    []string `json:"running"`
	Unanswered []string `json:"unanswered"`
	Cancelled  []string `json:"cancelled"`
}

// slots answers GET /admin/v1/slots.
func (h *handler) slots(w http.ResponseWriter, r *http.Request) {
	if h.noSlots(w, r) {
		return
	}
	h.write(w, http.StatusOK, map[string]any{"slots": h.slotViews()})
}

// slotViews are the slots, none where there are none.
func (h *handler) slotViews() []SlotView {
	if h.cfg.Slots == nil {
		return []SlotView{}
	}
	status := h.cfg.Slots.Status()
	views := make([]SlotView, len(status))
	for i, s := range status {
		views[i] = SlotView{ID: s.ID, State: s.State, Reason: s.Reason, Revision: s.Revision, Source: s.SourceKind, Profile: s.Profile,
			Header: s.Header, Origin: s.Origin, Nodes: listed(s.Nodes), Length: s.Length, Fingerprint: s.Fingerprint,
			Since: known(s.Since), LastRefresh: known(s.LastRefresh), Routes: listed(s.Routes)}
	}
	return views
}

// noSlots refuses what is asked of slots where there are none.
func (h *handler) noSlots(w http.ResponseWriter, r *http.Request) bool {
	if h.cfg.Slots == nil {
		h.refuse(w, r, &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: "this edge has no slots: none are configured"})
		return true
	}
	return false
}

func (h *handler) refreshSlot(w http.ResponseWriter, r *http.Request) {
	h.changeSlot(w, r, "refreshes", nil, func(s *Slots) (SlotChange, error) { return s.Refresh(r.Context(), r.PathValue("id")) })
}

func (h *handler) disableSlot(w http.ResponseWriter, r *http.Request) {
	h.changeSlot(w, r, "disables", nil, func(s *Slots) (SlotChange, error) { return s.Disable(r.Context(), r.PathValue("id")) })
}

func (h *handler) enableSlot(w http.ResponseWriter, r *http.Request) {
	h.changeSlot(w, r, "enables", nil, func(s *Slots) (SlotChange, error) { return s.Enable(r.Context(), r.PathValue("id")) })
}

// revokeSlot answers POST /admin/v1/slots/{id}/revoke: {"cancel_running"?: bool}.
func (h *handler) revokeSlot(w http.ResponseWriter, r *http.Request) {
	var cancel bool
	h.changeSlot(w, r, "revokes", map[string]any{"cancel_running": &cancel}, func(s *Slots) (SlotChange, error) {
		return s.Revoke(r.Context(), r.PathValue("id"), cancel)
	})
}

// changeSlot reads a body into fields, which may be empty, and does one thing with a slot.
func (h *handler) changeSlot(w http.ResponseWriter, r *http.Request, does string, fields map[string]any, do func(*Slots) (SlotChange, error)) {
	if h.noSlots(w, r) {
		return
	}
	body, refused := readBody(w, r)
	if refused == nil && len(body) > 0 {
		refused = parseObject(body, fields)
	}
	if refused != nil {
		h.refuse(w, r, refused)
		return
	}
	done, err := do(h.cfg.Slots)
	// Who did what is recorded whatever came of it.
	h.cfg.Log.Warn().Str("slot", r.PathValue("id")).Str("state", done.State).Uint64("revision", done.Revision).Strs("running", done.Running).
		Strs("unanswered", done.Unanswered).Strs("cancelled", done.Cancelled).Err(err).Str("remote", r.RemoteAddr).Msg("admin " + does + " a slot")
	switch {
	case errors.Is(err, ErrUnknownSlot):
		h.refuse(w, r, &refusal{status: http.StatusNotFound, code: execution.CodeBadRequest, text: ErrUnknownSlot.Error()})
	case err != nil:
		h.refuse(w, r, &refusal{status: http.StatusConflict, code: execution.CodeCredentialUnavailable, text: err.Error()})
	default:
		h.write(w, http.StatusOK, SlotChangeView{Slot: done.Slot, State: done.State, Revision: done.Revision,
			Running: listed(done.Running), Unanswered: listed(done.Unanswered), Cancelled: listed(done.Cancelled)})
	}
}

// listed is a list as JSON shows it: never null.
func listed(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// known is a time as JSON shows it: null when there is none.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// leaseKeys answers GET /admin/v1/lease-keys.
func (h *handler) leaseKeys(w http.ResponseWriter, r *http.Request) {
	if !h.noSlots(w, r) {
		h.writeLeaseKeys(w)
	}
}

func (h *handler) writeLeaseKeys(w http.ResponseWriter) {
	keys := h.cfg.Slots.Keys()
	views := make([]LeaseKeyView, len(keys))
	for i, k := range keys {
		views[i] = LeaseKeyView{ID: k.ID, NotAfter: known(k.NotAfter)}
	}
	h.write(w, http.StatusOK, map[string]any{"lease_keys": views})
}

// rotateLeaseKey answers POST /admin/v1/lease-keys/rotate with the keys that there are then.
func (h *handler) rotateLeaseKey(w http.ResponseWriter, r *http.Request) {
	h.changeLeaseKeys(w, r, "rotates the signing key", func(s *Slots) error { return s.RotateKey(r.Context()) })
}

// dropLeaseKey answers POST /admin/v1/lease-keys/{id}/drop.
func (h *handler) dropLeaseKey(w http.ResponseWriter, r *http.Request) {
	h.changeLeaseKeys(w, r, "drops a signing key", func(s *Slots) error { return s.DropKey(r.Context(), r.PathValue("id")) })
}

func (h *handler) changeLeaseKeys(w http.ResponseWriter, r *http.Request, does string, do func(*Slots) error) {
	if h.noSlots(w, r) {
		return
	}
	err := do(h.cfg.Slots)
	h.cfg.Log.Warn().Str("kid", r.PathValue("id")).Err(err).Str("remote", r.RemoteAddr).Msg("admin " + does)
	if err != nil {
		h.refuse(w, r, &refusal{status: http.StatusConflict, code: execution.CodeCredentialUnavailable, text: err.Error()})
		return
	}
	h.writeLeaseKeys(w)
}
