package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// A lease that its execution had no use for is burnt: a driver that didn't ask for the key, a cancel, a body that never
// came whole, a dial that failed. (§2.E: refused(unused))
func TestAnUnusedLeaseIsBurnt(t *testing.T) {
	for name, c := range map[string]struct {
		tunnel func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error
		cancel bool
	}{
		"not asked for": {tunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
			return nodetest.Answer(sink, "ok")
		}},
		"cancelled": {tunnel: nodetest.Hang, cancel: true},
		"refused dial": {tunnel: func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error {
			return &execution.Failure{Code: execution.CodeUpstreamConnect, NothingSent: true}
		}},
		"panic": {tunnel: func(context.Context, *execution.TunnelRequest, execution.TunnelSink) error { panic("x") }},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newLeasedRig(t)
			kept := make(chan execution.Credential, 1)
			r.adapter.OnTunnel = func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
				kept <- req.Credential
				return c.tunnel(ctx, req, sink)
			}
			tn := r.Open(r.lent("r")).End()
			held := nodetest.Receive(t, "the driver's call", kept)
			if c.cancel {
				tn.Accepted()
				r.Link.SendCancel("r", execution.CauseAPI)
			}
			tn.Collect()
			wantLease(t, r.RunEnd("r"), credentiallease.Refused, credentiallease.Unused, 0)
			if err := (&shown{}).use(held, leaseOrigin, "POST", leasePath); err == nil {
				t.Error("a driver that kept its credential can use it after the end")
			}
		})
	}
}

// E15: runs that use a key while it is revoked: the acknowledgement lists those that sent it, and nothing is sent later.
func TestRevokeWhileKeysAreUsed(t *testing.T) {
	const runs = 16
	r, _ := newLeasedRig(t, capacity(runs))
	var mu sync.Mutex
	sent, ready, release := map[string]bool{}, make(chan struct{}, runs), make(chan struct{})
	r.adapter.OnTunnel = func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		ready <- struct{}{}
		if err := req.Credential.Bind(leaseOrigin, req.Method, req.Path); err != nil {
			return err
		}
		err := req.Credential.Send(func([]byte) error {
			mu.Lock()
			defer mu.Unlock()
			sent[req.Target] = true
			return nil
		})
		if err != nil {
			return err
		}
		<-release // the run is on when the list is made
		return nodetest.Answer(sink, "ok")
	}
	var streams []*nodetest.Tunnel
	for i := range runs {
		open := r.TunnelOpen(fmt.Sprint("r", i))
		open.GetTunnel().Target = open.GetTunnel().GetRunId()
		streams = append(streams, r.Open(r.lender.Lend(open, leaseSecret)).End())
	}
	for range runs / 2 {
		nodetest.Receive(t, "a driver's call", ready)
	}
	r.Link.SendRevoked(&pb.CredentialRevoked{Slot: nodetest.LeaseSlot, MinRevision: 101, Epoch: 1})
	ack := r.Await("RevokeAck", func(m *pb.NodeControl) bool { return m.GetRevokeAck().GetEpoch() == 1 }).GetRevokeAck()
	close(release)
	for _, tn := range streams {
		tn.Collect()
	}
	listed := map[string]bool{}
	for _, id := range ack.GetCommittedRunIds() {
		listed[id] = true
	}
	mu.Lock()
	defer mu.Unlock()
	for id := range sent {
		if !listed[id] {
			t.Errorf("%s sent the key and isn't listed", id)
		}
	}
	for id := range listed {
		end := r.RunEnd(id)
		wantLease(t, end, credentiallease.Committed, 0, 0)
	}
	r.atRest()
}

// E9: what a connection's leases were for ends with it: a background run that goes on without its link gets no key any more.
func TestTheEndOfTheConnectionEndsItsLeases(t *testing.T) {
	r, seen := newLeasedRig(t)
	called, down := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	r.adapter.OnExecute = func(_ context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
		close(called)
		<-down
		err := seen.use(req.Credential, leaseOrigin, "POST", leasePath)
		result <- err
		return execution.Completion{}, err
	}
	run := r.lentRun("r", nodetest.Background)
	run.Accepted()
	nodetest.Receive(t, "the driver's call", called)
	r.Link.Close(transport.ReasonLost)
	<-r.mux.Down()
	r.session.End()
	close(down)
	err := nodetest.Receive(t, "the driver's end", result)
	var f *execution.Failure
	if !errors.As(err, &f) || f.Lease.Reason != uint8(credentiallease.StaleGeneration) || len(seen.all()) != 0 {
		t.Errorf("got %v, shown %q", err, seen.all())
	}
}

// A projection is in force for leases and for routes in one step; one whose keys or number make no sense is refused, and
// the one before stays.
func TestProjectionsAndLeases(t *testing.T) {
	r, _ := newLeasedRig(t)
	adapters := []*pb.AdapterConfig{{Name: "a", Kind: "openai", BaseUrl: "https://provider.example/v1", MaxConcurrency: 4, AdapterRevision: 1}}
	apply := func(number uint64, change func(*pb.NodeConfigPayload)) *pb.Ready {
		p := r.lender.Extend(&pb.NodeConfigPayload{Projection: number, Adapters: adapters})
		change(p)
		r.session.Apply(context.Background(), p)
		r.session.Serve()
		return r.Ready()
	}
	broken := apply(2, func(p *pb.NodeConfigPayload) { p.LeaseKeys[0].Kid = "another" })
	if broken.GetProjection() != 1 || broken.GetRefusedProjection() != 2 {
		t.Errorf("a key under another's name: %v", broken)
	}
	if got := r.Open(r.lent("r1")).End().Collect(); got.Kinds != "ahbe" {
		t.Errorf("under the projection before: %q %v", got.Kinds, got.Rejected)
	}
	if ready := apply(3, func(*pb.NodeConfigPayload) {}); ready.GetProjection() != 3 {
		t.Errorf("got %v", ready)
	}
	if got := r.Open(r.lent("r2a")).End().Collect(); got.Kinds != "ahbe" {
		t.Errorf("before the edge has confirmed: %q %v", got.Kinds, got.Rejected)
	}
	r.session.Settled(3)
	got := r.Open(r.lent("r2")).End().Collect()
	wantReason(t, got.Rejected.GetFailure(), credentiallease.StaleGeneration, credentiallease.FieldProjection)
	third := func(g *credentiallease.Grant) { g.Projection = 3 }
	if got := r.Open(r.lent("r3", third)).End().Collect(); got.Kinds != "ahbe" {
		t.Errorf("a fresh lease: %q %v", got.Kinds, got.Rejected)
	}
	// The route loses its slot: the same lease is for nothing that this node does.
	apply(4, func(p *pb.NodeConfigPayload) { p.Routes[0].Slot, p.Routes[0].Profile = "", "" })
	got = r.Open(r.lent("r4", func(g *credentiallease.Grant) { g.Projection = 4 })).End().Collect()
	wantReason(t, got.Rejected.GetFailure(), credentiallease.BindingMismatch, credentiallease.FieldSlot)
}
