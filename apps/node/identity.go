package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"iop/packages/go/config"
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

// warnBefore is how long before its end a certificate is worth a word: time enough for whoever makes them.
const warnBefore = 30 * 24 * time.Hour

// expiries are when the certificates end that the node relies on: "node" is its own chain, "ca" the last of the CAs that
// its edges are known by.
func (p *program) expiries() map[string]time.Time {
	if p.identity == nil {
		return nil
	}
	m := p.identity.Current()
	return map[string]time.Time{"node": m.NotAfter(), "ca": m.TrustEnds()}
}

// warnings says what will be wrong though the node works.
func (p *program) warnings() []string {
	all := []string{}
	for what, at := range p.expiries() {
		if time.Until(at) < warnBefore {
			name := map[string]string{"node": "the node's own certificate", "ca": "the CA that edges are known by"}[what]
			all = append(all, fmt.Sprintf("%s ends on %s; renew it", name, at.UTC().Format(time.DateOnly)))
		}
	}
	slices.Sort(all)
	return all
}

// tellIdentity tells the Edges that a new identity can't be used.
func (p *program) tellIdentity(err error) {
	for _, x := range p.executors {
		x.IdentityReloadFailed(err.Error())
	}
}
