package edge

import (
	"context"
	"errors"
	"time"

	"iop/apps/edge/internal/admin"
	"iop/apps/edge/internal/credential"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// openLeases opens the store of provider keys, which needs nodes that prove who they are; nil = mode dev.
func openLeases(cfg *config.Edge, current func() *config.State, edgeID string, opts credential.Config) (*credential.Store, error) {
	if !cfg.Managed() {
		return nil, nil
	}
	opts.State, opts.EdgeID, opts.Dir, opts.SigningKey = current, edgeID, cfg.StateDir, cfg.Lease.SigningKey
	return credential.Open(opts)
}

// steady is the clock of leases, which nodes are told of, too: the wall clock as it was at the start, and what has passed
// since. When somebody sets the machine's clock back by an hour, nodes would refuse every lease until that hour is over: they
// have seen that time, and take what was for it for replayed.
func steady(start time.Time) func() time.Time {
	return func() time.Time { return start.Add(time.Since(start)) }
}

// lender lends the store's keys to runs.
type lender struct{ store *credential.Store }

// Issue implements service.Leases.
func (l lender) Issue(o service.LeaseOrder) (service.Lease, *execution.Failure) {
	lease, f := l.store.Issue(credential.Order(o))
	if f != nil {
		return nil, f // not a nil *credential.Lease in an interface
	}
	return lent{lease}, nil
}

type lent struct{ *credential.Lease }

// Scanner implements service.Lease.
func (l lent) Scanner() service.Scanner { return l.Lease.Scanner() }

// connectLeases has nodes told of what changes about keys.
func (g *graph) connectLeases(store *credential.Store, registry *node.Registry) {
	store.OnChange(func(nodes []string, p credential.Push) {
		for _, id := range nodes {
			for _, c := range registry.Lending(id) {
				c.Revoke(p.Slot, p.MinRevision, p.Disabled, p.Epoch)
			}
		}
	})
	store.OnKeys(g.live.publish)
}

// publishLook is the time between two looks whether the nodes have taken in what they were told.
const publishLook = 50 * time.Millisecond

// publish tells every node anew what it is told of leases, and returns when those that are connected have taken it in,
// or ctx ends.
func (l *live) publish(ctx context.Context) {
	l.mu.Lock()
	version, err := l.generations.Next()
	if err != nil {
		l.mu.Unlock()
		l.log.Error().Err(err).Msg("nodes can't be told of changed signing keys")
		return
	}
	state := l.current().Renumbered(version)
	l.state.Store(state)
	l.tell()
	l.mu.Unlock()
	look := time.NewTicker(publishLook)
	defer look.Stop()
	for !l.taken(state) {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// taken reports whether every connection that leases go to works by what state tells its node, or by something newer.
func (l *live) taken(state *config.State) bool {
	for _, c := range l.registry.Connections() {
		if p := state.Projection(c.NodeID); p != nil && c.Lends() {
			if _, applied, _ := c.Recipient(); applied < p.Number && !c.Over() {
				return false
			}
		}
	}
	return true
}

// slots is what operators see of the keys and do with them; nil = mode dev.
func (g *graph) slots() *admin.Slots {
	if g.leases == nil {
		return nil
	}
	store := g.leases
	change := func(do func(context.Context, string) (credential.Change, error)) func(context.Context, string) (admin.SlotChange, error) {
		return func(ctx context.Context, id string) (admin.SlotChange, error) {
			c, err := do(ctx, id)
			return admin.SlotChange{Slot: c.Slot, State: string(c.State), Revision: c.Revision, Running: c.Running, Unanswered: c.Unanswered}, known(err)
		}
	}
	revoke := change(store.Revoke)
	return &admin.Slots{
		Status: g.slotStatus, Refresh: change(store.Refresh), Disable: change(store.Disable), Enable: change(store.Enable),
		Revoke: func(ctx context.Context, id string, cancelRunning bool) (admin.SlotChange, error) {
			c, err := revoke(ctx, id)
			for _, run := range c.Running {
				if cancelRunning && g.service.Cancel(run, execution.CauseCredentialRevoked) == service.Cancelling {
					c.Cancelled = append(c.Cancelled, run)
				}
			}
			return c, err
		},
		Keys: func() []admin.LeaseKey { return leaseKeys(store.Keys()) }, RotateKey: store.RotateKey, DropKey: store.DropKey,
	}
}

func leaseKeys(keys []credential.Key) []admin.LeaseKey {
	out := make([]admin.LeaseKey, len(keys))
	for i, k := range keys {
		out[i].ID = k.ID
		if k.NotAfter != 0 {
			out[i].NotAfter = time.UnixMilli(k.NotAfter)
		}
	}
	return out
}

// known has the admin package's error for a slot that isn't there.
func known(err error) error {
	if errors.Is(err, credential.ErrUnknownSlot) {
		return admin.ErrUnknownSlot
	}
	return err
}

// slotStatus returns the slots with the routes that use them.
func (g *graph) slotStatus() []admin.SlotStatus {
	if g.leases == nil {
		return nil
	}
	routes := map[string][]string{}
	for _, r := range g.live.current().Routes() {
		if r.Slot != "" {
			routes[r.Slot] = append(routes[r.Slot], r.Model)
		}
	}
	list := g.leases.Status()
	out := make([]admin.SlotStatus, len(list))
	for i, s := range list {
		out[i] = admin.SlotStatus{ID: s.ID, State: string(s.State), Reason: s.Reason, Revision: s.Revision, SourceKind: s.SourceKind,
			Profile: s.Profile, Header: s.Header, Origin: s.Origin, Nodes: s.Nodes, Length: s.Length, Fingerprint: s.Fingerprint,
			Since: s.Since, LastRefresh: s.LastRefresh, Routes: routes[s.ID]}
	}
	return out
}

// leaseCounts returns what became of leases.
func (g *graph) leaseCounts() admin.LeaseCounts {
	if g.leases == nil {
		return admin.LeaseCounts{}
	}
	n := g.leases.Counts()
	return admin.LeaseCounts{Leases: n.Leases, Refusals: n.Refusals, RefreshFailures: n.RefreshFailures, Security: n.Security, Unknown: n.Unknown}
}
