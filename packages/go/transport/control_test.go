package transport

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"google.golang.org/protobuf/proto"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// capture is a control stream that keeps what is written.
type capture struct {
	bytes.Buffer
	writes []int
}

func (c *capture) Write(p []byte) (int, error) {
	c.writes = append(c.writes, len(p))
	return c.Buffer.Write(p)
}

func (c *capture) SetWriteDeadline(time.Time) error { return nil }

type capturingWriter struct {
	controlWriter
	out *capture
}

// captureWriter returns a control writer of a link that doesn't run.
func captureWriter(t *testing.T, edge bool) *capturingWriter {
	a, _ := memPair(0)
	w := &capturingWriter{out: new(capture)}
	w.stream = w.out
	if edge {
		w.link = NewEdgeLink(a, testConfig(), edgeSide{newHandler(nil)})
	} else {
		w.link = NewNodeLink(a, testConfig(), nodeSide{newHandler(nil)})
	}
	return w
}

// drain writes everything that the mailbox holds.
func (w *capturingWriter) drain(t *testing.T) {
	t.Helper()
	for {
		l, some := w.link.box.take()
		switch {
		case !some:
			return
		case l.goodbye != nil:
			w.farewell(l.goodbye)
		default:
			w.write(&l)
		}
		if w.err != nil {
			t.Fatal(w.err)
		}
	}
}

func decodeAll[M proto.Message](t *testing.T, w *capturingWriter, fresh func() M) (all []M) {
	t.Helper()
	for {
		m := fresh()
		err := ReadMessage(&w.out.Buffer, MaxControl, m)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

func (w *capturingWriter) sentToNode(t *testing.T) []*pb.EdgeControl {
	return decodeAll(t, w, func() *pb.EdgeControl { return new(pb.EdgeControl) })
}

func (w *capturingWriter) sentToEdge(t *testing.T) []*pb.NodeControl {
	return decodeAll(t, w, func() *pb.NodeControl { return new(pb.NodeControl) })
}

func kinds[M proto.Message](all []M) []string {
	var names []string
	for _, m := range all {
		r := m.ProtoReflect()
		names = append(names, string(r.WhichOneof(r.Descriptor().Oneofs().Get(0)).Name()))
	}
	return names
}

// TestDrainOrderEdge puts everything in the wrong order.
func TestDrainOrderEdge(t *testing.T) {
	w := captureWriter(t, true)
	l := w.link
	l.SendDrainNotice(&pb.DrainNotice{GraceMs: 1})
	l.SendRefresh(&pb.NodeConfigPayload{Projection: 1})
	l.SendRunEndedAck("a", "b")
	l.SendReadyAck(1, true)
	l.SendCancel("r1", execution.CauseAPI)
	l.SendCancel("r2", execution.CauseDeadline)
	l.SendCancel("r1", execution.CauseClientGone)
	l.SendRefresh(&pb.NodeConfigPayload{Projection: 2})
	l.handleHeartbeat(&pb.Heartbeat{Nonce: 5})
	l.SendGoodbye(&pb.Goodbye{Code: pb.GoodbyeCode_GOODBYE_CODE_EDGE_DRAINING})
	l.SendCancel("late", execution.CauseAPI)
	w.drain(t)
	got := w.sentToNode(t)
	want := []string{"heartbeat", "cancel", "cancel", "ready_ack", "run_ended_ack", "config_refresh", "drain_notice", "goodbye"}
	if !slices.Equal(kinds(got), want) {
		t.Fatalf("sent %v\nwant %v", kinds(got), want)
	}
	if c := got[1].GetCancel(); c.RunId != "r1" || c.Cause != pb.CancelCause_CANCEL_CAUSE_API || c.Type != pb.CancelType_CANCEL_TYPE_CANCEL_RUN {
		t.Errorf("cancel %v", c)
	}
	if p := got[5].GetConfigRefresh().GetConfig().GetProjection(); p != 2 {
		t.Errorf("projection %d, the latest is 2", p)
	}
}

func TestDrainOrderNode(t *testing.T) {
	w := captureWriter(t, false)
	l := w.link
	l.SendEvent(&pb.EdgeNodeEvent{Code: "c"})
	l.SendStatus(func() *pb.NodeStatus { return &pb.NodeStatus{Number: 3} })
	l.SendRunEnded(&pb.RunEnd{RunId: "r", Attempt: 1})
	l.SendCancelResult(&pb.CancelResult{RunId: "r"})
	l.handleHeartbeat(&pb.Heartbeat{Nonce: 5})
	w.drain(t)
	if got, want := kinds(w.sentToEdge(t)), []string{"heartbeat", "cancel_result", "node_status", "event"}; !slices.Equal(got, want) {
		t.Fatalf("before Ready: sent %v, want %v", got, want)
	}
	number := uint64(1)
	l.SendReady(func() *pb.Ready { return &pb.Ready{Projection: 99} })
	l.SendReady(func() *pb.Ready { return &pb.Ready{Projection: number} })
	l.SendRunEnded(&pb.RunEnd{RunId: "s", Attempt: 1})
	number = 2
	w.drain(t)
	got := w.sentToEdge(t)
	if want := []string{"ready", "run_ended"}; !slices.Equal(kinds(got), want) {
		t.Fatalf("sent %v, want %v", kinds(got), want)
	}
	if got[0].GetReady().Projection != 2 {
		t.Error("the Ready wasn't built when it was written, or not the latest")
	}
	if ends := got[1].GetRunEnded().Ends; len(ends) != 2 || ends[0].RunId != "r" {
		t.Errorf("ends %v", ends)
	}
}

// TestRunEndedBatches: a message of ends stays under its cap of 64 KiB.
func TestRunEndedBatches(t *testing.T) {
	w := captureWriter(t, false)
	w.link.SendReady(func() *pb.Ready { return &pb.Ready{Projection: 1} })
	const n = 3000
	for i := range n {
		w.link.SendRunEnded(&pb.RunEnd{RunId: fmt.Sprintf("%064d", i), Attempt: 1, BytesIn: 1 << 40, EndedMs: 1 << 40})
	}
	w.drain(t)
	next := 0
	for _, m := range w.sentToEdge(t)[1:] {
		if size := proto.Size(m); size > maxRunEnded+envelope {
			t.Errorf("a message of %d bytes", size)
		}
		for _, e := range m.GetRunEnded().Ends {
			if e.RunId != fmt.Sprintf("%064d", next) {
				t.Fatalf("end %d is %s", next, e.RunId)
			}
			next++
		}
	}
	if next != n {
		t.Errorf("%d ends of %d", next, n)
	}
	if slices.Max(w.out.writes) > piece {
		t.Errorf("a piece of %d bytes", slices.Max(w.out.writes))
	}
}

// TestEventsAreLimited: one a second with a burst of 20, cut to their cap, and always UTF-8.
func TestEventsAreLimited(t *testing.T) {
	w := captureWriter(t, false)
	for range 100 {
		w.link.SendEvent(&pb.EdgeNodeEvent{Text: strings.Repeat("\xff\xe2\x82\xac", 200)})
	}
	w.drain(t)
	if n := len(w.sentToEdge(t)); n != maxEvents {
		t.Errorf("%d events", n)
	}
	for _, s := range []string{"", "abc", "ab\xe2\x82\xac", "\xe2\x82\xac\xe2\x82\xac"} {
		if got := cut(s, 4); len(got) > 4 || !strings.HasPrefix(s, got) {
			t.Errorf("cut %q to %q", s, got)
		}
	}
}

// TestAnswersAreLimited: a peer that asks and doesn't read makes nothing pile up.
func TestAnswersAreLimited(t *testing.T) {
	l := newLink(nil, testConfig())
	for range 3 * maxAnswers {
		l.SendRunEndedAck("a", "b")
		l.SendCancelResult(&pb.CancelResult{RunId: "r"})
	}
	got, _ := l.box.take()
	if n, m := len(got.edge.endAcks), len(got.node.results); n != maxAnswers || m != maxAnswers {
		t.Errorf("%d confirmations and %d answers wait", n, m)
	}
}

// TestUnencodableControlEndsTheLink rather than being dropped in silence.
func TestUnencodableControlEndsTheLink(t *testing.T) {
	p := startTCP(t, nil)
	p.node.SendReady(func() *pb.Ready { return &pb.Ready{RefuseText: strings.Repeat("x", MaxControl)} })
	if e, _ := reasonOf(t, p.node); e.Reason != ReasonProtocol {
		t.Errorf("got %v", e)
	}
}

// TestControlArrives sends each message over a running link, both ways.
func TestControlArrives(t *testing.T) {
	p := startTCP(t, nil)
	p.node.SendReady(func() *pb.Ready { return &pb.Ready{Projection: 7} })
	if m := within(t, "Ready", p.h.fromNode); m.GetReady().GetProjection() != 7 {
		t.Errorf("got %v", m)
	}
	p.edge.SendReadyAck(7, true)
	if m := within(t, "ReadyAck", p.h.fromEdge); !m.GetReadyAck().GetDispatchable() {
		t.Errorf("got %v", m)
	}
	p.edge.SendCancel("run", execution.CauseClientGone)
	if m := within(t, "cancel", p.h.fromEdge); m.GetCancel().GetCause() != pb.CancelCause_CANCEL_CAUSE_CLIENT_GONE {
		t.Errorf("got %v", m)
	}
	big := &pb.NodeConfigPayload{Projection: 8}
	for i := range 9000 {
		big.Routes = append(big.Routes, &pb.RouteRef{Name: fmt.Sprintf("%0100d", i)})
	}
	p.edge.SendRefresh(big)
	if m := within(t, "refresh", p.h.fromEdge); !proto.Equal(m.GetConfigRefresh().GetConfig(), big) {
		t.Error("the projection differs")
	}
}

// TestBigControlGoesInPieces: a snapshot of 900 KiB never fills the control lane, so that a heartbeat behind it waits
// for a piece at most in there.
func TestBigControlGoesInPieces(t *testing.T) {
	a, b := memPair(0)
	p := startPair(t, a, b, testConfig(), nil)
	eventually(t, "the first heartbeats are over", func() bool {
		return p.edge.Status().RTT > 0 && p.node.Status().RTT > 0 && p.edge.conn.waiting() == 0
	})
	a.out.set(func(p *memPipe) { p.stop = true })
	p.edge.SendRefresh(&pb.NodeConfigPayload{Adapters: []*pb.AdapterConfig{{Name: strings.Repeat("x", 900<<10)}}})
	eventually(t, "a piece waits", func() bool { return p.edge.conn.waiting() >= piece })
	if n := p.edge.conn.waiting(); n > piece+1000 {
		t.Errorf("%d bytes wait", n)
	}
	a.out.set(func(p *memPipe) { p.stop = false })
	within(t, "the refresh", p.h.fromEdge)
}

// TestStuckControlReaderEndsTheLink: a peer that is alive but doesn't read its control stream fills the window; then
// the mailbox merges, nobody blocks, and 45 s later the link is over.
func TestStuckControlReaderEndsTheLink(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		edge, node := memPair(0)
		session, err := yamux.Client(edge, plainConfig()) // plays the node's part
		if err != nil {
			t.Fatal(err)
		}
		l := NewEdgeLink(node, testConfig(), edgeSide{newHandler(nil)})
		done := make(chan error, 1)
		go func() { done <- l.Run(t.Context()) }()
		control, err := session.OpenStream()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for { // its own heartbeats come
				if WriteMessage(control, &pb.NodeControl{Message: &pb.NodeControl_Heartbeat{Heartbeat: &pb.Heartbeat{Echo: 1}}}) != nil {
					return
				}
				time.Sleep(30 * time.Second)
			}
		}()
		for i := range 60 {
			l.SendRefresh(&pb.NodeConfigPayload{Projection: uint64(i), Adapters: []*pb.AdapterConfig{{Name: strings.Repeat("x", 100<<10)}}})
			time.Sleep(time.Second)
		}
		e, after := reasonOf(t, l)
		if e.Reason != ReasonDead || after < 45*time.Second || after > 60*time.Second {
			t.Errorf("%v after %v", e, after)
		}
		session.Close()
		<-done
	})
}

// rawNode is a node of raw bytes: a multiplexer without a link.
func rawNode(t *testing.T) (l *Link, done chan error, session *yamux.Session, control *yamux.Stream) {
	t.Helper()
	edge, node := tcpPair(t)
	session, err := yamux.Client(node, plainConfig())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	l = NewEdgeLink(edge, testConfig(), edgeSide{newHandler(nil)})
	done = make(chan error, 1)
	go func() { done <- l.Run(t.Context()) }()
	if control, err = session.OpenStream(); err != nil {
		t.Fatal(err)
	}
	return l, done, session, control
}

// TestControlFaults: what a peer may not do on the control stream ends the link as protocol (TU-28, E31).
func TestControlFaults(t *testing.T) {
	frame := func(m *pb.NodeControl) []byte { return mustFrame(t, m) }
	for name, raw := range map[string][]byte{
		"length 0xFFFFFFFF": {0xff, 0xff, 0xff, 0xff},
		"length 0x7FFFFFFF": {0x7f, 0xff, 0xff, 0xff},
		"length cap+1":      {0, 0x10, 0, 1},
		"length 0":          {0, 0, 0, 0},
		"malformed":         {0, 0, 0, 2, 0x0a, 9},
		"heartbeat over its cap": frame(&pb.NodeControl{Message: &pb.NodeControl_CancelResult{
			CancelResult: &pb.CancelResult{Text: strings.Repeat("x", 300)}}}),
		"event over its cap": frame(&pb.NodeControl{Message: &pb.NodeControl_Event{
			Event: &pb.EdgeNodeEvent{Text: strings.Repeat("x", 2000)}}}),
	} {
		t.Run(name, func(t *testing.T) {
			l, done, _, control := rawNode(t)
			control.Write(raw) // may fail: the link's end can be faster
			within(t, "the link's end", done)
			if e, _ := reasonOf(t, l); e.Reason != ReasonProtocol {
				t.Errorf("got %v", e)
			}
		})
	}
	t.Run("control stream closed", func(t *testing.T) {
		l, done, _, control := rawNode(t)
		control.Close()
		within(t, "the link's end", done)
		if e, _ := reasonOf(t, l); e.Reason != ReasonProtocol {
			t.Errorf("got %v", e)
		}
	})
}

// TestUnknownControlIsIgnored: a newer peer's message is counted and changes nothing.
func TestUnknownControlIsIgnored(t *testing.T) {
	l, _, _, control := rawNode(t)
	mustWrite(t, control, []byte{0, 0, 0, 3, 0xfa, 0x01, 0}) // field 31
	mustWrite(t, control, mustFrame(t, &pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: &pb.Ready{}}}))
	within(t, "the message behind it", l.edge.(edgeSide).h.fromNode)
	if n := l.Status().UnknownControl; n != 1 || l.isDown() {
		t.Errorf("%d counted, down %v", n, l.isDown())
	}
}
