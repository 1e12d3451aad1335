package node

import (
	"context"
	"fmt"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/identity"
	shared "iop/packages/go/program"
)

// followIdentity keeps the node's certificate and the CAs that it trusts what their files say, until stop is called. The
// links see the change for themselves.
func (p *program) followIdentity(cfg *config.Node, opts Options) (stop func()) {
	if p.identity == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		shared.FollowIdentity(ctx, p.identity, opts.Reload, opts.Log, p.tellIdentity, func() {
			if cfg.PinnedCA != "" && !config.Pinned(p.identity.Current(), cfg.PinnedCA) {
				opts.Log.Warn().Msg("the CA that the token's join string names isn't trusted any more: give this node a new token " +
					"before its next start, which will be refused")
			}
		})
	}()
	return func() { cancel(); <-ended }
}

// certificates are how long those are good that the node relies on: "node" is its own chain, "ca" the last of the CAs that
// its edges are known by.
func (p *program) certificates() map[string]identity.Validity {
	if p.identity == nil {
		return nil
	}
	m := p.identity.Current()
	return map[string]identity.Validity{"node": m.Own(), "ca": m.Trust()}
}

// warnings says what will be wrong though the node works.
func (p *program) warnings() []string {
	all, certificates := []string{}, p.certificates()
	for _, c := range []struct{ what, name string }{{"node", "the node's own certificate"}, {"ca", "the CA that edges are known by"}} {
		if v, known := certificates[c.what]; known && v.EndsSoon(time.Now()) {
			all = append(all, fmt.Sprintf("%s ends at %s; renew it", c.name, v.Ends.UTC().Format(time.RFC3339)))
		}
	}
	return all
}

// tellIdentity tells the Edges that a new identity can't be used.
func (p *program) tellIdentity(err error) {
	for _, x := range p.executors {
		x.IdentityReloadFailed(err.Error())
	}
}
