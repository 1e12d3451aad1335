package edge

import (
	"context"

	"iop/apps/edge/internal/events"
	"iop/packages/go/program"
)

// followIdentity keeps the edge's certificate and the CAs that it trusts what their files say, until ctx ends. The
// connections look for themselves whether they are still good by it.
func (g *graph) followIdentity(ctx context.Context) {
	failed := func(err error) {
		g.events.Publish(events.Event{Kind: events.KindIdentityReloadFailed, Code: "identity_reload_failed", Text: err.Error()})
	}
	program.FollowIdentity(ctx, g.identity, g.live.identity, g.log, failed, func() {})
}
