package transport_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	pb "iop/proto/iop"
)

// dryRun is what `iop-node doctor` sends.
func dryRun(id string) *pb.RegisterRequest {
	hello := edgetest.Hello(id)
	hello.InstanceId, hello.DryRun = nil, true
	return hello
}

// A dry run tells what a registration would, and nothing changes by it: not for a node that isn't connected, and not for
// one that is.
func TestDryRun(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		ask := func() *pb.RegisterResponse {
			t.Helper()
			conn, resp := register(t, l, dryRun("a"))
			if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after its answer the edge left the connection open: %v", err)
			}
			if !resp.GetAccepted() || resp.GetNodeId() != "a" || len(resp.GetConfig().GetAdapters()) != 1 || resp.GetEdgeTimeMs() != time.Now().UnixMilli() {
				t.Errorf("answer %v", resp)
			}
			return resp
		}
		if g := ask().GetConnectionGeneration(); g != 0 || e.Registry.Current("a") != nil {
			t.Errorf("a node that isn't connected has generation %d", g)
		}
		_, first := register(t, l, edgetest.Hello("a"))
		seen.want(t, events.KindRegistered, "registered")
		live := e.Registry.Current("a")
		for range 3 {
			if g := ask().GetConnectionGeneration(); g != first.GetConnectionGeneration() || e.Registry.Current("a") != live {
				t.Errorf("the live connection %d became %d", first.GetConnectionGeneration(), g)
			}
		}
		if _, next := register(t, l, edgetest.Hello("b")); next.GetConnectionGeneration() != first.GetConnectionGeneration()+1 {
			t.Errorf("dry runs took generations: %d follows %d", next.GetConnectionGeneration(), first.GetConnectionGeneration())
		}
	})
}

// A dry run is refused for whatever a registration is.
func TestDryRunRefused(t *testing.T) {
	disabled := edgetest.Record("disabled", 1)
	disabled.Enabled = false
	for name, c := range map[string]struct {
		change func(*pb.RegisterRequest)
		reason pb.RegisterReason
	}{
		"unknown token": {func(r *pb.RegisterRequest) { r.Token = "nobody knows this" }, unknownToken},
		"disabled":      {func(r *pb.RegisterRequest) { r.Token = edgetest.Token("disabled") }, nodeDisabled},
		"newer only":    {func(r *pb.RegisterRequest) { r.ProtocolMin, r.ProtocolMax = 2, 3 }, versionUnsupp},
		// What an edge does that doesn't know the field.
		"not asked for": {func(r *pb.RegisterRequest) { r.DryRun = false }, protocolReason},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{Nodes: append(nodes("a"), disabled)})
				hello := dryRun("a")
				c.change(hello)
				conn, resp := register(t, l, hello)
				wantRefused(t, conn, resp, c.reason)
				seen.want(t, events.KindRefused, strings.ToLower(strings.TrimPrefix(c.reason.String(), "REGISTER_REASON_")))
				if n := len(e.Registry.Connections()); n != 0 {
					t.Errorf("%d connections in the registry", n)
				}
			})
		})
	}
}
