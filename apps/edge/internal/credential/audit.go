package credential

import (
	"maps"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/events"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
)

// What a slot's change is called beside the states.
const (
	rotatedCode = "rotated"
	removedCode = "removed"
)

func newCounts() Counts {
	return Counts{Leases: map[string]map[string]uint64{}, Refusals: map[string]uint64{}, RefreshFailures: map[string]uint64{}}
}

// unavailableResult is what leases count as that weren't issued.
const unavailableResult = "unavailable"

// count counts a lease's end; the lock is held.
func (s *Store) count(slot, result string) {
	of := s.counts.Leases[slot]
	if of == nil {
		of = map[string]uint64{}
		s.counts.Leases[slot] = of
	}
	of[result]++
}

// Counts returns what became of leases since the start.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.Leases = make(map[string]map[string]uint64, len(s.counts.Leases))
	for slot, results := range s.counts.Leases {
		c.Leases[slot] = maps.Clone(results)
	}
	c.Refusals, c.RefreshFailures = maps.Clone(c.Refusals), maps.Clone(c.RefreshFailures)
	return c
}

// lease puts into a line of the log which lease it is about. Names and numbers only: that is all there is to an entry.
func (e *entry) lease(line *zerolog.Event) *zerolog.Event {
	return line.Str("lease_id", e.id).Str("run_id", e.run).Uint32("attempt", e.attempt).Str("slot", e.slot).Uint64("slot_revision", e.revision).
		Str("node_id", e.to.node).Uint64("connection_generation", e.to.generation)
}

// often is what events of leases have in common that could come by the thousand: a slot that is revoked refuses every
// request.
type often struct {
	kind             events.Kind
	slot, code, node string
}

// quiet is how long such an event isn't published again. The log has each, and counts do.
const quiet = time.Second

// tellOf publishes what became of a lease, unless the same was told just now: the bus remembers what happened to nodes, too.
func (s *Store) tellOf(e *entry, kind events.Kind, code, text string) {
	of := often{kind, e.slot, code, e.to.node}
	now := time.Now()
	s.mu.Lock()
	last, before := s.published[of]
	again := before && now.Sub(last) < s.quiet
	if !again {
		s.published[of] = now
	}
	s.mu.Unlock()
	if !again {
		s.publishEvent(events.Event{Kind: kind, NodeID: e.to.node, Generation: e.to.generation, RunID: e.run, Attempt: e.attempt, Code: code, Text: text})
	}
}

func (s *Store) publishEvent(e events.Event) {
	if s.cfg.Events != nil {
		s.cfg.Events.Publish(e)
	}
}

func (s *Store) issued(e *entry) { e.lease(s.cfg.Log.Info()).Msg("lease issued") }

// refusedHere audits a lease that this edge didn't issue.
func (s *Store) refusedHere(o *Order, why credentiallease.Refusal) {
	e := &entry{run: o.RunID, slot: o.Route.Slot, to: peer{o.NodeID, o.Generation}, attempt: o.Attempt}
	s.mu.Lock()
	s.count(e.slot, unavailableResult)
	s.counts.Refusals[why.Reason.String()]++
	s.mu.Unlock()
	e.lease(s.cfg.Log.Warn()).Str("reason", why.Reason.String()).Str("field", why.Field.String()).Str("by", "edge").Msg("lease refused")
	s.tellOf(e, events.KindLeaseRefused, why.Reason.String(), "the edge lends no key of slot "+e.slot+": "+why.String())
}

// refusedThere audits a lease that its node refused.
func (s *Store) refusedThere(e *entry, why execution.LeaseRefusal) {
	r := credentiallease.Refusal{Reason: credentiallease.Reason(why.Reason), Field: credentiallease.Field(why.Field)}
	s.mu.Lock()
	s.counts.Refusals[r.Reason.String()]++
	if r.Reason.Security() {
		s.counts.Security++
	}
	s.mu.Unlock()
	if r.Reason == credentiallease.Unused { // somebody left before it was their turn
		e.lease(s.cfg.Log.Info()).Msg("lease unused")
		return
	}
	e.lease(s.cfg.Log.Warn()).Str("reason", r.Reason.String()).Str("field", r.Field.String()).Str("by", "node").Msg("lease refused")
	kind := events.KindLeaseRefused
	if r.Reason.Security() {
		kind = events.KindLeaseMisused
	}
	s.tellOf(e, kind, r.Reason.String(), "the node didn't use the key of slot "+e.slot+": "+r.String())
}

// misused audits what only an attack or a broken program explains.
func (s *Store) misused(e *entry, nodeID, code string) {
	s.mu.Lock()
	s.counts.Security++
	s.mu.Unlock()
	e.lease(s.cfg.Log.Error()).Str("told_by", nodeID).Str("what", code).Msg("lease misused")
	by := *e
	by.to.node = nodeID
	s.tellOf(&by, events.KindLeaseMisused, code, nodeID+" says that it used a lease of slot "+e.slot+": "+code)
}

// slotChanged audits a change of a slot that is in force.
func (s *Store) slotChanged(id, what string, p Push) {
	s.mu.Lock()
	r := s.records[id]
	s.mu.Unlock()
	s.cfg.Log.Info().Str("slot", id).Str("what", what).Uint64("slot_revision", p.MinRevision).Bool("disabled", p.Disabled).
		Str("fingerprint", fingerprint(r.Key)).Msg("slot changed")
	s.publishEvent(events.Event{Kind: events.KindSlotChanged, Code: what, Text: "slot " + id + ": " + what})
}

// slotStale audits that a slot's source can't be read; err holds nothing that was read.
func (s *Store) slotStale(id string, err error) {
	s.cfg.Log.Warn().Err(err).Str("slot", id).Msg("a slot's source can't be read; its last key is used until stale_max")
	s.publishEvent(events.Event{Kind: events.KindSlotStale, Code: "unreadable", Text: "slot " + id + ": its source " + err.Error()})
}
