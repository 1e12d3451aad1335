package service_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// A connection has four commands in work; a fifth waits for its turn within its own time and never meets overloaded. An
// answer read makes room at once, a command that was cancelled once the node has closed its stream.
func TestCommandsWaitForTheirTurn(t *testing.T) {
	d := newDesk(t, nil, "a")
	begun, let := make(chan *asked, 16), make(chan struct{})
	d.ready("a", func(a *asked) {
		begun <- a
		if !a.isOllama() {
			a.answer()
			return
		}
		a.accept()
		closed := make(chan struct{})
		go func() { a.awaitEOF(); close(closed) }()
		select {
		case <-let:
			a.head(200)
			a.end(0)
		case <-closed:
		}
		<-closed
	})
	var four []<-chan *service.CommandResult
	leaving, leave := context.WithCancelCause(context.Background())
	four = append(four, d.asking(leaving, tags("a")))
	first := receive(t, "a command", begun)
	for range 3 {
		four = append(four, d.asking(context.Background(), tags("a")))
		receive(t, "a command", begun)
	}
	impatient, stop := context.WithCancelCause(context.Background())
	gone, fifth := d.asking(impatient, status("a")), d.asking(context.Background(), status("a"))
	stop(execution.CauseAPI)
	r := receive(t, "the impatient one", gone)
	d.refused("cancelled while it waits", r, execution.CodeCancelled)
	select {
	case a := <-begun:
		t.Errorf("a fifth was sent: %v", a.NodeCommandRequest)
	case r := <-fifth:
		t.Errorf("the fifth ended: %v", r.Failure)
	default:
	}
	leave(execution.CauseClientGone)
	if r := receive(t, "the one that leaves", four[0]); codeOf(r) != execution.CodeClientGone || r.CommandID != first.GetCommandId() {
		t.Errorf("left: %+v %v", r, r.Failure)
	}
	if r = receive(t, "the fifth", fifth); !r.OK() || r.Queued <= 0 {
		t.Errorf("the fifth: %+v %v", r, r.Failure)
	}
	receive(t, "the fifth at the node", begun)
	close(let)
	for _, done := range four[1:] {
		if r := receive(t, "an answer", done); !r.OK() {
			t.Errorf("%v", r.Failure)
		}
	}
	for range 20 { // each is sent as soon as the one before it was answered
		if r := d.ask(status("a")); !r.OK() {
			t.Fatalf("in a row: %v", r.Failure)
		}
		receive(t, "a command", begun)
	}
}

// Those who wait are bounded, too.
func TestWaitingCommandsAreBounded(t *testing.T) {
	d := newDesk(t, nil, "a")
	d.ready("a", func(a *asked) { a.accept(); <-d.closed })
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	results := make(chan *service.CommandResult, 100)
	for range 4 + 64 + 5 {
		go func() { results <- d.Command(ctx, tags("a")) }()
	}
	for range 5 {
		d.refused("one too many", receive(t, "the refusals", results), execution.CodeOverloaded)
	}
	select {
	case r := <-results:
		t.Errorf("another one ended: %v", r.Failure)
	default:
	}
}

// A cancel is two things: a CancelRequest with the command_id, and the close of the stream. Neither is waited for.
func TestCommandIsCancelledAtTheNode(t *testing.T) {
	for _, before := range []bool{true, false} {
		t.Run(fmt.Sprintf("accepted %v", !before), func(t *testing.T) {
			d := newDesk(t, nil, "a")
			begun, closed := make(chan *asked, 1), make(chan struct{})
			n := d.ready("a", func(a *asked) {
				if !before {
					a.accept()
					a.head(200)
				}
				begun <- a
				a.awaitEOF()
				close(closed)
				<-d.closed // a node that takes its time
			})
			ctx, cancel := context.WithCancelCause(context.Background())
			c := tags("a")
			done := d.asking(ctx, c)
			a := receive(t, "the command", begun)
			cancel(execution.CauseAPI)
			r := receive(t, "the result", done)
			if codeOf(r) != execution.CodeCancelled || r.CommandID != a.GetCommandId() || r.Body != nil {
				t.Errorf("%+v %v", r, r.Failure)
			}
			if id, cause := cancelOf(t, n); id != a.GetCommandId() || cause != pb.CancelCause_CANCEL_CAUSE_API {
				t.Errorf("cancel of %q for %v", id, cause)
			}
			receive(t, "the close", closed)
			if s := d.Registry.Current("a").State(); s != node.StateReady {
				t.Errorf("the node is %v", s)
			}
		})
	}
}

// A link that ends takes its commands with it (node_lost), and those that wait for their turn go elsewhere or are told
// that nothing was sent. Nothing is sent twice.
func TestCommandsWhenTheLinkEnds(t *testing.T) {
	for _, how := range []string{"before accepted", "accepted", "in the answer"} {
		t.Run(how, func(t *testing.T) {
			d := newDesk(t, nil, "a")
			begun := make(chan *asked, 8)
			n := d.ready("a", func(a *asked) {
				if how != "before accepted" {
					a.accept()
				}
				if how == "in the answer" {
					a.head(200)
					a.piece([]byte("half"))
				}
				begun <- a
				<-a.Link().Down()
			})
			var lost []<-chan *service.CommandResult
			for range 4 {
				lost = append(lost, d.asking(context.Background(), tags("a")))
				receive(t, "a command", begun)
			}
			waiting := d.asking(context.Background(), tags("a"))
			n.Close()
			for _, done := range lost {
				if r := receive(t, "the end", done); codeOf(r) != execution.CodeNodeLost || r.Failure.NothingSent || r.Body != nil {
					t.Errorf("%+v %v", r, r.Failure)
				}
			}
			d.refused("waiting", receive(t, "the one that waits", waiting), execution.CodeNoNode)
			if len(begun) != 0 {
				t.Error("a command was sent again")
			}
		})
	}
}

// By adapter, a command that wasn't sent yet goes to the next node when a link ends.
func TestWaitingCommandGoesElsewhere(t *testing.T) {
	d := newDesk(t, nil, "a", "b")
	begun := make(chan struct{}, 8)
	n := d.ready("a", func(a *asked) { a.accept(); begun <- struct{}{}; <-a.Link().Down() })
	for range 4 {
		d.asking(context.Background(), tags("a"))
		receive(t, "a command", begun)
	}
	d.ready("b", (*asked).answer)
	done := d.asking(context.Background(), tags("")) // a comes first, and is full
	select {
	case r := <-done:
		t.Fatalf("%+v %v", r, r.Failure)
	case <-time.After(10 * time.Millisecond): // it waits, or hasn't begun: either way it must get its answer
	}
	n.Close()
	if r := receive(t, "the answer", done); !r.OK() || r.NodeID != "b" {
		t.Errorf("%+v %v", r, r.Failure)
	}
}

// A node that doesn't answer the open within the dispatch limit counts as one that has missed it: three in a row, and it
// gets no work.
func TestCommandDispatchLimit(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		d := newDesk(t, func(c *service.Config) { c.DispatchLimit = 50 * time.Millisecond }, "a")
		n := d.ready("a", func(*asked) {})
		for range 3 {
			r := d.ask(tags("a"))
			if codeOf(r) != execution.CodeDispatchTimeout {
				t.Errorf("%+v %v", r, r.Failure)
			}
			if id, cause := cancelOf(t, n); id != r.CommandID || cause != pb.CancelCause_CANCEL_CAUSE_DEADLINE {
				t.Errorf("cancel of %q for %v", id, cause)
			}
		}
		if s := d.Registry.Current("a").State(); s != node.StateUnresponsive {
			t.Errorf("the node is %v", s)
		}
	})
}

// The dispatch limit is over with the node's first word: the answer may take longer.
func TestCommandAnswersAfterTheDispatchLimit(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		const limit = time.Second
		d := newDesk(t, func(c *service.Config) { c.DispatchLimit = limit }, "a")
		d.ready("a", func(a *asked) {
			a.accept()
			<-time.After(limit + limit/4)
			a.accepted = true
			a.answer()
		})
		results := make(chan *service.CommandResult, 2)
		for _, c := range []*service.Command{tags("a"), status("a")} {
			go func() { results <- d.Command(context.Background(), c) }()
		}
		for range 2 {
			if r := receive(t, "the answer", results); !r.OK() {
				t.Errorf("%+v %v", r, r.Failure)
			}
		}
	})
}

// A rejection is an answer: it doesn't count as a miss, though it makes no unresponsive node usable.
func TestRejectedCommandsCountNothing(t *testing.T) {
	d := newDesk(t, nil, "a")
	d.ready("a", func(a *asked) { a.reject(execution.CodeBadRequest) })
	for range 4 {
		d.ask(tags("a"))
	}
	c := d.Registry.Current("a")
	if s := c.State(); s != node.StateReady {
		t.Errorf("the node is %v", s)
	}
	for range 3 {
		c.DispatchTimeout()
	}
	d.ask(tags("a"))
	if s := c.State(); s != node.StateUnresponsive {
		t.Errorf("the node is %v", s)
	}
}

// A command is bounded as a whole, whatever the node does, and so is the wait for a turn.
func TestCommandLimit(t *testing.T) {
	onFakeTime(t, func(t *testing.T) {
		d := newDesk(t, func(c *service.Config) { c.CommandLimit = 500 * time.Millisecond }, "a")
		begun := make(chan struct{}, 8)
		n := d.ready("a", func(a *asked) { a.accept(); a.head(200); begun <- struct{}{}; <-d.closed })
		var four []<-chan *service.CommandResult
		for range 4 {
			four = append(four, d.asking(context.Background(), tags("a")))
			receive(t, "a command", begun)
		}
		waiting := d.ask(status("a")) // the turns come back only when the node closes, which it doesn't
		d.refused("its turn didn't come", waiting, execution.CodeDeadline)
		for _, done := range four {
			if r := receive(t, "its end", done); codeOf(r) != execution.CodeDeadline || r.Failure.NothingSent {
				t.Errorf("%+v %v", r, r.Failure)
			}
			if _, cause := cancelOf(t, n); cause != pb.CancelCause_CANCEL_CAUSE_DEADLINE {
				t.Errorf("cancel for %v", cause)
			}
		}
	})
}

// What a node refuses is passed on with its code; what it says that isn't due is its fault, and cancelled.
func TestCommandAnswersThatArent(t *testing.T) {
	d := newDesk(t, nil, "a")
	script := make(chan func(*asked), 1)
	d.ready("a", func(a *asked) { (<-script)(a) })
	for _, code := range []execution.Code{execution.CodeBadRequest, execution.CodeUnknownAdapter, execution.CodeOverloaded, execution.CodeNodeDraining,
		execution.CodeAdapterUnavailable, execution.CodeCancelled} {
		for _, c := range []*service.Command{status("a"), tags("a")} {
			script <- func(a *asked) { a.reject(code) }
			d.refused("rejected", d.ask(c), code)
		}
	}
	accepted := func(session string) *pb.NodeCommandResponse {
		return &pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Accepted{Accepted: &pb.Accepted{SessionId: session}}}
	}
	status200 := &pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_TransportStatus{TransportStatus: &pb.TransportStatus{}}}
	failed := &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_UPSTREAM_CONNECT, Origin: pb.Origin_ORIGIN_PROVIDER, Text: "refused", NothingSent: true}
	for what, c := range map[string]struct {
		ask  *service.Command
		do   func(a *asked)
		code execution.Code
	}{
		"an error": {status("a"), func(a *asked) {
			a.accept()
			a.says(&pb.NodeCommandResponse{Response: &pb.NodeCommandResponse_Error{Error: failed}})
		}, execution.CodeUpstreamConnect},
		"a failed request": {tags("a"), func(a *asked) {
			a.accept()
			a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: failed}})
		}, execution.CodeUpstreamConnect},
		"an error without a code": {tags("a"), func(a *asked) {
			a.accept()
			a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Error{Error: &pb.Failure{}}})
		}, execution.CodeProtocol},
		"a code that isn't a node's": {tags("a"), func(a *asked) { a.reject(execution.CodeUnauthorized) }, execution.CodeProtocol},
		"another result":             {&service.Command{NodeID: "a", Type: service.CommandCapabilities}, func(a *asked) { a.accept(); a.says(status200) }, execution.CodeProtocol},
		"a result at once":           {status("a"), func(a *asked) { a.says(status200) }, execution.CodeProtocol},
		"accepted twice":             {status("a"), func(a *asked) { a.accept(); a.accept() }, execution.CodeProtocol},
		"a gap":                      {status("a"), func(a *asked) { a.seq = 3; a.accept() }, execution.CodeProtocol},
		"another session":            {status("a"), func(a *asked) { m := accepted("s-2"); m.Seq, m.SessionId = 1, "s-2"; _ = a.Write(m) }, execution.CodeProtocol},
		"another session, tunnel": {tags("a"), func(a *asked) {
			a.frame(&pb.ProviderTunnelFrame{Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{SessionId: "s-2"}}})
		}, execution.CodeProtocol},
		"an event of a run":     {status("a"), func(a *asked) { _ = a.Write(&pb.RunEvent{Seq: 1, Event: &pb.RunEvent_Delta{Delta: "x"}}) }, execution.CodeProtocol},
		"a body without a head": {tags("a"), func(a *asked) { a.accept(); a.piece([]byte("x")) }, execution.CodeProtocol},
		"a head at once":        {tags("a"), func(a *asked) { a.head(200) }, execution.CodeProtocol},
		"two heads":             {tags("a"), func(a *asked) { a.accept(); a.head(200); a.head(200) }, execution.CodeProtocol},
		"an impossible status":  {tags("a"), func(a *asked) { a.accept(); a.head(101) }, execution.CodeProtocol},
		"bytes that aren't":     {tags("a"), func(a *asked) { a.accept(); a.head(200); a.piece([]byte("x")); a.end(2) }, execution.CodeProtocol},
		"a close at once":       {tags("a"), func(a *asked) { a.Close() }, execution.CodeProtocol},
		"a close in the answer": {tags("a"), func(a *asked) { a.accept(); a.head(200); a.piece([]byte("x")); a.Close() }, execution.CodeUpstreamTruncated},
		"more than 16 MiB":      {tags("a"), func(a *asked) { a.accept(); a.head(200); a.piece(make([]byte, service.MaxCommandAnswer+1)) }, execution.CodeUpstreamError},
	} {
		script <- c.do
		r := d.ask(c.ask)
		if codeOf(r) != c.code || r.Body != nil || r.Capabilities != nil {
			t.Errorf("%s: %v %v, want %s", what, codeOf(r), r.Failure, c.code)
		}
	}
	script <- (*asked).answer
	if r := d.ask(tags("a")); !r.OK() {
		t.Errorf("afterwards: %v", r.Failure)
	}
	script <- func(a *asked) {
		a.accept()
		a.head(200)
		a.piece(make([]byte, service.MaxCommandAnswer))
		a.end(service.MaxCommandAnswer)
	}
	if r := d.ask(tags("a")); !r.OK() || len(r.Body) != service.MaxCommandAnswer {
		t.Errorf("16 MiB: %v", r.Failure)
	}
}

// Edge drain: new commands are refused, what is in work is waited for, and ended when the grace is over.
func TestCommandsOfADrainingEdge(t *testing.T) {
	d := newDesk(t, nil, "a")
	begun := make(chan struct{}, 1)
	n := d.ready("a", func(a *asked) { a.accept(); begun <- struct{}{}; <-d.closed })
	done := d.asking(context.Background(), tags("a"))
	receive(t, "the command", begun)
	d.Service.Drain()
	d.refused("at the drain", d.ask(status("a")), execution.CodeEdgeDraining)
	short, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer stop()
	if err := d.Service.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the drain doesn't wait for the command: %v", err)
	}
	d.Service.CancelAll(execution.CauseEdgeDraining)
	r := receive(t, "its end", done)
	if codeOf(r) != execution.CodeEdgeDraining || r.Failure.NothingSent {
		t.Errorf("%+v %v", r, r.Failure)
	}
	if _, cause := cancelOf(t, n); cause != pb.CancelCause_CANCEL_CAUSE_EDGE_DRAINING {
		t.Errorf("cancel for %v", cause)
	}
}

// A sink that panics is that command's failure and nobody else's.
func TestCommandPanics(t *testing.T) {
	d := newDesk(t, nil, "a")
	n := d.ready("a", (*asked).answer)
	c := tags("a")
	c.Sink = panicking{}
	if r := d.ask(c); codeOf(r) != execution.CodeInternal {
		t.Errorf("%+v %v", r, r.Failure)
	}
	cancelOf(t, n)
	for range 8 {
		if r := d.ask(tags("a")); !r.OK() {
			t.Fatalf("afterwards: %v", r.Failure)
		}
	}
}

type panicking struct{ service.Sink }

func (panicking) Placed(service.Placement) {}
