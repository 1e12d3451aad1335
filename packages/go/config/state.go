package config

import (
	"crypto/subtle"
	"encoding/hex"
	"maps"
	"slices"
	"time"
)

// State is the Edge's immutable runtime view: routes, principals, nodes and what each node is told. It is swapped as a
// whole; every method may be called concurrently and returns values that must not be modified.
type State struct {
	// Version numbers the states of one Edge, across restarts too if the caller continues the count.
	Version uint64
	// Edge is the configuration that the state was made from.
	Edge *Edge

	nodes       map[string]*NodeRecord
	routes      map[string]*Route
	projections map[string]*Projection
	tokens      hashList
	tokenOwners []tokenOwner // beside tokens
	keys        hashList
	keyOwners   []*Principal // beside keys
	principals  map[string]*Principal
	adminKeys   hashList

	slots            map[string]*Slot
	profiles         map[string]*Profile
	profileRevisions map[string]uint64
	routeRefs        map[string]ProjectedRoute
}

type tokenOwner struct {
	node     *NodeRecord
	notAfter time.Time
}

// NewState builds the runtime view of e. Projections, adapters, routes and profiles that are as they were in prev (nil =
// there is none) keep their numbers, the others get version. A version that isn't above prev's is raised to one that is;
// the first one must be above every one that an earlier process of this Edge used, so that no number goes backwards.
func NewState(e *Edge, version uint64, prev *State) *State {
	if prev != nil {
		version = max(version, prev.Version+1)
	}
	s := &State{
		Version:     version,
		Edge:        e,
		nodes:       make(map[string]*NodeRecord, len(e.Nodes)),
		routes:      make(map[string]*Route, len(e.Routes)),
		projections: make(map[string]*Projection, len(e.Nodes)),
		principals:  make(map[string]*Principal, len(e.Principals)),

		slots:            make(map[string]*Slot, len(e.Slots)),
		profiles:         make(map[string]*Profile, len(e.Profiles)),
		profileRevisions: make(map[string]uint64, len(e.Profiles)),
		routeRefs:        make(map[string]ProjectedRoute, len(e.Routes)),
	}
	for i := range e.Routes {
		s.routes[e.Routes[i].Model] = &e.Routes[i]
	}
	s.number(prev)
	for i := range e.Nodes {
		n := &e.Nodes[i]
		s.nodes[n.ID] = n
		s.projections[n.ID] = s.project(n, prev)
		for _, t := range n.TokenHashes {
			if s.tokens.add(t.SHA256) {
				s.tokenOwners = append(s.tokenOwners, tokenOwner{node: n, notAfter: t.NotAfter})
			}
		}
	}
	for i := range e.Principals {
		p := &e.Principals[i]
		s.principals[p.ID] = p
		for _, h := range p.KeyHashes {
			if s.keys.add(h) {
				s.keyOwners = append(s.keyOwners, p)
			}
		}
	}
	for _, h := range e.AdminKeyHashes {
		s.adminKeys.add(h)
	}
	return s
}

func (a *Adapter) equal(b *Adapter) bool {
	return a.Name == b.Name && a.Kind == b.Kind && a.BaseURL == b.BaseURL && a.MaxConcurrency == b.MaxConcurrency &&
		slices.Equal(a.Targets, b.Targets) && slices.Equal(a.AllowPaths, b.AllowPaths) &&
		maps.Equal(a.Options, b.Options)
}

// Node returns the record of a node, or nil.
func (s *State) Node(id string) *NodeRecord { return s.nodes[id] }

// NodeByTokenHash returns the record whose token has this hash; expired reports that the token's not_after has
// passed, and such a token must be refused. nil is an unknown token. It takes the same time whichever record it is.
func (s *State) NodeByTokenHash(sum [32]byte, now time.Time) (rec *NodeRecord, expired bool) {
	at := s.tokens.find(&sum)
	if at < 0 {
		return nil, false
	}
	owner := s.tokenOwners[at]
	return owner.node, !owner.notAfter.IsZero() && now.After(owner.notAfter)
}

// PrincipalByKeyHash returns the principal that an API key with this hash belongs to, or nil. It takes the same time
// whichever principal it is.
func (s *State) PrincipalByKeyHash(sum [32]byte) *Principal {
	if at := s.keys.find(&sum); at >= 0 {
		return s.keyOwners[at]
	}
	return nil
}

// Principal returns the principal of that id, or nil; callers without a key are none.
func (s *State) Principal(id string) *Principal { return s.principals[id] }

// AdminKey reports whether a key with this hash opens the admin listener.
func (s *State) AdminKey(sum [32]byte) bool { return s.adminKeys.find(&sum) >= 0 }

// Anonymous reports whether callers need no key: no principals are configured.
func (s *State) Anonymous() bool { return len(s.Edge.Principals) == 0 }

// Route returns the route that serves a model: the one of that name, else the route "*", else nil.
func (s *State) Route(model string) *Route {
	if r := s.routes[model]; r != nil {
		return r
	}
	return s.routes["*"]
}

// Routes returns the routes in the order of the file.
func (s *State) Routes() []Route { return s.Edge.Routes }

// Projection returns what the node is to be told, or nil for a node that isn't configured.
func (s *State) Projection(nodeID string) *Projection { return s.projections[nodeID] }

// hashList is searched as a whole each time, so that the time tells nothing about what is in it.
type hashList [][32]byte

// add appends a hash in hex; what isn't one is skipped, and can't be found.
func (l *hashList) add(sha256hex string) bool {
	b, err := hex.DecodeString(sha256hex)
	if err != nil || len(b) != 32 {
		return false
	}
	*l = append(*l, [32]byte(b))
	return true
}

// find returns the position of sum, or -1.
func (l hashList) find(sum *[32]byte) int {
	at := 0
	for i := range l {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(l[i][:], sum[:]), i+1, at)
	}
	return at - 1
}
