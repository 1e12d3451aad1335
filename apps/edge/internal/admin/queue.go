package admin

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
)

// queueView is the answer of /admin/v1/queue.
type queueView struct {
	Draining bool        `json:"draining"`
	Queued   int         `json:"queued"`
	Sets     []setView   `json:"sets"`
	Places   []placeView `json:"places"`
	Routes   []waitView  `json:"routes"`
}

type setView struct {
	Set        string `json:"set"`
	Queued     int    `json:"queued"`
	Candidates int    `json:"candidates"`
}

type placeView struct {
	Node        string `json:"node"`
	Adapter     string `json:"adapter"`
	Generation  uint64 `json:"generation"`
	Capacity    int    `json:"capacity"`
	InFlight    int    `json:"in_flight"`
	Unconfirmed int    `json:"unconfirmed"`
	Adopted     int    `json:"adopted"`
	Candidate   bool   `json:"candidate"`
	Saturated   bool   `json:"saturated"`

	Broken *brokenView `json:"broken"` // null = it isn't
}

// brokenView says why an adapter is taken out for a while.
type brokenView struct {
	Failures int       `json:"failures"` // in a row
	Why      string    `json:"why"`
	Until    time.Time `json:"until"`  // when one request may try
	Trying   bool      `json:"trying"` // one does now
}

// waitView is who waits and runs on one route, or by one adapter's name without a route.
type waitView struct {
	Route     string `json:"route"`         // "" = runs that name an adapter
	Adapter   string `json:"adapter"`       // of these
	Waiting   int    `json:"waiting"`       // for a place
	LongestMS int64  `json:"longest_ms"`    // since the oldest of those that wait was submitted
	Running   int    `json:"running"`       // sent to a node
	Depth     int    `json:"queue_depth"`   // how many may wait
	WaitMS    int64  `json:"queue_wait_ms"` // how long one may; 0 = the route doesn't say
	FailFast  bool   `json:"fail_fast"`
}

func (h *handler) queue(w http.ResponseWriter, _ *http.Request) {
	h.write(w, http.StatusOK, h.queueOf(h.cfg.Runs()))
}

// queueOf shows places and waiters; runs are those that are known.
func (h *handler) queueOf(runs []service.RunView) queueView {
	snap := h.cfg.Queue()
	view := queueView{Draining: snap.Draining, Queued: snap.Queued,
		Sets: make([]setView, len(snap.Sets)), Places: make([]placeView, len(snap.Places)), Routes: waits(h.cfg.State(), runs)}
	for i, s := range snap.Sets {
		view.Sets[i] = setView{Set: s.Set, Queued: s.Queued, Candidates: s.Candidates}
	}
	for i, p := range snap.Places {
		view.Places[i] = placeView{Node: p.Node, Adapter: p.Adapter, Generation: p.Generation, Capacity: p.Capacity,
			InFlight: p.InFlight, Unconfirmed: p.Unconfirmed, Adopted: p.Adopted, Candidate: p.Candidate, Saturated: p.Saturated}
		if b := p.Broken; b != nil {
			view.Places[i].Broken = &brokenView{Failures: b.Failures, Why: b.Why, Until: b.Until, Trying: b.Trying}
		}
	}
	return view
}

// waits counts the runs that are live by route: every route that is configured in the order of the file, and then what
// else there is.
func waits(state *config.State, runs []service.RunView) []waitView {
	type name struct{ route, adapter string }
	at, found := map[name]int{}, []waitView{}
	for i := range state.Edge.Routes {
		r := &state.Edge.Routes[i]
		at[name{route: r.Model}] = len(found)
		found = append(found, waitView{Route: r.Model, Depth: r.Queue.Depth, WaitMS: r.Queue.Wait.Milliseconds(), FailFast: r.FailFast})
	}
	configured := len(found)
	for i := range runs {
		r := &runs[i]
		if !r.Live {
			continue
		}
		of := name{route: r.Route}
		if r.Route == "" {
			of.adapter = r.Adapter
		}
		j, known := at[of]
		if !known {
			j = len(found)
			at[of] = j
			found = append(found, waitView{Route: of.route, Adapter: of.adapter})
			if of.route == "" {
				found[j].Depth = config.RunQueueDepth
			}
		}
		found[j].count(r)
	}
	slices.SortFunc(found[configured:], func(a, b waitView) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Adapter, b.Adapter))
	})
	return found
}

func (v *waitView) count(r *service.RunView) {
	if r.State != service.StateQueued {
		v.Running++
		return
	}
	v.Waiting++
	v.LongestMS = max(v.LongestMS, time.Since(r.CreatedAt).Milliseconds())
}
