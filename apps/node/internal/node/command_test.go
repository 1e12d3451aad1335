package node_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// closedCommands is the documented set of commands that a node executes, exactly. Everything else, known to the wire or
// not, is refused with a reason.
var closedCommands = map[pb.CommandType]bool{
	pb.CommandType_COMMAND_TYPE_CAPABILITIES:     true,
	pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS: true,
	pb.CommandType_COMMAND_TYPE_OLLAMA_API:       true,
}

// request is a whole command of a type: one that a node with the adapter "a" can do.
func request(id string, kind pb.CommandType) *pb.NodeCommandRequest {
	q := &pb.NodeCommandRequest{CommandId: id, Type: kind, SessionId: "s-1"}
	if kind == pb.CommandType_COMMAND_TYPE_OLLAMA_API {
		q.Adapter, q.Method, q.Path = "a", "GET", "/api/tags"
	}
	return q
}

// open sends a command.
func (r *rig) openCommand(q *pb.NodeCommandRequest) *nodetest.Tunnel {
	r.t.Helper()
	return r.Open(&pb.WorkOpen{ConnectionGeneration: r.Generation, Work: &pb.WorkOpen_Command{Command: q}})
}

// nextAnswer reads one message of a command that isn't OLLAMA_API.
func nextAnswer(tn *nodetest.Tunnel) (*pb.NodeCommandResponse, error) {
	timer := time.AfterFunc(nodetest.Limit, tn.Cancel)
	defer timer.Stop()
	return tn.ReadCommand()
}

func (r *rig) command(id string, kind pb.CommandType) (first, second *pb.NodeCommandResponse) {
	r.t.Helper()
	return r.ask(request(id, kind))
}

// ask sends a command that isn't OLLAMA_API and returns its answer: accepted and the result, or rejected and nil.
func (r *rig) ask(q *pb.NodeCommandRequest) (first, second *pb.NodeCommandResponse) {
	r.t.Helper()
	tn := r.openCommand(q)
	defer tn.Close()
	first, err := nextAnswer(tn)
	if err != nil {
		r.t.Fatalf("command %v: %v", q.GetType(), err)
	}
	if first.GetSeq() != 1 || first.GetSessionId() != "s-1" {
		r.t.Errorf("first response = %v", first)
	}
	if first.GetAccepted() == nil {
		return first, nil
	}
	if second, err = nextAnswer(tn); err != nil {
		r.t.Fatalf("command %v: %v", q.GetType(), err)
	}
	if first.GetAccepted().GetSessionId() != "s-1" || second.GetSeq() != 2 || second.GetSessionId() != "s-1" {
		r.t.Errorf("responses = %v, %v", first, second)
	}
	return first, second
}

// The set of commands that are executed equals the documented one exactly: every value of the enum and every number up
// to well beyond it is tried, the removed ones (3 usage status, 4 session list) and unknown ones among them.
func TestCommandsAreAClosedSet(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	values := (pb.CommandType(0)).Descriptor().Values()
	for i := range values.Len() {
		if n := pb.CommandType(values.Get(i).Number()); n != 0 && !closedCommands[n] {
			t.Errorf("%v is on the wire and not in the documented set", n)
		}
	}
	for n := pb.CommandType(-1); n <= 40; n++ {
		id := fmt.Sprintf("c%d", n)
		if n == pb.CommandType_COMMAND_TYPE_OLLAMA_API {
			if got := r.openCommand(request(id, n)).Collect(); got.Kinds != "ahbe" {
				t.Errorf("command %v: %q %v", n, got.Kinds, got.Rejected)
			}
			continue
		}
		first, second := r.command(id, n)
		if closedCommands[n] {
			if second == nil || second.GetError() != nil {
				t.Errorf("command %v: %v, %v", n, first, second)
			}
			continue
		}
		f := first.GetRejected().GetFailure()
		if f.GetCode() != pb.FailureCode_FAILURE_CODE_BAD_REQUEST || f.GetText() == "" || !first.GetRejected().GetNeverStarted() {
			t.Errorf("command %d isn't refused with a reason: %v", n, first)
		}
	}
	r.atRest()
}

// Removed commands and the removed cancel keep their numbers and names reserved.
func TestRemovedValuesStayReserved(t *testing.T) {
	commands := pb.CommandType(0).Descriptor()
	for _, n := range []protoreflect.EnumNumber{3, 4} {
		if !commands.ReservedRanges().Has(n) || commands.Values().ByNumber(n) != nil {
			t.Errorf("command %d isn't reserved", n)
		}
	}
	for _, name := range []protoreflect.Name{"USAGE_STATUS", "SESSION_LIST"} {
		if !commands.ReservedNames().Has(name) {
			t.Errorf("command %s isn't reserved", name)
		}
	}
	cancels := pb.CancelType(0).Descriptor()
	if !cancels.ReservedRanges().Has(2) || !cancels.ReservedNames().Has("TERMINATE_SESSION") {
		t.Error("cancel type 2 TERMINATE_SESSION isn't reserved")
	}
}

func TestTransportStatus(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang})
	r.Start("r1").Accepted()
	_, result := r.command("c1", pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS)
	s := result.GetTransportStatus()
	if s.GetConnectionGeneration() != 7 || s.GetInFlight() != 1 || s.GetOpenStreams() < 2 || s.GetLinkAgeMs() < 0 {
		t.Errorf("status = %v", s)
	}
	// Commands take no place, and a node at its capacity answers them.
	if n := r.inFlight(); n != 1 {
		t.Errorf("%d places held, want 1", n)
	}
}

// At most four commands of a connection are in work; a fifth is told so, and room is made before an answer is read: the
// edge that has read one may send the next.
func TestFifthCommandIsOverloaded(t *testing.T) {
	hold := make(chan struct{})
	r := newRig(t, &nodetest.Adapter{OnCommand: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		<-hold
		return nodetest.Answer(sink, "ok")
	}})
	var open []*nodetest.Tunnel
	for i := range 4 {
		tn := r.openCommand(request(fmt.Sprintf("c%d", i), pb.CommandType_COMMAND_TYPE_OLLAMA_API))
		tn.Accepted()
		open = append(open, tn)
	}
	nodetest.Eventually(t, "the four are asked", func() bool { return r.adapter.Commands.Load() == 4 })
	for _, kind := range []pb.CommandType{pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS, pb.CommandType_COMMAND_TYPE_CAPABILITIES} {
		first, _ := r.command("c5", kind)
		if c := first.GetRejected().GetFailure().GetCode(); c != pb.FailureCode_FAILURE_CODE_OVERLOADED || !first.GetRejected().GetNeverStarted() {
			t.Errorf("fifth command: %v", first)
		}
	}
	r.rejectsCommand(request("c6", pb.CommandType_COMMAND_TYPE_OLLAMA_API), execution.CodeOverloaded)
	if n := r.inFlight(); n != 0 {
		t.Errorf("commands hold %d places", n)
	}
	close(hold)
	for i, tn := range open {
		if got := tn.Collect(); got.Kinds != "hbe" {
			t.Errorf("command %d: %q %v", i, got.Kinds, got.Error)
		}
		if first, _ := r.command(fmt.Sprintf("d%d", i), pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS); first.GetAccepted() == nil {
			t.Errorf("the next after an answer: %v", first)
		}
	}
	r.atRest()
}

func TestCommandIDs(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang, OnCommand: nodetest.Hang})
	for _, id := range []string{"", "a b", strings.Repeat("x", 65)} {
		first, _ := r.command(id, pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS)
		if c := first.GetRejected().GetFailure().GetCode(); c != pb.FailureCode_FAILURE_CODE_BAD_REQUEST {
			t.Errorf("command_id %q: %v", id, first)
		}
	}
	// A cancel that overtook its command.
	r.Link.SendCancel("c9", execution.CauseAPI)
	r.CancelResult("c9")
	first, _ := r.command("c9", pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS)
	if c := first.GetRejected().GetFailure().GetCode(); c != pb.FailureCode_FAILURE_CODE_CANCELLED {
		t.Errorf("cancelled command: %v", first)
	}
	// A cancel names one thing: neither may a command have the id of an execution, nor the other way round, nor two of
	// either the same.
	r.Start("r1").Accepted()
	r.openCommand(request("c1", pb.CommandType_COMMAND_TYPE_OLLAMA_API)).Accepted()
	r.inside(1)
	for _, id := range []string{"r1", "c1"} {
		first, _ := r.command(id, pb.CommandType_COMMAND_TYPE_TRANSPORT_STATUS)
		if c := first.GetRejected().GetFailure().GetCode(); c != pb.FailureCode_FAILURE_CODE_DUPLICATE_RUN {
			t.Errorf("a command %s beside another: %v", id, first)
		}
	}
	r.rejects(r.Start("c1"), execution.CodeDuplicateRun)
}

// A cancel names one run and touches that run only: without a run_id, with one that can't be, of the removed type or
// of an unknown one it is refused with a reason.
func TestCancelIsRefused(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang})
	tn := r.Start("r1")
	tn.Accepted()
	r.inside(1)
	for _, c := range []struct {
		kind  pb.CancelType
		runID string
	}{
		{pb.CancelType_CANCEL_TYPE_CANCEL_RUN, ""},
		{pb.CancelType_CANCEL_TYPE_CANCEL_RUN, "a b"},
		{pb.CancelType_CANCEL_TYPE_UNSPECIFIED, "r1"},
		{2, "r1"}, // TERMINATE_SESSION, removed
		{77, "r1"},
	} {
		r.session.Cancel(&pb.CancelRequest{Type: c.kind, RunId: c.runID})
		if got := r.CancelResult(c.runID); got.GetResult() != pb.CancelOutcome_CANCEL_OUTCOME_REFUSED || got.GetText() == "" {
			t.Errorf("cancel %d %q: %v", c.kind, c.runID, got)
		}
	}
	if _, now := r.adapter.Peak(); now != 1 {
		t.Error("a refused cancel cancelled")
	}
	r.session.Cancel(&pb.CancelRequest{Type: pb.CancelType_CANCEL_TYPE_CANCEL_RUN, RunId: "r1", Cause: 99}) // a cause of a newer edge
	if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_CANCELLED {
		t.Errorf("RunEnd = %v", e)
	}
}

// Every kind of work has an answer: a new case of the oneof without one fails here.
func TestEveryKindOfWorkIsAnswered(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	oneof := (&pb.WorkOpen{}).ProtoReflect().Descriptor().Oneofs().ByName("work")
	for i := range oneof.Fields().Len() {
		field := oneof.Fields().Get(i)
		open := &pb.WorkOpen{ConnectionGeneration: r.Generation}
		open.ProtoReflect().Set(field, open.ProtoReflect().NewField(field))
		tn := r.Open(open)
		var err error
		switch field.Name() {
		case "run":
			_, err = tn.ReadEvent()
		case "command":
			_, err = tn.ReadCommand()
		default:
			_, err = tn.Next()
		}
		if err != nil {
			t.Errorf("work %s: %v", field.Name(), err)
		}
		tn.Close()
	}
}
