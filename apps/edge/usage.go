package edge

import (
	"context"
	"time"

	"iop/apps/edge/internal/admin"
	"iop/apps/edge/internal/service"
	"iop/apps/edge/internal/usage"
)

// openLedger opens the ledger. A simulation has none: a thousand edges a minute needn't write a thousand files.
func openLedger(dir string, opts Options) (*usage.Ledger, error) {
	if opts.Inside != nil {
		return nil, nil
	}
	return usage.Open(dir, opts.Log)
}

// meter returns what runs are told to; nil = nothing.
func (g *graph) meter() service.Meter {
	if g.usage == nil {
		return nil
	}
	return meter{g.usage}
}

// meter puts what runs used into the ledger, and has budgets judged by it.
type meter struct{ *usage.Ledger }

// Ended implements service.Meter.
func (m meter) Ended(o *service.Outcome) {
	used, estimated := o.Tokens()
	model := o.Model // the public name; a run names adapter and target
	if model == "" {
		model = o.Target
	}
	m.Add(usage.Entry{At: time.Now(), Principal: o.Principal, Model: model, Node: o.NodeID, Failed: !o.OK(), Estimated: estimated,
		Input: known64(used.Input), Output: known64(used.Output), Cached: known64(used.Cached), Reasoning: known64(used.Reasoning)})
}

func known64(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// used answers what operators ask the ledger.
func (g *graph) used(ctx context.Context, from, to string, by []string) ([]admin.UsageView, error) {
	rows, err := g.usage.Query(ctx, usage.Filter{From: from, To: to, By: by})
	if err != nil {
		return nil, err
	}
	views := make([]admin.UsageView, len(rows))
	for i, r := range rows {
		views[i] = admin.UsageView{Day: r.Day, Principal: r.Principal, Model: r.Model, Node: r.Node, Requests: r.Requests, Failed: r.Failed,
			Estimated: r.Estimated, InputTokens: r.Input, OutputTokens: r.Output, CachedTokens: r.Cached, ReasoningTokens: r.Reasoning}
	}
	return views, nil
}
