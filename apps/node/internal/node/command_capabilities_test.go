package node_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// capabilities asks, for one adapter or "" for all.
func (r *rig) capabilities(adapter string) []*pb.AdapterState {
	r.t.Helper()
	q := request("capabilities", pb.CommandType_COMMAND_TYPE_CAPABILITIES)
	q.Adapter = adapter
	_, result := r.ask(q)
	if result.GetCapabilities() == nil {
		r.t.Fatalf("capabilities: %v", result)
	}
	return result.GetCapabilities().GetAdapters()
}

// CAPABILITIES asks the providers anew: models, which are loaded, how long a context, the version. What is new in it
// goes to the edge by NodeStatus, too.
func TestCapabilitiesAreFresh(t *testing.T) {
	var loaded atomic.Bool
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang, OnProbe: func(context.Context) execution.Capabilities {
		return execution.Capabilities{Available: true, Version: "0.13.5", Models: []execution.Model{
			{Name: "m", Loaded: loaded.Load(), Context: 4096}, {Name: "n"}}}
	}}, capacity(1))
	r.Start("r1").Accepted()
	loaded.Store(true)
	got := r.capabilities("a")
	if len(got) != 1 || got[0].GetName() != "a" || !got[0].GetAvailable() || got[0].GetVersion() != "0.13.5" || got[0].GetCapacity() != 1 ||
		got[0].GetInFlight() != 1 || got[0].GetRevision() != 1 || fmt.Sprint(got[0].GetModels()) != fmt.Sprint([]*pb.ModelState{{Name: "m", Loaded: true, Context: 4096}, {Name: "n"}}) {
		t.Errorf("capabilities = %v", got)
	}
	r.Status("the model is loaded", func(s *pb.NodeStatus) bool { return s.GetAdapters()[0].GetModels()[0].GetLoaded() })
}

// A provider that doesn't answer in time is told of as it was; one that was never heard of and one that couldn't be
// built are unavailable, with the reason; and none of them holds up the answer for longer than the limit.
func TestCapabilitiesOfSilentProviders(t *testing.T) {
	var silent atomic.Bool
	hang := func(ctx context.Context) execution.Capabilities {
		<-ctx.Done()
		return execution.Capabilities{Reason: "no answer"}
	}
	slow := &nodetest.Adapter{OnProbe: func(ctx context.Context) execution.Capabilities {
		if silent.Load() {
			return hang(ctx)
		}
		return nodetest.Up()
	}}
	drivers := map[string]execution.Provider{"a": slow, "never": &nodetest.Adapter{OnProbe: hang}, "well": &nodetest.Adapter{}}
	r := newRig(t, slow, timers(func(x *node.Timers) { x.AdapterBuild, x.Fresh = soon, soon }), func(s *setup) {
		s.build = func(spec router.Spec) (execution.Provider, error) {
			if d := drivers[spec.Name]; d != nil {
				return d, nil
			}
			return nil, fmt.Errorf("there is no kind %q", spec.Kind)
		}
		for _, name := range []string{"a", "never", "broken", "well"} {
			s.adapters = append(s.adapters, &pb.AdapterConfig{Name: name, Kind: "fake", MaxConcurrency: 1, AdapterRevision: 1})
		}
	})
	nodetest.Eventually(t, "two have answered", func() bool {
		n := 0
		for _, s := range r.router.Snapshot("edge:1") {
			if s.Caps.Available {
				n++
			}
		}
		return n == 2
	})
	silent.Store(true)
	got := map[string]*pb.AdapterState{}
	for _, a := range r.capabilities("") {
		got[a.GetName()] = a
	}
	if len(got) != 4 || !got["a"].GetAvailable() || !got["well"].GetAvailable() || got["never"].GetAvailable() || got["never"].GetReason() == "" ||
		got["broken"].GetAvailable() || got["broken"].GetReason() != `there is no kind "fake"` {
		t.Errorf("capabilities = %v", got)
	}
}

// A command that waits for a provider can be cancelled.
func TestCapabilitiesAreCancelled(t *testing.T) {
	var built atomic.Bool
	asked := make(chan struct{}, 8)
	r := newRig(t, &nodetest.Adapter{OnProbe: func(ctx context.Context) execution.Capabilities {
		if !built.Load() {
			return nodetest.Up()
		}
		asked <- struct{}{}
		<-ctx.Done()
		return execution.Capabilities{}
	}}, timers(func(x *node.Timers) { x.Fresh, x.Probe = nodetest.Limit, nodetest.Limit }))
	built.Store(true)
	tn := r.openCommand(request("c1", pb.CommandType_COMMAND_TYPE_CAPABILITIES))
	if first, err := nextAnswer(tn); err != nil || first.GetAccepted() == nil {
		t.Fatal(first, err)
	}
	nodetest.Receive(t, "the probe", asked)
	r.Link.SendCancel("c1", execution.CauseAPI)
	last, err := nextAnswer(tn)
	if err != nil || last.GetError().GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED || last.GetSeq() != 2 || last.GetSessionId() != "s-1" {
		t.Errorf("%v, %v", last, err)
	}
}

// What a provider says of itself fits into one message, however much it is; the rest is left out.
func TestCapabilitiesFitTheirMessage(t *testing.T) {
	for name, length := range map[string]int{"short names": 3, "long names": 500} {
		t.Run(name, func(t *testing.T) {
			var models []execution.Model
			for i := range 100_000 {
				if m := fmt.Sprintf("%0*x", length, i); length < 10 || i < 5000 {
					models = append(models, execution.Model{Name: m, Loaded: true, Context: 1<<63 - 1})
				}
			}
			r := newRig(t, &nodetest.Adapter{OnProbe: func(context.Context) execution.Capabilities {
				return execution.Capabilities{Available: true, Version: strings.Repeat("v", 5000), Models: models}
			}})
			got := r.capabilities("a")
			if n := len(got[0].GetModels()); n < 1000 || n == len(models) || len(got[0].GetVersion()) > 128 {
				t.Errorf("%d models, version of %d bytes", n, len(got[0].GetVersion()))
			}
		})
	}
}
