package admin

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// whyView says what would become of a request for a model now, and why; the names are settled.
type whyView struct {
	Model     string `json:"model"`
	Principal string `json:"principal"` // "" = one that may use every route
	Path      string `json:"path"`      // "" = one that every adapter carries
	// Problems keep every request out, whatever the candidates can.
	Problems   []reason       `json:"problems"`
	Route      *routeView     `json:"route"` // null = there is none
	Target     string         `json:"target"`
	Queue      whyQueue       `json:"queue"`
	Candidates []whyCandidate `json:"candidates"`
}

// reason is why something isn't possible. Code is stable, Text is for people.
type reason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

type routeView struct {
	Model    string            `json:"model"`
	Adapter  string            `json:"adapter"` // "" = any
	Target   string            `json:"target"`  // "" = the model's name
	Nodes    []string          `json:"nodes"`   // none = any
	Labels   map[string]string `json:"labels"`
	Depth    int               `json:"queue_depth"`
	WaitMS   int64             `json:"queue_wait_ms"`
	FailFast bool              `json:"fail_fast"`
}

// whyQueue is who waits on the route, for whichever target.
type whyQueue struct {
	Waiting   int   `json:"waiting"`
	LongestMS int64 `json:"longest_ms"` // since the oldest of them was submitted
}

// whyCandidate is one adapter that the configuration has.
type whyCandidate struct {
	Node      string     `json:"node"`
	Adapter   string     `json:"adapter"`
	State     node.State `json:"state"`    // the node's
	OnRoute   bool       `json:"on_route"` // the route leads there
	TakesWork bool       `json:"takes_work"`
	Loaded    bool       `json:"loaded"` // has the target in memory
	InFlight  int        `json:"in_flight"`
	Capacity  int        `json:"capacity"`
	Reasons   []reason   `json:"reasons"` // why it doesn't take work
}

// why answers GET /admin/v1/why?model=&principal=&path=.
func (h *handler) why(w http.ResponseWriter, r *http.Request) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		h.refuse(w, r, badQuery("the query isn't well-formed"))
		return
	}
	v := whyView{Problems: []reason{}, Candidates: []whyCandidate{}}
	fields := map[string]*string{"model": &v.Model, "principal": &v.Principal, "path": &v.Path}
	for name, list := range values {
		into := fields[name]
		if into == nil || len(list) != 1 {
			h.refuse(w, r, badQuery("the query has model, principal and path, each once at most"))
			return
		}
		*into = list[0]
	}
	if v.Model == "" {
		h.refuse(w, r, badQuery("model is missing"))
		return
	}
	h.explainModel(&v)
	h.write(w, http.StatusOK, v)
}

// explainModel fills in what would become of a request.
func (h *handler) explainModel(v *whyView) {
	state := h.cfg.State()
	snap := h.cfg.Queue()
	for _, text := range h.cfg.NotReady() {
		v.Problems = append(v.Problems, reason{execution.CodeEdgeDraining.String(), text})
	}
	var p *config.Principal
	if v.Principal != "" && !state.Anonymous() {
		if p = state.Principal(v.Principal); p == nil {
			v.Problems = append(v.Problems, reason{execution.CodeUnauthorized.String(), "no principal of that id is configured"})
		}
	}
	route, target, failure := h.cfg.Find(state, p, v.Model)
	if failure != nil {
		v.Problems = append(v.Problems, h.cause(state, p, v, failure))
	}
	v.Target = target
	if route == nil {
		return
	}
	v.Route = showRoute(route)
	v.Queue = whoWaits(route, h.cfg.Runs())
	q := question{route: route, target: target, path: v.Path, asRun: v.Path == "" || h.cfg.AsRun(v.Path)}
	v.Candidates = q.candidates(state, h.cfg.Nodes(), snap.Places)
}

// cause says why callers are refused: not all that is unknown to a principal is unknown to all.
func (h *handler) cause(state *config.State, p *config.Principal, v *whyView, f *execution.Failure) reason {
	if p != nil {
		if route, _, others := h.cfg.Find(state, nil, v.Model); others == nil {
			return reason{f.Code.String(), fmt.Sprintf("%s may not use the route %q; its routes are %s", p.ID, route.Model, strings.Join(p.Routes, ", "))}
		}
	}
	return reason{f.Code.String(), f.Text}
}

func showRoute(r *config.Route) *routeView {
	v := &routeView{Model: r.Model, Adapter: r.Adapter, Target: r.Target, Nodes: r.Nodes, Labels: r.Labels, Depth: r.Queue.Depth,
		WaitMS: r.Queue.Wait.Milliseconds(), FailFast: r.FailFast}
	if v.Nodes == nil {
		v.Nodes = []string{}
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	return v
}

// whoWaits looks for the runs that wait for a place on a route.
func whoWaits(route *config.Route, runs []service.RunView) (q whyQueue) {
	for i := range runs {
		r := &runs[i]
		if !r.Live || r.State != service.StateQueued || r.Route != route.Model {
			continue
		}
		q.Waiting++
		q.LongestMS = max(q.LongestMS, time.Since(r.CreatedAt).Milliseconds())
	}
	return q
}

// question is what is asked of each candidate.
type question struct {
	route        *config.Route
	target, path string
	asRun        bool // the path needn't be carried
}

// candidates goes through all adapters that are configured: those on the route first, and of these those that take work.
func (q *question) candidates(state *config.State, nodes []node.NodeView, places []admission.PlaceSnapshot) []whyCandidate {
	views := make(map[string]*node.NodeView, len(nodes))
	for i := range nodes {
		views[nodes[i].ID] = &nodes[i]
	}
	at := make(map[admission.Place]*admission.PlaceSnapshot, len(places))
	for i := range places {
		if p := &places[i]; at[p.Place] == nil || p.Generation > at[p.Place].Generation {
			at[p.Place] = p
		}
	}
	all := []whyCandidate{}
	for i := range state.Edge.Nodes {
		record := &state.Edge.Nodes[i]
		for j := range record.Adapters {
			a := &record.Adapters[j]
			all = append(all, q.candidate(record, a, views[record.ID], at[admission.Place{Node: record.ID, Adapter: a.Name}]))
		}
	}
	rank := func(c whyCandidate) int {
		switch {
		case c.TakesWork:
			return 0
		case c.OnRoute:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(all, func(a, b whyCandidate) int { return rank(a) - rank(b) })
	return all
}

// candidate says of one adapter whether it can take the request now. view and place may be nil.
func (q *question) candidate(n *config.NodeRecord, a *config.Adapter, view *node.NodeView, place *admission.PlaceSnapshot) whyCandidate {
	c := whyCandidate{Node: n.ID, Adapter: a.Name, State: node.StateOffline, Reasons: []reason{}}
	add := func(code, format string, args ...any) {
		c.Reasons = append(c.Reasons, reason{code, fmt.Sprintf(format, args...)})
	}
	q.onRoute(n, a, add)
	c.OnRoute = len(c.Reasons) == 0
	if view != nil {
		c.State = view.State
	}
	said := adapterOf(view, a.Name)
	c.Loaded = said != nil && slices.ContainsFunc(said.Models, func(m node.ModelView) bool {
		return m.Loaded && execution.SameModel(m.Name, q.target)
	})
	q.offered(a, said, add)
	if !q.asRun && !httprules.Carries(a.Kind, a.AllowPaths, q.path) {
		add("not_carried", "an adapter of the kind %s doesn't carry %s, and such a request can't become a run", a.Kind, q.path)
	}
	nodeReasons(view, c.State, add)
	if said != nil {
		if c.Capacity = said.Capacity; !said.Available && c.State != node.StateOffline && c.State != node.StateDisabled {
			add("adapter_unavailable", "%s", said.Reason)
		}
	}
	if place != nil && view != nil && place.Generation == view.Generation {
		c.InFlight, c.Capacity = place.InFlight, place.Capacity
		placeReasons(place, add)
	}
	c.TakesWork = len(c.Reasons) == 0
	return c
}

// onRoute says why the route doesn't lead to an adapter.
func (q *question) onRoute(n *config.NodeRecord, a *config.Adapter, add func(string, string, ...any)) {
	if q.route.Adapter != "" && q.route.Adapter != a.Name {
		add("other_adapter", "the route asks for the adapter %s", q.route.Adapter)
	}
	if len(q.route.Nodes) > 0 && !slices.Contains(q.route.Nodes, n.ID) {
		add("other_node", "the route names the nodes %s", strings.Join(q.route.Nodes, ", "))
	}
	for _, key := range slices.Sorted(maps.Keys(q.route.Labels)) {
		if have, ok := n.Labels[key]; !ok {
			add("other_labels", "the node has no label %s; the route wants %s", key, q.route.Labels[key])
		} else if have != q.route.Labels[key] {
			add("other_labels", "the node's label %s is %s; the route wants %s", key, have, q.route.Labels[key])
		}
	}
}

// offered says why an adapter can't be asked for the target.
func (q *question) offered(a *config.Adapter, said *node.AdapterView, add func(string, string, ...any)) {
	names := a.Targets
	if len(names) == 0 && said != nil {
		for _, m := range said.Models {
			names = append(names, m.Name)
		}
	}
	known := func(name string) bool { return execution.SameModel(name, q.target) }
	if len(names) == 0 || slices.ContainsFunc(names, known) {
		return
	}
	whose := "its provider has"
	if len(a.Targets) > 0 {
		whose = "its configured targets are"
	}
	const shown = 5
	more := ""
	if n := len(names) - shown; n > 0 {
		names, more = names[:shown], fmt.Sprintf(" and %d more", n)
	}
	add("not_offered", "%s %s%s, not %s", whose, strings.Join(names, ", "), more, q.target)
}

// nodeReasons says why a node gets no work.
func nodeReasons(view *node.NodeView, state node.State, add func(string, string, ...any)) {
	switch {
	case state == node.StateDisabled:
		add("disabled", "the configuration has the node disabled")
	case state == node.StateOffline:
		add("offline", "the node isn't connected")
	case view.Drained:
		add("drained", "an operator keeps new work from the node; ctl drain %s --undo lets it in again", view.ID)
	case state != node.StateReady:
		add(string(state), "%s", view.Reason)
	}
	if view != nil && view.Drained && (state == node.StateDisabled || state == node.StateOffline) {
		add("drained", "an operator keeps new work from the node, also when it is back")
	}
}

// placeReasons says why an adapter that could be asked gets nothing now.
func placeReasons(p *admission.PlaceSnapshot, add func(string, string, ...any)) {
	if b := p.Broken; b != nil {
		switch {
		case b.Trying:
			add("broken", "it failed %d times in a row (%s); one request tries it now", b.Failures, b.Why)
		case time.Now().Before(b.Until):
			add("broken", "it failed %d times in a row (%s); one request may try it in %v", b.Failures, b.Why, time.Until(b.Until).Round(time.Second))
		}
	}
	if p.Saturated {
		add("saturated", "its node refused work although a place seemed free; it gets one request a second until something ends there")
	}
	switch {
	case !p.Candidate:
	case p.Capacity == 0:
		add("no_places", "its node says that it has no place")
	case p.InFlight >= p.Capacity && p.Unconfirmed > 0:
		add("full", "%d of %d places are taken, %d by runs whose end the node hasn't confirmed", p.InFlight, p.Capacity, p.Unconfirmed)
	case p.InFlight >= p.Capacity:
		add("full", "%d of %d places are taken", p.InFlight, p.Capacity)
	}
}

// adapterOf finds an adapter in what a node said, nil = nothing is known.
func adapterOf(view *node.NodeView, name string) *node.AdapterView {
	if view == nil {
		return nil
	}
	for i := range view.Adapters {
		if view.Adapters[i].Name == name {
			return &view.Adapters[i]
		}
	}
	return nil
}
