package credentiallease

import (
	"crypto/ed25519"
	"errors"
	"sync"
	"time"
)

// Defaults of a Guard.
const (
	DefaultTolerance = 5 * time.Second // by which a lease may be early
	DefaultMaxReplay = 65536

	maxRecipients = 4
)

// Config is what a Guard is made for.
type Config struct {
	NodeID     string
	EdgeID     string // whose leases these are: the edge's name from registration
	Generation uint64 // of the connection
	MaxReplay  int    // lease ids remembered at most; 0 = DefaultMaxReplay, which is the most
}

// Projection is what a node was told of the edge's configuration, as far as leases go.
type Projection struct {
	Number    uint64 // from 1
	Keys      []VerifyKey
	Slots     []SlotState
	Routes    []Revision
	Profiles  []Revision
	MaxTTL    time.Duration // 0 or more than MaxTTL = MaxTTL
	Tolerance time.Duration // of not-before only; 0 = DefaultTolerance, which is the most
}

// SlotState says which leases of a slot count. Every change of it raises MinRevision.
type SlotState struct {
	ID          string
	MinRevision uint64 // leases of an older revision of the secret are revoked
	Disabled    bool
}

// Revision is a named route or profile as the node knows it.
type Revision struct {
	Name   string
	Number uint64
}

// Revocation is CredentialRevoked.
type Revocation struct {
	Slot        string
	MinRevision uint64
	Disabled    bool
}

// Guard decides at a node which leases of one connection may be used. It owns what can change under a lease: the edge's
// keys, slots, revisions, the node's recipient keys, and which lease ids were seen. Safe for concurrent use; no
// cryptography is done under its lock.
type Guard struct {
	node, edge string // set once, as is the generation
	generation uint64

	mu         sync.Mutex
	maxTTL     int64 // milliseconds, as is tolerance
	tolerance  int64
	closed     bool
	projection uint64
	settled    uint64  // the lowest projection that leases may still name
	keys       keyring // replaced, never changed
	slots      map[string]slot
	routes     map[string]uint64
	profiles   map[string]uint64
	recipients []recipientEntry // the current one is the last
	seen       replaySet
	held       map[*Held]struct{} // verified and not ended
}

// slot is what is known of one slot. Entries stay for the connection's life, so that a floor outlives a projection that
// doesn't name the slot.
type slot struct {
	known    bool   // by the projection in force
	floor    uint64 // the least revision that counts; it never goes down
	disabled bool
}

// hear takes what a projection or a revocation says of the slot. Every change of a slot's state raises its MinRevision,
// so that the higher one is the later word, in whatever order the two ways brought them; of the same one, disabled counts.
func (s *slot) hear(minRevision uint64, disabled bool) {
	switch {
	case minRevision > s.floor:
		s.floor, s.disabled = minRevision, disabled
	case minRevision == s.floor:
		s.disabled = s.disabled || disabled
	}
}

// recipientEntry is a recipient key, and until when one that was replaced still opens.
type recipientEntry struct {
	key      *RecipientKey
	replaced bool
	until    int64 // 0 = not known yet: the clock wasn't synchronized when it was replaced
}

// NewGuard returns the guard of a new connection, which refuses everything until Project and UseRecipient were called.
func NewGuard(cfg Config) (*Guard, error) {
	if cfg.NodeID == "" || cfg.EdgeID == "" || cfg.Generation == 0 {
		return nil, errors.New("credentiallease: a guard needs the names of node and edge and the connection's generation")
	}
	if cfg.MaxReplay <= 0 || cfg.MaxReplay > DefaultMaxReplay {
		cfg.MaxReplay = DefaultMaxReplay
	}
	return &Guard{
		node: cfg.NodeID, edge: cfg.EdgeID, generation: cfg.Generation,
		slots: map[string]slot{},
		seen:  replaySet{max: cfg.MaxReplay},
		held:  map[*Held]struct{}{},
	}, nil
}

// Project takes over a configuration. Its number must not be lower than the last one's, and its keys must be named by
// their hashes; otherwise nothing changes. Of a slot the state with the higher MinRevision counts, Project's or Revoke's: see [Guard.Revoke].
func (g *Guard) Project(p Projection) error {
	keys, err := newKeyring(p.Keys)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.Number == 0 || p.Number < g.projection {
		return errors.New("credentiallease: a projection's number must not go down")
	}
	if g.projection == 0 {
		g.settled = p.Number
	}
	g.projection, g.keys = p.Number, keys
	g.maxTTL, g.tolerance = limit(p.MaxTTL, MaxTTL), limit(p.Tolerance, DefaultTolerance)
	g.routes, g.profiles = revisions(p.Routes), revisions(p.Profiles)
	for id, s := range g.slots {
		s.known = false
		g.slots[id] = s
	}
	for _, told := range p.Slots {
		s := g.slots[told.ID]
		s.known = true
		s.hear(told.MinRevision, told.Disabled)
		g.slots[told.ID] = s
	}
	return nil
}

// Settle says that the edge knows that the node works by this projection, or a later one: leases that name an earlier one
// are stale from now on. Until then the edge issues by what it was told last, and such leases are as good as any: what they
// say of slots, routes and profiles is checked by the projection in force all the same.
func (g *Guard) Settle(projection uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settled = max(g.settled, min(projection, g.projection))
}

// limit returns d in milliseconds, most where d is absent or more.
func limit(d, most time.Duration) int64 {
	if d <= 0 || d > most {
		d = most
	}
	return d.Milliseconds()
}

func revisions(list []Revision) map[string]uint64 {
	m := make(map[string]uint64, len(list))
	for _, r := range list {
		m[r.Name] = r.Number
	}
	return m
}

// UseRecipient takes over a recipient key that was proven to the edge. Earlier ones open what was issued for them until
// MaxTTL and five seconds have passed, and are dropped then.
func (g *Guard) UseRecipient(k *RecipientKey, now Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		k.Drop()
		return
	}
	if n := len(g.recipients); n > 0 {
		g.recipients[n-1].replaced = true
	}
	g.recipients = append(g.recipients, recipientEntry{key: k})
	for len(g.recipients) > maxRecipients {
		g.dropOldestLocked()
	}
	g.expireLocked(now)
}

// Expire drops what time has ended: recipient keys that were replaced, and ids that nobody would accept again. Verify
// does so too; a node without work calls it once in a while, so that no key stays longer than it must.
func (g *Guard) Expire(now Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expireLocked(now)
}

func (g *Guard) expireLocked(now Time) {
	if !now.Synced {
		return
	}
	for i := range g.recipients {
		if r := &g.recipients[i]; r.replaced && r.until == 0 {
			r.until = now.Latest + MaxTTL.Milliseconds() + graceMS
		}
	}
	for len(g.recipients) > 0 && g.recipients[0].replaced && g.recipients[0].until <= now.Earliest {
		g.dropOldestLocked()
	}
	g.seen.forget(now)
}

func (g *Guard) dropOldestLocked() {
	g.recipients[0].key.Drop()
	g.recipients = append(g.recipients[:0:0], g.recipients[1:]...)
}

// Verify checks a lease against everything except its ciphertext and takes its id: a second Verify of the same lease is
// refused. b is what the node itself is about to do. It must be called before the request is admitted. Its errors are
// Refusals, those of the first check that fails: form, version, key, signature, claims, recipient, connection,
// projection, slot, profile and route, time, binding, replay. The caller must End what it returns.
func (g *Guard) Verify(wire []byte, b Binding, now Time) (*Held, error) {
	// A copy: wire may be a part of a buffer that is read into again.
	e, err := decodeEnvelope(append([]byte(nil), wire...))
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	keys := g.keys
	g.mu.Unlock()
	key, ok := keys.find(e.kid, now)
	if !ok {
		return nil, refuse(UnknownKey, FieldNone)
	}
	if !ed25519.Verify(key.Public, e.signed(), e.sig) {
		return nil, refuse(BadSignature, FieldNone)
	}
	c, err := decodeClaims(e.claims)
	switch {
	case err != nil:
		return nil, err
	case c.KeyID != e.kid:
		return nil, refuse(BindingMismatch, FieldKeyID)
	case c.Issuer != g.edge:
		return nil, refuse(BindingMismatch, FieldIssuer)
	}
	h := &Held{guard: g, claims: *c, envelope: e, state: verified}
	if err := g.take(h, &b, now); err != nil {
		return nil, err
	}
	return h, nil
}

// take is the part of Verify that needs what can change, in one critical section.
func (g *Guard) take(h *Held, b *Binding, now Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.expireLocked(now)
	if err := g.fenceLocked(&h.claims, now); err != nil {
		return err
	}
	if f := h.claims.differs(b); f != FieldNone {
		return refuse(BindingMismatch, f)
	}
	if err := h.claims.allowed(); err != nil {
		return err
	}
	if err := g.seen.reserve(h.claims.LeaseID, h.claims.ExpiresAt, now); err != nil {
		return err
	}
	g.held[h] = struct{}{}
	return nil
}

// fenceLocked checks everything that can change between Verify and the write that sends the secret.
func (g *Guard) fenceLocked(c *Claims, now Time) error {
	s := g.slots[c.Slot]
	_, trusted := g.keys.find(c.KeyID, now)
	switch {
	case !trusted:
		return refuse(UnknownKey, FieldNone)
	case c.NodeID != g.node:
		return refuse(WrongRecipient, FieldNodeID)
	case !g.closed && g.recipientLocked(c.RecipientKeyID) == nil:
		return refuse(WrongRecipient, FieldRecipientKey)
	case g.closed || c.Generation != g.generation:
		return refuse(StaleGeneration, FieldConnection)
	case c.Projection > g.projection || c.Projection < g.settled:
		return refuse(StaleGeneration, FieldProjection)
	case s.disabled || !s.known:
		return refuse(Disabled, FieldNone)
	case c.SlotRevision < s.floor:
		return refuse(Revoked, FieldNone)
	case g.profiles[c.Profile] != c.ProfileRevision:
		return refuse(StaleRevision, FieldProfile)
	case g.routes[c.Route] != c.RouteRevision:
		return refuse(StaleRevision, FieldRoute)
	}
	return g.timelyLocked(c, now)
}

// timelyLocked checks the lease's times. Not knowing the time exactly makes a lease end earlier and begin later.
func (g *Guard) timelyLocked(c *Claims, now Time) error {
	switch {
	case !now.Synced:
		return refuse(ClockUnsynced, FieldNone)
	case c.NotBefore-g.tolerance > now.Earliest:
		return refuse(NotYetValid, FieldNone)
	case now.Latest >= c.ExpiresAt:
		return refuse(Expired, FieldNone)
	case c.ExpiresAt-min(c.IssuedAt, c.NotBefore) > g.maxTTL:
		return refuse(TTLTooLong, FieldNone)
	}
	return nil
}

func (g *Guard) recipientLocked(id string) *RecipientKey {
	for _, r := range g.recipients {
		if r.key.ID() == id {
			return r.key
		}
	}
	return nil
}

// Revoke takes in a change of a slot's state, and returns the ids of the runs that are still on and have sent a secret
// that doesn't count any more, in no order. After it has returned no byte of such a secret leaves except in those runs.
// Every change raises MinRevision, and the state with the higher one counts: disabled wins over enabled of the same one,
// a lower one changes nothing. So a slot is enabled again by a higher MinRevision, and leases that were issued before a
// change stay revoked whatever comes later.
func (g *Guard) Revoke(r Revocation) (committed []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.slots[r.Slot]
	s.hear(r.MinRevision, r.Disabled)
	g.slots[r.Slot] = s
	for h := range g.held {
		if h.state == committedState && h.claims.Slot == r.Slot && (s.disabled || h.claims.SlotRevision < s.floor) {
			committed = append(committed, h.claims.RunID)
		}
	}
	return committed
}

// Close ends the connection: every lease that isn't committed is refused from now on, and the recipient keys are gone.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for len(g.recipients) > 0 {
		g.dropOldestLocked()
	}
	g.seen = replaySet{max: g.seen.max}
}
