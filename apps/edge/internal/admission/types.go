package admission

import (
	"maps"
	"slices"
	"time"

	"iop/packages/go/execution"
)

// Node is what a node's current connection offers, as a whole. After Publish it belongs to the scheduler: the caller
// changes neither it nor what it points to.
type Node struct {
	ID           string
	Generation   uint64
	Dispatchable bool
	Reason       string // why it isn't dispatchable
	Labels       map[string]string
	Adapters     []Adapter
}

func (n *Node) equal(o *Node) bool {
	return n.ID == o.ID && n.Generation == o.Generation && n.Dispatchable == o.Dispatchable && n.Reason == o.Reason &&
		maps.Equal(n.Labels, o.Labels) &&
		slices.EqualFunc(n.Adapters, o.Adapters, func(a, b Adapter) bool { return a.equal(&b) })
}

// Adapter is one adapter of a node, as it was last reported.
type Adapter struct {
	Name, Kind string
	Revision   uint64
	Capacity   int // places; 0 or less = none
	Available  bool
	Reason     string // why it isn't available
	Models     []execution.Model
	Targets    []string
	AllowPaths []string // provider paths beyond those of its kind
}

// Offers reports whether the adapter can be asked for target: by its configured targets if it has any, else by the
// models that its provider named if it named any, else anything. Names are compared by [execution.SameModel].
func (a *Adapter) Offers(target string) bool {
	if len(a.Targets) > 0 {
		return slices.ContainsFunc(a.Targets, func(name string) bool { return execution.SameModel(name, target) })
	}
	if len(a.Models) > 0 {
		return slices.ContainsFunc(a.Models, func(m execution.Model) bool { return execution.SameModel(m.Name, target) })
	}
	return true
}

func (a *Adapter) loaded(target string) bool {
	return slices.ContainsFunc(a.Models, func(m execution.Model) bool { return m.Loaded && execution.SameModel(m.Name, target) })
}

func (a *Adapter) equal(o *Adapter) bool {
	return a.Name == o.Name && a.Kind == o.Kind && a.Revision == o.Revision && a.Capacity == o.Capacity &&
		a.Available == o.Available && a.Reason == o.Reason &&
		slices.Equal(a.Models, o.Models) && slices.Equal(a.Targets, o.Targets) && slices.Equal(a.AllowPaths, o.AllowPaths)
}

// Place names where a run can execute: one adapter of one node.
type Place struct{ Node, Adapter string }

// Adopted is an execution of an earlier connection that a node said is still running.
type Adopted struct {
	RunID   string
	Attempt uint32
	Adapter string
}

// Request asks for a place. The same Request asks again for a further attempt of the same run (with another Attempt):
// it then stands at the position of its first arrival and has left of Wait what it hasn't spent waiting. It must not be
// used by two Acquire at once.
type Request struct {
	RunID     string
	Attempt   uint32
	Principal string
	// Weight is the principal's share of what is contended, beside those of others. 0 = 1.
	Weight float64

	// Set names the candidate set. Requests with the same Set and SetRevision have equal Target and a Match that answers
	// alike. The Match of a higher SetRevision (of a changed configuration) replaces it for the whole set, also for
	// those who wait.
	Set         string
	SetRevision uint64
	// Match says whether an available adapter of a dispatchable node is a candidate; nil = every one that offers
	// Target. It is called under the scheduler's lock, also after Acquire returned: it must be quick, depend on
	// nothing that changes, and not call the scheduler.
	Match func(n *Node, a *Adapter) bool
	// Target is what will be asked for; a candidate that has it loaded is preferred.
	Target string

	// Queue names those whose number Depth bounds: the sets of one route whose target the caller chooses wait in one
	// queue, or every name that callers think of would get a queue of its own. "" = the set.
	Queue string
	// Depth is how many may wait in the queue, 0 = nobody. Of a first arrival beyond it and of those who wait the last
	// one is refused of the principal that has most of the queue over its weight.
	Depth    int
	Wait     time.Duration // how long this request may wait in all. 0 = not at all
	FailFast bool          // refused with no_node, instead of waiting, while it has no candidate
	Exclude  []Place       // no candidates for this request, whatever Match says. Changed between two Acquire only
	// OnWait is called by Acquire when the request has to wait, without a lock, with its position in the queue (from 1,
	// at its first wait). Nil = nobody is told.
	OnWait func(position int)

	ticket ticket
}

// ticket is what a request keeps from its first arrival.
type ticket struct {
	number uint64        // order of arrival, 0 = hasn't arrived yet
	waited time.Duration // spent in the queue
	rank   int           // its position when it first had to wait, 0 = never did
}

func (r *Request) queue() string {
	if r.Queue != "" {
		return r.Queue
	}
	return r.Set
}

func (r *Request) excludes(p *place) bool {
	for i := range r.Exclude {
		if r.Exclude[i].Node == p.conn.key.node && r.Exclude[i].Adapter == p.name {
			return true
		}
	}
	return false
}
