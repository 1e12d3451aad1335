package diagnose

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"

	"iop/packages/go/config"
	"iop/packages/go/doctor"
	"iop/packages/go/execution"
	"iop/packages/go/program"
)

// routes looks for routes that nothing can serve: by the file, and then by what is connected.
func (x *examination) routes(ctx context.Context) []doctor.Finding {
	var found []doctor.Finding
	var open []string // those that the file has someone for
	for i := range x.cfg.Routes {
		r := &x.cfg.Routes[i]
		if why := x.nobody(r); why != "" {
			found = append(found, doctor.Failed("route "+r.Model, "correct the route, or give a node that it leads to such an adapter", "no configured node can serve it: %s", why))
			continue
		}
		if r.Model != "*" {
			open = append(open, r.Model)
		}
	}
	if len(x.cfg.Routes) == 0 {
		found = append(found, doctor.Warn("routes", `add one; {model: "*"} offers every model that a ready node has`, "there is no route, so that callers can't ask for any model"))
	}
	if x.state.Load() != nil {
		found = append(found, x.unserved(ctx, open)...)
	}
	if len(found) == 0 {
		found = append(found, doctor.Well("routes", "%s, each with a node that can serve it", program.Count(len(x.cfg.Routes), "route")))
	}
	return found
}

// nobody says why no configured node can serve a route, "" if one can.
func (x *examination) nobody(r *config.Route) string {
	led, disabled, adapters := 0, 0, 0
	for i := range x.cfg.Nodes {
		n := &x.cfg.Nodes[i]
		if !leads(r, n) {
			continue
		}
		led++
		if !n.Enabled {
			disabled++
			continue
		}
		for j := range n.Adapters {
			a := &n.Adapters[j]
			if r.Adapter != "" && r.Adapter != a.Name {
				continue
			}
			adapters++
			if offers(r, a) {
				return ""
			}
		}
	}
	switch {
	case led == 0:
		return "its nodes or labels select none"
	case led == disabled:
		return "every node that it leads to is disabled"
	case adapters == 0 && r.Adapter != "":
		return "no enabled node that it leads to has the adapter " + r.Adapter
	case adapters == 0:
		return "no enabled node that it leads to has an adapter"
	}
	return "no adapter that it leads to has its target among its targets"
}

// leads reports whether a route selects a node.
func leads(r *config.Route, n *config.NodeRecord) bool {
	if len(r.Nodes) > 0 && !slices.Contains(r.Nodes, n.ID) || r.Slot != "" && !slices.Contains(r.SlotNodes, n.ID) {
		return false
	}
	for key, value := range r.Labels {
		if n.Labels[key] != value {
			return false
		}
	}
	return true
}

// offers reports whether an adapter may have what a route asks for, by the configuration alone.
func offers(r *config.Route, a *config.Adapter) bool {
	target := r.Target
	if target == "" {
		target = r.Model
	}
	return target == "*" || len(a.Targets) == 0 || slices.ContainsFunc(a.Targets, func(t string) bool { return execution.SameModel(t, target) })
}

// maxRoutes is how many routes the running Edge is asked about.
const maxRoutes = 100

// unserved asks the running Edge which routes nobody serves now.
func (x *examination) unserved(ctx context.Context, models []string) []doctor.Finding {
	var found []doctor.Finding
	for i, model := range models {
		if i == maxRoutes {
			return append(found, doctor.Skip("routes", "iop-edge ctl why MODEL asks for one", "only the first %d routes were asked about", maxRoutes))
		}
		body, f := x.ask(ctx, "/admin/v1/why?model="+url.QueryEscape(model))
		if f != nil {
			return found // the check of the nodes has said why the Edge doesn't tell
		}
		if why := verdict(body); why != "" {
			found = append(found, doctor.Failed("route "+model, "iop-edge ctl why "+model+" has all of it", "nobody can serve it now: %s", why))
		}
	}
	return found
}

// verdict reads why nobody serves a model, "" if somebody can, if only after a wait.
func verdict(body []byte) string {
	type reason struct{ Code, Text string }
	var answer struct {
		Problems   []reason
		Candidates []struct {
			Node, Adapter string
			OnRoute       bool `json:"on_route"`
			TakesWork     bool `json:"takes_work"`
			Reasons       []reason
		}
	}
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	var why []string
	for _, p := range answer.Problems {
		why = append(why, p.Text)
	}
	for _, c := range answer.Candidates {
		full := len(c.Reasons) > 0 && !slices.ContainsFunc(c.Reasons, func(r reason) bool { return r.Code != "full" && r.Code != "saturated" })
		if len(answer.Problems) == 0 && (c.TakesWork || full) {
			return ""
		}
		if c.OnRoute && len(c.Reasons) > 0 {
			why = append(why, c.Node+"/"+c.Adapter+": "+c.Reasons[0].Text)
		}
	}
	if len(why) == 0 {
		return "no adapter has it"
	}
	return list(why)
}
