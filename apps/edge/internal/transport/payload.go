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
func Payload(p *config.Projection) (*pb.NodeConfigPayload, error) {
	out := &pb.NodeConfigPayload{Projection: p.Number, Adapters: make([]*pb.AdapterConfig, len(p.Adapters))}
	for i := range p.Adapters {
		out.Adapters[i] = adapterConfig(&p.Adapters[i])
	}
	if n := proto.Size(out); n > link.MaxRegisterResponse-payloadRoom {
		return nil, fmt.Errorf("the node's configuration takes %d bytes, over the limit of %d; give it fewer adapters or targets",
			n, link.MaxRegisterResponse-payloadRoom)
	}
	return out, nil
}

// MustPayload is Payload of a projection for which that worked before.
func MustPayload(p *config.Projection) *pb.NodeConfigPayload {
	out, err := Payload(p)
	if err != nil {
		panic(err)
	}
	return out
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
