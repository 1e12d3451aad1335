package transport_test

import (
	"net"
	"testing"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/transport"
	"iop/packages/go/config"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// handoverHello is the registration of a's own process that names its current connection.
func handoverHello(generation uint64) *pb.RegisterRequest {
	hello := edgetest.Hello("a")
	hello.Handover, hello.LastGeneration = true, generation
	return hello
}

// Design §4, fault 44: a node that comes with a renewed certificate takes over without an end of what runs: the old
// connection keeps its streams, takes no new work, and ends with the last of them.
func TestHandover(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	old := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	before := s.Registry.Current("a")
	st, err := before.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Write(&pb.WorkOpen{ConnectionGeneration: before.Generation, Attempt: 1, Work: &pb.WorkOpen_Command{
		Command: &pb.NodeCommandRequest{CommandId: "x", Type: pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS}}}); err != nil {
		t.Fatal(err)
	}
	fresh := s.connect(s.ca.Node(t, "a"), handoverHello(old.Generation()))
	after := s.Registry.Current("a")
	if after == nil || after.Generation != fresh.Generation() {
		t.Fatalf("current: %+v", after)
	}
	if s.Registry.Lookup("a", before.Generation) != before || before.State() != node.StateDraining {
		t.Errorf("the old connection is %s", before.State())
	}
	if n := len(s.Registry.Connections()); n != 1 {
		t.Errorf("%d current connections of one node", n)
	}
	if n := s.seen.count(events.KindFenced, ""); n != 0 {
		t.Fatalf("%d fenced", n)
	}
	// For longer than two looks at its streams.
	select {
	case <-before.Down():
		t.Fatal("the old connection ended under its stream")
	case <-time.After(2500 * time.Millisecond):
	}
	st.Close()
	if ev := s.seen.want(t, events.KindFenced, "superseded"); ev.Generation != before.Generation {
		t.Errorf("%+v", ev)
	}
	if s.Registry.Lookup("a", before.Generation) != nil || s.Registry.Current("a") != after {
		t.Error("the registry is wrong after the end of the old connection")
	}
}

// What runs on a connection that was handed over ends with the node's right to be there.
func TestRevokedDuringHandover(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	old := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	if _, err := s.Registry.Current("a").Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.connect(s.ca.Node(t, "a"), handoverHello(old.Generation()))
	recs := managedNodes()
	recs[0].Enabled = false
	s.Configure(recs)
	s.Registry.Reconfigured(func(*config.Projection) *pb.NodeConfigPayload { return nil })
	for range 2 {
		s.seen.want(t, events.KindFenced, "node_disabled")
	}
	if n := s.Server.Stats(); n.Unregistered != 0 {
		t.Errorf("%+v", n)
	}
}

// Only the process that has the connection can hand it over; to anybody else, and in mode dev, the word means nothing.
func TestHandoverByAnother(t *testing.T) {
	s := newManaged(t, transport.Timers{Probe: patience.Limit})
	old := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	for name, change := range map[string]func(*pb.RegisterRequest){
		"another process":  func(r *pb.RegisterRequest) { r.InstanceId = edgetest.Instance("clone") },
		"stale generation": func(r *pb.RegisterRequest) { r.LastGeneration-- },
	} {
		hello := handoverHello(old.Generation())
		change(hello)
		resp, err := edgetest.Register(s.dial(s.ca.Node(t, "a")), hello)
		if err != nil || resp.GetReason() != duplicate {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
	}
	if cur := s.Registry.Current("a"); cur == nil || cur.Generation != old.Generation() || cur.State() != node.StateReady {
		t.Error("the live connection was touched")
	}
}

// Another process that comes in the place of one that is dead replaces it, whatever it says: nothing is left to be
// finished there.
func TestHandoverOfADeadConnection(t *testing.T) {
	s := newManaged(t, transport.Timers{Probe: 300 * time.Millisecond})
	bare, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	cable := &edgetest.Cable{Conn: bare}
	conn, err := s.dialOver(cable, s.ca.Node(t, "a"))
	if err != nil {
		t.Fatal(err)
	}
	old := edgetest.Connect(t, conn, edgetest.NodeOptions{Hello: edgetest.Hello("a")})
	before := s.Registry.Current("a")
	old.AwaitReady(t)
	eventually(t, "nothing is on its way any more", func() bool {
		return before.Link.Status().RTT > 0 && old.Link.Status().RTT > 0
	})
	cable.Silence()
	hello := handoverHello(old.Generation())
	hello.InstanceId = edgetest.Instance("next")
	if resp, err := edgetest.Register(s.dial(s.ca.Node(t, "a")), hello); err != nil || !resp.GetAccepted() {
		t.Fatal(resp, err)
	}
	s.seen.want(t, events.KindFenced, "superseded")
	select {
	case <-before.HandedOver():
		t.Error("handed over by somebody else")
	default:
	}
}

// A node that hands over again and again keeps a few old connections at most.
func TestHandoversAreBounded(t *testing.T) {
	s := newManaged(t, transport.Timers{})
	n := s.connect(s.ca.Node(t, "a"), edgetest.Hello("a"))
	for range 6 {
		if _, err := s.Registry.Current("a").Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		n = s.connect(s.ca.Node(t, "a"), handoverHello(n.Generation()))
	}
	// Of six old ones four may stay.
	eventually(t, "two are fenced", func() bool { return s.seen.count(events.KindFenced, "superseded") == 2 })
}
