package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// stanza is one adapter of a projection.
func stanza(name, kind string, revision uint64) *pb.AdapterConfig {
	return &pb.AdapterConfig{Name: name, Kind: kind, MaxConcurrency: 2, AdapterRevision: revision,
		Options: []*pb.KeyValue{{Key: "o", Value: "1"}}}
}

// byKind builds drivers by kind; an unknown one is an error.
func byKind(kinds map[string]execution.Provider) func(*setup) {
	return func(s *setup) {
		s.build = func(spec router.Spec) (execution.Provider, error) {
			if p := kinds[spec.Kind]; p != nil {
				return p, nil
			}
			if spec.Kind == "crash" {
				panic("S3CR3T")
			}
			return nil, fmt.Errorf("kind %q is unknown", spec.Kind)
		}
	}
}

func adapters(list ...*pb.AdapterConfig) func(*setup) { return func(s *setup) { s.adapters = list } }

// A projection with an unknown kind, a stanza that can't work, a driver that crashes and a provider that is down: each
// is unavailable with its reason, the others serve.
func TestUnavailableAdapters(t *testing.T) {
	well := &nodetest.Adapter{}
	down := &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities {
		return execution.Capabilities{Reason: "connection refused"}
	}}
	crash := &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities { panic("S3CR3T") }}
	none := stanza("none", "well", 1)
	none.MaxConcurrency = 0
	r := newRig(t, well, byKind(map[string]execution.Provider{"well": well, "down": down, "crashing": crash}),
		adapters(stanza("a", "well", 1), stanza("b", "martian", 1), none, stanza("d", "down", 1), stanza("e", "crash", 1), stanza("f", "crashing", 1)))
	ready := r.connect(8, &pb.NodeConfigPayload{Projection: 3, Adapters: []*pb.AdapterConfig{
		stanza("a", "well", 1), stanza("b", "martian", 1), none, stanza("d", "down", 1), stanza("e", "crash", 1), stanza("f", "crashing", 1)}})
	if ready.GetProjection() != 3 || ready.GetRefusedProjection() != 0 || len(ready.GetAdapters()) != 6 {
		t.Fatalf("ready = %v", ready)
	}
	for i, want := range []struct{ name, reason string }{
		{"a", ""}, {"b", "martian"}, {"none", "max_concurrency"}, {"d", "connection refused"}, {"e", "crashed"}, {"f", "crashed"},
	} {
		a := ready.GetAdapters()[i]
		if a.GetName() != want.name || a.GetAvailable() != (want.reason == "") || !strings.Contains(a.GetReason(), want.reason) || strings.Contains(a.GetReason(), "S3CR3T") {
			t.Errorf("adapter %d = %v, want %q %q", i, a, want.name, want.reason)
		}
	}
	a := ready.GetAdapters()[0]
	if a.GetVersion() != "1" || len(a.GetModels()) != 1 || a.GetCapacity() != 2 || a.GetRevision() != 1 {
		t.Errorf("adapter a = %v", a)
	}
	if got := r.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("the healthy one: %q %v", got.Kinds, got.Rejected)
	}
	r.RunEnd("r1")
	open := r.TunnelOpen("r2")
	open.GetTunnel().Adapter = "b"
	r.rejects(r.Open(open).End(), execution.CodeAdapterUnavailable)
}

// §2.B: a provider that hangs in its first probe is unavailable when the building limit is over, whatever it does with
// its context; its answer still counts when it comes.
func TestHangingProbe(t *testing.T) {
	answer := make(chan struct{})
	slow := &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities {
		<-answer // ignores its context
		return nodetest.Up()
	}}
	well := &nodetest.Adapter{}
	r := newRig(t, well, byKind(map[string]execution.Provider{"well": well, "slow": slow}),
		adapters(stanza("a", "well", 1), stanza("b", "slow", 1)), timers(func(t *node.Timers) { t.AdapterBuild = soon }))
	if s := r.router.Snapshot("edge:1")[1]; s.Caps.Available || s.Caps.Reason == "" {
		t.Errorf("the silent one: %+v", s)
	}
	// Nothing else waits for it.
	nodetest.Eventually(t, "the other adapter has answered", func() bool { return r.router.Snapshot("edge:1")[0].Caps.Available })
	if got := r.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("the other adapter: %q %v", got.Kinds, got.Rejected)
	}
	close(answer)
	s := r.Status("the silent one is available", func(s *pb.NodeStatus) bool { return s.GetAdapters()[1].GetAvailable() })
	if s.GetNumber() == 0 || s.GetDraining() {
		t.Errorf("status = %v", s)
	}
}

// Faults rows 36 and 37: a projection that makes no sense is refused as a whole, with its number and the reason; the
// one before stays in force.
func TestRefusedProjection(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	for _, c := range []struct {
		name     string
		adapters []*pb.AdapterConfig
	}{
		{"two of a name", []*pb.AdapterConfig{stanza("x", "k", 1), stanza("x", "k", 1)}},
		{"no name", []*pb.AdapterConfig{stanza("", "k", 1)}},
	} {
		r.session.Apply(context.Background(), &pb.NodeConfigPayload{Projection: 5, Adapters: c.adapters})
		r.session.Serve()
		ready := r.Ready()
		if ready.GetProjection() != 1 || ready.GetRefusedProjection() != 5 || ready.GetRefuseText() == "" ||
			ready.GetRefuseCode() != pb.FailureCode_FAILURE_CODE_BAD_REQUEST || len(ready.GetAdapters()) != 1 {
			t.Errorf("%s: ready = %v", c.name, ready)
		}
	}
	if got := r.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("under the old projection: %q %v", got.Kinds, got.Rejected)
	}
	r.RunEnd("r1")
	r.session.Apply(context.Background(), &pb.NodeConfigPayload{Projection: 6, Adapters: []*pb.AdapterConfig{stanza("a", "fake", 1)}})
	r.session.Serve()
	if ready := r.Ready(); ready.GetProjection() != 6 || ready.GetRefusedProjection() != 0 {
		t.Errorf("a good one after it: %v", ready)
	}
	// The first projection of a connection: nothing is in force.
	ready := r.connect(8, &pb.NodeConfigPayload{Projection: 7, Adapters: []*pb.AdapterConfig{stanza("", "k", 1)}})
	if ready.GetProjection() != 0 || ready.GetRefusedProjection() != 7 {
		t.Errorf("the first one refused: %v", ready)
	}
}

// §2.D "adapter removed by refresh", faults row 36: running executions keep the adapter that they started with;
// unchanged adapters keep their drivers, changed ones are built anew, removed ones are closed when nothing uses them.
func TestNewProjectionDuringRuns(t *testing.T) {
	release := make(chan struct{})
	built := map[string]int{}
	drivers := map[string]*nodetest.Adapter{}
	r := newRig(t, &nodetest.Adapter{}, func(s *setup) {
		s.build = func(spec router.Spec) (execution.Provider, error) {
			built[spec.Name]++
			a := &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
				<-release
				return nodetest.Answer(sink, "ok")
			}}
			drivers[fmt.Sprint(spec.Name, built[spec.Name])] = a
			return a, nil
		}
		s.adapters = []*pb.AdapterConfig{stanza("a", "k", 1), stanza("same", "k", 1), stanza("changed", "k", 1)}
	})
	tn := r.Start("r1")
	tn.Accepted()
	changed := stanza("changed", "k", 2)
	changed.Options[0].Value = "2"
	r.session.Apply(context.Background(), &pb.NodeConfigPayload{Projection: 2, Adapters: []*pb.AdapterConfig{stanza("same", "k", 9), changed}})
	r.session.Serve()
	ready := r.Ready()
	if len(ready.GetAdapters()) != 2 || ready.GetAdapters()[0].GetRevision() != 9 || len(ready.GetRunning()) != 1 || ready.GetRunning()[0].GetEnding() {
		t.Errorf("ready = %v", ready)
	}
	if built["same"] != 1 || built["changed"] != 2 || drivers["same1"].Closes.Load() != 0 || drivers["changed1"].Closes.Load() != 1 || drivers["a1"].Closes.Load() != 0 {
		t.Errorf("built %v; closed: same %d, changed %d, a %d", built, drivers["same1"].Closes.Load(), drivers["changed1"].Closes.Load(), drivers["a1"].Closes.Load())
	}
	r.rejects(r.Start("r2"), execution.CodeUnknownAdapter)
	close(release)
	if got := tn.Collect(); got.Kinds != "hbe" {
		t.Errorf("the running one: %q %v", got.Kinds, got.Err)
	}
	r.RunEnd("r1")
	nodetest.Eventually(t, "the removed driver is closed", func() bool { return drivers["a1"].Closes.Load() == 1 })
}

// A connection that ends while its projection is being built changes nothing and leaves no driver open.
func TestApplyGivenUp(t *testing.T) {
	hanging := &nodetest.Adapter{OnProbe: func(ctx context.Context) execution.Capabilities {
		<-ctx.Done()
		return execution.Capabilities{Reason: "no answer"}
	}}
	well := &nodetest.Adapter{}
	r := newRig(t, well, byKind(map[string]execution.Provider{"well": well, "hanging": hanging}), adapters(stanza("a", "well", 1)),
		timers(func(t *node.Timers) { t.Probe = nodetest.Limit }))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.session.Apply(ctx, &pb.NodeConfigPayload{Projection: 2, Adapters: []*pb.AdapterConfig{stanza("a", "well", 1), stanza("b", "hanging", 1)}})
	}()
	nodetest.Eventually(t, "the probe hangs", func() bool { return hanging.Probes.Load() == 1 })
	cancel()
	nodetest.Receive(t, "Apply returns", done)
	if n := hanging.Closes.Load(); n != 1 || well.Closes.Load() != 0 {
		t.Errorf("closed %d and %d times, want 1 and 0", n, well.Closes.Load())
	}
	if s := r.router.Snapshot("edge:1"); len(s) != 1 {
		t.Errorf("table = %v", s)
	}
}

// Providers are asked again and again; what changes goes out as NodeStatus with a growing number, and a probe that
// hangs is never doubled.
func TestProbesAreRepeated(t *testing.T) {
	var state atomic.Int64 // 0 up, 1 down, 2 hangs
	var now, peak atomic.Int64
	a := &nodetest.Adapter{OnProbe: func(ctx context.Context) execution.Capabilities {
		peak.Store(max(peak.Load(), now.Add(1)))
		defer now.Add(-1)
		switch state.Load() {
		case 1:
			return execution.Capabilities{Reason: "connection refused"}
		case 2:
			<-ctx.Done()
			return execution.Capabilities{Reason: "no answer"}
		}
		return nodetest.Up()
	}}
	r := newRig(t, a, timers(func(t *node.Timers) { t.ProbeEvery, t.Probe = 5*time.Millisecond, 50*time.Millisecond }))
	state.Store(1)
	first := r.Status("down", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetReason() == "connection refused" })
	state.Store(2)
	second := r.Status("silent", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetReason() == "no answer" })
	state.Store(0)
	third := r.Status("up", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetAvailable() })
	if !(0 < first.GetNumber() && first.GetNumber() < second.GetNumber() && second.GetNumber() < third.GetNumber()) {
		t.Errorf("status numbers %d, %d, %d don't grow", first.GetNumber(), second.GetNumber(), third.GetNumber())
	}
	probes := a.Probes.Load()
	nodetest.Eventually(t, "it is asked again", func() bool { return a.Probes.Load() > probes+2 })
	if n := r.Seen(func(m *pb.NodeControl) bool { return m.GetNodeStatus() != nil }); n > 3 {
		t.Errorf("%d statuses without a change", n)
	}
	if peak.Load() != 1 {
		t.Errorf("%d probes at once", peak.Load())
	}
	// A link that is over asks nobody.
	r.Link.Close(transport.ReasonLost)
	quiet, last := 0, int64(0)
	nodetest.Eventually(t, "the asking stops", func() bool { // a hundred looks, a millisecond each, without a probe
		quiet++
		if n := a.Probes.Load(); n != last || now.Load() != 0 {
			quiet, last = 0, n
		}
		return quiet >= 100
	})
}

// A provider at work that doesn't answer its probe in time is busy, not down.
func TestBusyProviderStaysAvailable(t *testing.T) {
	var hangs atomic.Bool
	a, called := started()
	a.OnProbe = func(ctx context.Context) execution.Capabilities {
		if hangs.Load() {
			<-ctx.Done()
			return execution.Capabilities{Reason: "no answer"}
		}
		return nodetest.Up()
	}
	r := newRig(t, a, timers(func(t *node.Timers) { t.ProbeEvery, t.Probe = 5*time.Millisecond, 10*time.Millisecond }))
	tn := r.Start("r1")
	nodetest.Receive(t, "the adapter is called", called)
	hangs.Store(true)
	probes := a.Probes.Load()
	nodetest.Eventually(t, "it was asked in vain", func() bool { return a.Probes.Load() > probes+3 })
	if s := r.router.Snapshot("edge:1")[0]; !s.Caps.Available {
		t.Errorf("the busy provider is %+v", s.Caps)
	}
	tn.Close()
	r.RunEnd("r1")
	r.Status("idle and silent", func(s *pb.NodeStatus) bool { return !s.GetAdapters()[0].GetAvailable() })
}

// A provider with more models than a message can carry doesn't cost the link.
func TestManyModels(t *testing.T) {
	a := &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities {
		caps := nodetest.Up()
		caps.Models = nil
		for i := range 50_000 {
			caps.Models = append(caps.Models, execution.Model{Name: fmt.Sprintf("model-with-a-rather-long-name-%d-%s", i, strings.Repeat("x", 40))})
		}
		caps.Models = append(caps.Models, execution.Model{Name: strings.Repeat("y", 5000)})
		caps.Reason, caps.Version = "\xff"+strings.Repeat("r", 5000), strings.Repeat("v", 5000)
		return caps
	}}
	r := newRig(t, a)
	if got := r.Start("r1").Collect(); got.Kinds != "ahbe" {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
	if err := r.mux.Err(); err != nil {
		t.Errorf("the link ended: %v", err)
	}
}

// Accepted, head, body and end of a short answer don't take a write each.
func TestShortAnswersAreCoalesced(t *testing.T) {
	a := &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(200, map[string][]string{"Content-Length": {"2"}}); err != nil {
			return err
		}
		return sink.Body([]byte("ok"))
	}}
	r := newRig(t, a)
	raw := r.connectRaw(9)
	fewest := 4
	for id := uint32(2); id < 40; id += 2 { // a busy machine may lose the race against the delayed flush now and then
		open := r.TunnelOpen(fmt.Sprint("r", id))
		open.ConnectionGeneration = 9
		if err := errors.Join(raw.OpenStream(id), raw.Send(id, open)); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the answer", func() bool { return len(raw.Frames(id)) == 4 })
		fewest = min(fewest, raw.Pieces(id))
	}
	if fewest > 1 {
		t.Errorf("an answer of four frames took %d writes at best, want 1", fewest)
	}
}
