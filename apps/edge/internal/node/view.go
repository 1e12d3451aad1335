package node

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// NodeView is one configured node as the admin API shows it; the JSON names are settled. It holds no secret.
type NodeView struct {
	ID            string        `json:"id"`
	State         State         `json:"state"`
	Reason        string        `json:"reason"`      // why it gets no work, "" = it does
	Drained       bool          `json:"drained"`     // an operator keeps new work from it
	Generation    uint64        `json:"generation"`  // of the current connection, else of the last; 0 = never connected
	InstanceID    string        `json:"instance_id"` // of the node's process, hex
	Version       string        `json:"version"`
	Since         *time.Time    `json:"since"`          // registered at; null when not connected
	LastHeartbeat *time.Time    `json:"last_heartbeat"` // when anything last came from it; null when not connected
	Adapters      []AdapterView `json:"adapters"`
}

// AdapterView is one adapter of a node.
type AdapterView struct {
	Name      string      `json:"name"`
	Kind      string      `json:"kind"` // of driver, as configured
	Available bool        `json:"available"`
	Reason    string      `json:"reason"`
	Version   string      `json:"version"`
	InFlight  int         `json:"in_flight"`
	Capacity  int         `json:"capacity"`
	Models    []ModelView `json:"models"`
}

// ModelView is one model that a provider has.
type ModelView struct {
	Name   string `json:"name"`
	Loaded bool   `json:"loaded"`
}

// AdapterModels is what one adapter of a node offered when it was last heard of.
type AdapterModels struct {
	NodeID, Adapter, Kind string
	Labels                map[string]string
	Targets               []string // configured; empty = Models
	Models                []execution.Model
	Ready                 bool // work may be sent there now
}

// Nodes returns every configured node in the order of the file, connected or not, and then those that are connected
// though they are no longer configured.
func (r *Registry) Nodes() []NodeView {
	st := r.State()
	live := make(map[string]*Connection)
	for _, c := range r.Connections() {
		live[c.NodeID] = c
	}
	views := make([]NodeView, 0, len(st.Edge.Nodes))
	for i := range st.Edge.Nodes {
		rec := &st.Edge.Nodes[i]
		if c := live[rec.ID]; c != nil {
			views = append(views, c.view())
			delete(live, rec.ID)
			continue
		}
		views = append(views, r.offline(rec))
	}
	for _, c := range r.Connections() {
		if live[c.NodeID] == c {
			views = append(views, c.view())
		}
	}
	return views
}

// offline is the view of a node that isn't connected.
func (r *Registry) offline(rec *config.NodeRecord) NodeView {
	v := NodeView{ID: rec.ID, State: StateOffline, Reason: "it isn't connected", Adapters: []AdapterView{}}
	if !rec.Enabled {
		v.State, v.Reason = StateDisabled, "the configuration has it disabled"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[rec.ID]
	if e == nil {
		return v
	}
	v.Drained = e.drained
	if e.gone == nil {
		return v
	}
	last := e.gone.view
	v.Generation, v.InstanceID, v.Version = last.Generation, last.InstanceID, last.Version
	if rec.Enabled {
		v.Reason = fmt.Sprintf("its connection ended %s: %s", e.gone.over.UTC().Format(time.RFC3339), e.gone.why)
	}
	return v
}

// view shows a connection.
func (c *Connection) view() NodeView {
	read := c.Link.Status().LastRead
	since := c.Since
	c.mu.Lock()
	defer c.mu.Unlock()
	v := NodeView{ID: c.NodeID, State: c.stateLocked(), Drained: c.st.drained, Generation: c.Generation,
		InstanceID: hex.EncodeToString(c.InstanceID[:]), Version: c.Version, Since: &since,
		Adapters: make([]AdapterView, len(c.st.adapters))}
	if v.State != StateReady {
		v.Reason = c.st.reason(v.State)
	}
	if !read.IsZero() {
		v.LastHeartbeat = &read
	}
	for i := range c.st.adapters {
		v.Adapters[i] = c.st.adapters[i].view()
	}
	return v
}

func (a *adapterStatus) view() AdapterView {
	v := AdapterView{Name: a.Name, Kind: a.Kind, Available: a.Available, Reason: a.Reason, Version: a.version,
		InFlight: a.inFlight, Capacity: a.Capacity, Models: make([]ModelView, len(a.Models))}
	for i, m := range a.Models {
		v.Models[i] = ModelView{Name: m.Name, Loaded: m.Loaded}
	}
	return v
}

// Models returns what every adapter offers that a node reported as available. For a short while after a node's link was
// lost, and until its next one is ready, that is what it offered before: a list that flickers with a reconnect makes
// clients forget what they use.
func (r *Registry) Models() []AdapterModels {
	st, now := r.State(), time.Now()
	var live []*Connection
	var all []AdapterModels
	r.mu.Lock()
	for id, e := range r.entries {
		rec := st.Node(id)
		switch {
		case rec == nil || !rec.Enabled:
		case e.current != nil && e.current.heard():
			live = append(live, e.current)
		case e.gone != nil && now.Sub(e.gone.at) <= r.cfg.ModelLinger:
			all = append(all, e.gone.list...)
		}
	}
	r.mu.Unlock()
	for _, c := range live {
		all = append(all, c.models()...)
	}
	slices.SortFunc(all, func(a, b AdapterModels) int {
		return cmp.Or(cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.Adapter, b.Adapter))
	})
	return all
}

// heard reports whether the node has ever said on this connection what it has.
func (c *Connection) heard() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.st.applied != 0
}

func (c *Connection) models() []AdapterModels {
	c.mu.Lock()
	defer c.mu.Unlock()
	ready := c.stateLocked() == StateReady
	var list []AdapterModels
	for i := range c.st.adapters {
		if a := &c.st.adapters[i]; a.Available {
			list = append(list, AdapterModels{NodeID: c.NodeID, Adapter: a.Name, Kind: a.Kind, Labels: c.labels,
				Targets: a.Targets, Models: a.Models, Ready: ready})
		}
	}
	return list
}
