package node

import (
	"context"

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

// tellIdentity tells the Edges that a new identity can't be used.
func (p *program) tellIdentity(err error) {
	for _, x := range p.executors {
		x.IdentityReloadFailed(err.Error())
	}
}
