// Package diagnose is what `iop-node doctor` looks at: everything between this node's configuration and its providers,
// in the order in which a link and then a request need it. It reads what a running node says of itself, and changes
// nothing: it registers nothing, runs no completion, and writes no file.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"iop/apps/node/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/doctor"
	"iop/packages/go/identity"
	"iop/packages/go/program"
	pb "iop/proto/iop"
)

// Options is what there is to look at.
type Options struct {
	// File is the node's configuration.
	File string
	// Provider is a provider to look at beside those that the Edges name; nil = none.
	Provider *Provider
	// Version is what this program calls itself.
	Version string
}

// Limits of the checks, each for all of its kind together.
const (
	edgeLimit     = 15 * time.Second
	providerLimit = 15 * time.Second
	journalLimit  = 20 * time.Second
	statusLimit   = 3 * time.Second
)

// examination is what the checks learn from each other. A check that was left behind may still write, so each field is
// for concurrent use.
type examination struct {
	opts   Options
	cfg    *config.Node
	source atomic.Pointer[identity.Source]
	told   atomic.Pointer[[]told]
	runs   atomic.Pointer[nodeStatus] // nil = no running node was found
	absent atomic.Bool                // and admin.listen would show one: nothing listens there
}

// told is what one Edge said.
type told struct {
	edge   string
	config *pb.NodeConfigPayload
	live   uint64
}

// Checks returns what is to be looked at. The configuration is read at once: without it there is nothing else to see.
func Checks(opts Options) []doctor.Check {
	x := &examination{opts: opts}
	found := x.readConfig()
	checks := []doctor.Check{{Name: "config", Run: func(context.Context) []doctor.Finding { return found }}}
	provider := doctor.Check{Name: "provider", Limit: providerLimit, Run: x.providers}
	if x.cfg == nil {
		if opts.Provider != nil {
			checks = append(checks, provider)
		}
		return checks
	}
	checks = append(checks,
		doctor.Check{Name: "tls", Run: x.identity},
		doctor.Check{Name: "node", Limit: statusLimit + 2*time.Second, Run: func(ctx context.Context) []doctor.Finding {
			ctx, cancel := context.WithTimeout(ctx, statusLimit)
			defer cancel()
			return x.running(ctx)
		}})
	for _, edge := range x.cfg.Edges {
		checks = append(checks, doctor.Check{Name: "edge " + edge, Limit: edgeLimit,
			Run: func(ctx context.Context) []doctor.Finding { return x.edge(ctx, edge) }})
	}
	return append(checks, provider,
		doctor.Check{Name: "data_dir", Run: x.dataDir},
		doctor.Check{Name: "journal", Limit: journalLimit, Run: x.journal},
		doctor.Check{Name: "files", Run: x.files},
		doctor.Check{Name: "memory", Run: x.memory})
}

// readConfig reads the file without the files of the identity: those have a check of their own.
func (x *examination) readConfig() []doctor.Finding {
	const check = "config"
	if x.opts.File == "" && x.opts.Provider != nil {
		return nil
	}
	cfg, err := config.ReadNode(x.opts.File)
	problems := new(config.Errors)
	switch {
	case errors.As(err, &problems):
		var found []doctor.Finding
		for _, p := range problems.List {
			found = append(found, doctor.Failed(check, "correct it; every key is explained in configs/node.yaml", "%s", p))
		}
		return append(found, doctor.Skip("everything else", "", "needs a configuration that can be read"))
	case err != nil:
		return []doctor.Finding{doctor.Failed(check, "look at the file", "%v", err)}
	}
	x.cfg = cfg
	return []doctor.Finding{doctor.Well(check, "%s can be read, and so can the token; it dials %s", x.opts.File, strings.Join(cfg.Edges, ", "))}
}

// identity looks at the certificates, and at links that have none.
func (x *examination) identity(context.Context) []doctor.Finding {
	if x.cfg.TLS != nil {
		s, found := doctor.Identity(x.cfg.Identity(), x.cfg.PinnedCA, time.Now())
		if s != nil {
			x.source.Store(s)
		}
		return found
	}
	for _, edge := range x.cfg.Edges {
		if !config.Loopback(edge) {
			return []doctor.Finding{doctor.Warn("tls", "set tls and use an Edge in mode managed; through a tunnel that encrypts this is fine",
				"there is no tls, and %s isn't this machine: token and prompts cross the network in the clear", edge)}
		}
	}
	return []doctor.Finding{doctor.Well("tls", "there is none, and none is needed: the Edge is on this machine")}
}

// dial connects to an Edge as the node does.
func (x *examination) dial(ctx context.Context, check, edge string) (net.Conn, doctor.Finding) {
	if x.cfg.Proxy == "" {
		return doctor.Dial(ctx, check, "edges", edge)
	}
	conn, err := transport.ThroughProxy(x.cfg.Proxy, x.cfg.ProxyCredentials)(ctx, edge)
	if err != nil {
		return nil, doctor.Failed(check, "correct proxy, proxy_credentials or edges, or start what should be there; the proxy must allow CONNECT to this port",
			"%s can't be reached: %s", edge, err)
	}
	return conn, doctor.Well(check, "something answers there, through the proxy %s", x.cfg.Proxy)
}

// edge looks at the way to one Edge: its address, TLS, whether it would let this node in, and its clock.
func (x *examination) edge(ctx context.Context, edge string) []doctor.Finding {
	name := "edge " + edge
	conn, found := x.dial(ctx, name, edge)
	if conn == nil {
		return []doctor.Finding{found, doctor.Skip("token", "", "%s wasn't asked, since it can't be reached", edge)}
	}
	defer conn.Close()
	if x.cfg.TLS != nil && x.source.Load() == nil {
		return []doctor.Finding{found, doctor.Skip("token", "", "%s wasn't asked, since the files under tls can't be used", edge)}
	}
	cfg := transport.Config{Edge: edge, Token: x.cfg.Token, Version: x.opts.Version, Identity: x.source.Load()}
	if x.cfg.TLS != nil {
		cfg.EdgeID = identity.ID(x.cfg.TLS.EdgeSPIFFEID)
	}
	asking, cancel := half(ctx)
	defer cancel()
	r, err := transport.Rehearse(asking, cfg, conn)
	if err != nil {
		return []doctor.Finding{found, x.explain(ctx, name, edge, err)}
	}
	all := []doctor.Finding{found}
	if x.cfg.TLS != nil {
		all = append(all, doctor.Well("tls "+edge, "the Edge is %s and accepts this node's certificate", cfg.EdgeID))
	}
	return append(all, x.accepted(edge, r)...)
}

// half bounds a step by half of the time that is left: the other half is for finding out why nothing came of it.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithTimeout(ctx, edgeLimit/2)
	}
	return context.WithTimeout(ctx, time.Until(end)/2)
}

// accepted says what an Edge that would let this node in has told.
func (x *examination) accepted(edge string, r *transport.Rehearsal) []doctor.Finding {
	if r.Config == nil {
		return []doctor.Finding{doctor.Well("token", "%s has nothing to refuse this node for; it is of an earlier version, and tells no more", edge),
			doctor.Skip("clock", "", "%s doesn't tell its time", edge)}
	}
	all := []doctor.Finding{doctor.Well("token", "%s would let this node in as %s, with %s", edge, r.NodeID, program.Count(len(r.Config.GetAdapters()), "adapter")),
		clock(edge, r.Offset, r.Unsure)}
	list := []told{{edge, r.Config, r.Live}}
	if before := x.told.Load(); before != nil {
		list = append(*before, list...)
	}
	x.told.Store(&list)
	return append(all, x.connected(edge, r)...)
}

// connected compares the Edge's word on this node's connection with the node that runs here.
func (x *examination) connected(edge string, r *transport.Rehearsal) []doctor.Finding {
	status := x.runs.Load()
	switch {
	case r.Live == 0 && status != nil:
		return []doctor.Finding{doctor.Warn("link "+edge, "look at what the node says of its link, above; it tries again by itself",
			"%s has no connection of this node now, although the node runs", edge)}
	case r.Live != 0 && status != nil && !status.has(r.Live):
		return []doctor.Finding{doctor.Warn("link "+edge, "give each machine a token of its own: iop-edge token new NAME",
			"%s has connection %d of %s, which isn't the one of the node that runs here: does another machine use the same token?", edge, r.Live, r.NodeID)}
	case r.Live != 0 && x.absent.Load():
		return []doctor.Finding{doctor.Warn("link "+edge, "if no node runs here, another machine uses the same token: give each its own (iop-edge token new NAME)",
			"%s has a connection of %s, and no node was found here", edge, r.NodeID)}
	}
	return nil
}

// How far the two clocks may be apart: certificates and the times in two logs are compared by them.
const (
	clockTolerance = 5 * time.Second
	clockBroken    = time.Minute
)

// clock judges by how much the Edge's clock is ahead.
func clock(edge string, offset, unsure time.Duration) doctor.Finding {
	const check = "clock"
	apart := max(offset.Abs()-unsure, 0)
	side := "behind"
	if offset < 0 {
		side = "ahead of"
	}
	text := fmt.Sprintf("this machine's clock is %v %s that of %s", readable(offset.Abs()), side, edge)
	const remedy = "set the clock of the machine that is wrong (timedatectl, chrony)"
	switch {
	case apart > clockBroken:
		return doctor.Failed(check, remedy, "%s: certificates look expired or not yet valid, and logs don't fit together", text)
	case apart > clockTolerance:
		return doctor.Warn(check, remedy, "%s; more than %v are too much", text, clockTolerance)
	}
	return doctor.Well(check, "%s, give or take %v", text, readable(unsure))
}

// readable leaves away what nobody needs of a duration.
func readable(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}
