package config

import "slices"

// Projection is what one node is told: it is numbered so that an acknowledgement can be matched. Of keys it holds which
// there are, and how they are used; never one of them, nor where it comes from. What concerns only other nodes isn't in
// it: a node that no slot lists has no routes, slots or profiles here.
type Projection struct {
	// Number only grows; it is the version of the first state that had this content.
	Number uint64
	// Adapters are the node's adapters, in the order of the file.
	Adapters []ProjectedAdapter
	// Routes are the routes whose slot lists the node, in the order of the file.
	Routes []ProjectedRoute
	// Slots are the ids of the slots that list the node, in the order of the file.
	Slots []string
	// Profiles are the profiles of those slots, in the order of the file.
	Profiles []ProjectedProfile
}

// ProjectedAdapter is an adapter with the number of its content.
type ProjectedAdapter struct {
	Adapter
	// Revision is the version of the first state in which the adapter was as it is.
	Revision uint64
}

// ProjectedRoute is a route with a slot, as far as it decides what a key is used for.
type ProjectedRoute struct {
	Name     string // its model, as in the file
	Revision uint64 // see [State.RouteRevision]
	Adapter  string
	Target   string // "" = the name that was asked for
	Slot     string
	Profile  string // of the slot
}

// ProjectedProfile is a profile with the number of its content.
type ProjectedProfile struct {
	Profile
	Revision uint64 // see [State.ProfileRevision]
}

// Renumbered returns s under another version, above its own, in which every node that a slot lists is to be told anew
// what it is told: the keys that leases are signed with have changed, and nothing of the configuration.
func (s *State) Renumbered(version uint64) *State {
	next := *s
	next.Version = max(version, s.Version+1)
	next.projections = make(map[string]*Projection, len(s.projections))
	for id, p := range s.projections {
		if len(p.Slots) > 0 {
			again := *p
			again.Number = next.Version
			p = &again
		}
		next.projections[id] = p
	}
	return &next
}

// Slot returns the slot of that id, or nil.
func (s *State) Slot(id string) *Slot { return s.slots[id] }

// Slots returns the slots in the order of the file.
func (s *State) Slots() []Slot { return s.Edge.Slots }

// Profile returns the profile of that id, or nil.
func (s *State) Profile(id string) *Profile { return s.profiles[id] }

// RouteRevision returns the version of the first state in which the route that serves a model had the slot, the
// profile, the adapter and the target that it has; 0 if there is no such route. What else a route says has no say in
// where a key goes, and doesn't change it.
func (s *State) RouteRevision(model string) uint64 {
	if r := s.Route(model); r != nil {
		return s.routeRefs[r.Model].Revision
	}
	return 0
}

// ProfileRevision returns the version of the first state in which the profile was as it is, 0 if there is none.
func (s *State) ProfileRevision(id string) uint64 { return s.profileRevisions[id] }

// number gives what keys are used by its revisions: what is as it was in prev keeps them.
func (s *State) number(prev *State) {
	for i := range s.Edge.Slots {
		s.slots[s.Edge.Slots[i].ID] = &s.Edge.Slots[i]
	}
	for i := range s.Edge.Profiles {
		p := &s.Edge.Profiles[i]
		s.profiles[p.ID], s.profileRevisions[p.ID] = p, s.Version
		if old := prev.profile(p.ID); old != nil && old.equal(p) {
			s.profileRevisions[p.ID] = prev.profileRevisions[p.ID]
		}
	}
	for i := range s.Edge.Routes {
		r := &s.Edge.Routes[i]
		ref := ProjectedRoute{Name: r.Model, Revision: s.Version, Adapter: r.Adapter, Target: r.Target, Slot: r.Slot}
		if slot := s.slots[r.Slot]; slot != nil {
			ref.Profile = slot.Profile
		}
		if prev != nil {
			if old, there := prev.routeRefs[r.Model]; there && old.sameUse(ref) {
				ref.Revision = old.Revision
			}
		}
		s.routeRefs[r.Model] = ref
	}
}

func (s *State) profile(id string) *Profile {
	if s == nil {
		return nil
	}
	return s.profiles[id]
}

func (p *Profile) equal(o *Profile) bool {
	return p.ID == o.ID && p.Origin == o.Origin && p.Header == o.Header && p.Scheme == o.Scheme && slices.Equal(p.Paths, o.Paths)
}

// sameUse reports whether two states of a route use the same key in the same way.
func (r ProjectedRoute) sameUse(o ProjectedRoute) bool {
	o.Revision = r.Revision
	return r == o
}

// project says what a node is told. What is unchanged since prev keeps its number, and the whole of it too.
func (s *State) project(n *NodeRecord, prev *State) *Projection {
	var old *Projection
	if prev != nil {
		old = prev.projections[n.ID]
	}
	p := &Projection{Number: s.Version, Adapters: make([]ProjectedAdapter, len(n.Adapters))}
	for i := range n.Adapters {
		a := ProjectedAdapter{Adapter: n.Adapters[i], Revision: s.Version}
		if old != nil {
			at := slices.IndexFunc(old.Adapters, func(o ProjectedAdapter) bool { return o.equal(&a.Adapter) })
			if at >= 0 {
				a.Revision = old.Adapters[at].Revision
			}
		}
		p.Adapters[i] = a
	}
	s.projectSlots(p, n.ID)
	if old != nil && old.equal(p) {
		return old
	}
	return p
}

// projectSlots adds the slots that list a node, and what is used by them.
func (s *State) projectSlots(p *Projection, node string) {
	profiles := map[string]bool{}
	for i := range s.Edge.Slots {
		if slot := &s.Edge.Slots[i]; slices.Contains(slot.Nodes, node) {
			p.Slots = append(p.Slots, slot.ID)
			profiles[slot.Profile] = true
		}
	}
	for i := range s.Edge.Routes {
		if r := &s.Edge.Routes[i]; slices.Contains(p.Slots, r.Slot) {
			p.Routes = append(p.Routes, s.routeRefs[r.Model])
		}
	}
	for i := range s.Edge.Profiles {
		if profile := &s.Edge.Profiles[i]; profiles[profile.ID] {
			p.Profiles = append(p.Profiles, ProjectedProfile{Profile: *profile, Revision: s.profileRevisions[profile.ID]})
		}
	}
}

// equal compares by names and revisions: one revision is one content.
func (p *Projection) equal(o *Projection) bool {
	return slices.EqualFunc(p.Adapters, o.Adapters, func(a, b ProjectedAdapter) bool { return a.Name == b.Name && a.Revision == b.Revision }) &&
		slices.Equal(p.Routes, o.Routes) && slices.Equal(p.Slots, o.Slots) &&
		slices.EqualFunc(p.Profiles, o.Profiles, func(a, b ProjectedProfile) bool { return a.ID == b.ID && a.Revision == b.Revision })
}
