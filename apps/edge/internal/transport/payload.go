package transport

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/config"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

// payloadRoom is left in a RegisterResponse for everything but the payload.
const payloadRoom = 4 << 10

// Payload makes what a node is told of the edge's configuration. It holds no secret: a projection has none.
func Payload(p *config.Projection) (*pb.NodeConfigPayload, error) { return Payloads(nil)(p) }

// Payloads returns a Payload that also tells a node of the keys that leases are signed with, and of its slots. nil lends
// nothing.
func Payloads(leases Leases) func(*config.Projection) (*pb.NodeConfigPayload, error) {
	return func(p *config.Projection) (*pb.NodeConfigPayload, error) { return payload(p, leases) }
}

func payload(p *config.Projection, leases Leases) (*pb.NodeConfigPayload, error) {
	out := &pb.NodeConfigPayload{Projection: p.Number, Adapters: make([]*pb.AdapterConfig, len(p.Adapters))}
	for i := range p.Adapters {
		out.Adapters[i] = adapterConfig(&p.Adapters[i])
	}
	if leases != nil && len(p.Slots) > 0 {
		lend(out, p, leases)
	}
	if n := proto.Size(out); n > link.MaxRegisterResponse-payloadRoom {
		return nil, fmt.Errorf("the node's configuration takes %d bytes, over the limit of %d; give it fewer adapters or targets",
			n, link.MaxRegisterResponse-payloadRoom)
	}
	return out, nil
}

// lend adds what a node must know to judge leases.
func lend(out *pb.NodeConfigPayload, p *config.Projection, leases Leases) {
	for _, k := range leases.Keys() {
		out.LeaseKeys = append(out.LeaseKeys, &pb.LeaseKey{Kid: k.ID, Pub: k.Public, NotBeforeMs: k.NotBefore, NotAfterMs: k.NotAfter})
	}
	for _, s := range leases.Slots(p.Slots) {
		out.Slots = append(out.Slots, &pb.SlotRef{Id: s.ID, MinRevision: s.MinRevision, Disabled: s.Disabled})
	}
	for _, r := range p.Routes {
		out.Routes = append(out.Routes, &pb.RouteRef{Name: r.Name, Revision: r.Revision, Adapter: r.Adapter, Target: r.Target,
			Slot: r.Slot, Profile: r.Profile})
	}
	for _, q := range p.Profiles {
		out.Profiles = append(out.Profiles, &pb.ProfileRef{Id: q.ID, Revision: q.Revision, Origin: q.Origin, Paths: q.Paths,
			HeaderName: q.Header, Scheme: q.Scheme})
	}
}

// Must is make for projections for which it worked before.
func Must(make func(*config.Projection) (*pb.NodeConfigPayload, error)) func(*config.Projection) *pb.NodeConfigPayload {
	return func(p *config.Projection) *pb.NodeConfigPayload {
		out, err := make(p)
		if err != nil {
			panic(err)
		}
		return out
	}
}

func adapterConfig(a *config.ProjectedAdapter) *pb.AdapterConfig {
	out := &pb.AdapterConfig{
		Name: a.Name, Kind: a.Kind, BaseUrl: a.BaseURL, MaxConcurrency: int32(a.MaxConcurrency),
		AdapterRevision: a.Revision, AllowPaths: a.AllowPaths, Targets: a.Targets,
	}
	for _, k := range slices.Sorted(maps.Keys(a.Options)) {
		out.Options = append(out.Options, &pb.KeyValue{Key: k, Value: a.Options[k]})
	}
	return out
}
