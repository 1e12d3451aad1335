package e2e

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// TU-05: a node's multiplexer is there and takes no stream. Everyone who asked has an answer within the limit, beyond
// the multiplexer's backlog of 1024, too. When the node begins to serve, the next request works.
func TestNodeThatAcceptsNoStream(t *testing.T) {
	t.Parallel()
	const s, callers = scale(4), 1100
	e := newFakeSite(t, s, 2*callers, harness.Options{Routes: `[{model: "*", queue: {wait: 1s}}]`})
	mux, resp := rawNode(t, e, "box")
	ready(t, e, mux, resp)
	var timeouts, failed atomic.Int64
	all(callers, func(int) {
		start := time.Now()
		a, err := harness.Ask(e.HTTP(), harness.Post(chatPath, chatBody), limit)
		if err != nil {
			t.Error(err)
			return
		}
		between(t, "an answer", time.Since(start), 0, s.of(dispatchLimit)+2*late)
		switch {
		case a.StatusCode == 504 && code(a) == "dispatch_timeout":
			timeouts.Add(1)
		case a.StatusCode != 503: // who came when three had been waited for in vain
			t.Errorf("%d %s", a.StatusCode, a.Bytes)
		}
		failed.Add(1)
	})
	if n := failed.Load(); n != callers || timeouts.Load() < 3 {
		t.Fatalf("%d callers have an answer, %d of them dispatch_timeout", n, timeouts.Load())
	}
	t.Logf("%d streams", timeouts.Load())
	// The node begins to serve: it finds what it was sent, and its cancels. What was cancelled before it started is
	// refused; the edge gets its places back by that or by the end of the connection.
	go func() {
		served := map[uint32]bool{}
		for {
			select {
			case <-mux.Ended:
				return
			case <-time.After(10 * time.Millisecond):
			}
			serveRaw(mux, served)
		}
	}()
	say(t, mux, &pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: harness.FakeReady(resp)}})
	harness.Until(t, limit, "a request works", func() bool {
		a, err := harness.Ask(e.HTTP(), harness.Post(chatPath, chatBody), limit)
		return err == nil && a.StatusCode == 200 && string(a.Bytes) == "ok"
	})
	mux.Close()
	e.AwaitIdle(limit)
}

// serveRaw answers every stream that has an open and wasn't answered.
func serveRaw(mux *harness.Mux, served map[uint32]bool) {
	for _, id := range mux.Streams() {
		messages := mux.Messages(id)
		if id == harness.ControlStream || served[id] || len(messages) == 0 {
			continue
		}
		served[id] = true
		open := &pb.WorkOpen{}
		if proto.Unmarshal(messages[0], open) != nil {
			continue
		}
		var answer []byte
		frame := func(m proto.Message) {
			b, _ := proto.Marshal(m)
			answer = append(answer, harness.Prefixed(uint32(len(b)), b)...)
		}
		switch {
		case open.GetCommand() != nil:
			frame(&pb.NodeCommandResponse{Seq: 1, Response: &pb.NodeCommandResponse_Accepted{Accepted: &pb.Accepted{}}})
			frame(&pb.NodeCommandResponse{Seq: 2, Response: &pb.NodeCommandResponse_TransportStatus{TransportStatus: &pb.TransportStatus{}}})
		case mux.Over(id):
			frame(&pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Rejected{Rejected: &pb.Rejected{NeverStarted: true,
				Failure: &pb.Failure{Code: pb.FailureCode_FAILURE_CODE_CANCELLED, Origin: pb.Origin_ORIGIN_CALLER}}}})
		default:
			end := &pb.RunEnd{RunId: open.GetTunnel().GetRunId(), Attempt: open.GetAttempt(), Status: pb.RunStatus_RUN_STATUS_COMPLETE}
			control, _ := proto.Marshal(&pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{end}}}})
			_ = mux.Send(harness.ControlStream, harness.Prefixed(uint32(len(control)), control))
			frame(&pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{}}})
			frame(&pb.ProviderTunnelFrame{Seq: 2, Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: 200}}})
			frame(&pb.ProviderTunnelFrame{Seq: 3, Frame: &pb.ProviderTunnelFrame_Body{Body: []byte("ok")}})
			frame(&pb.ProviderTunnelFrame{Seq: 4, Frame: &pb.ProviderTunnelFrame_End{End: &pb.TunnelEnd{Bytes: 2}}})
		}
		// A window as large as the real one goes with the acceptance.
		_ = mux.Write(harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagACK, Stream: id, Length: 1<<20 - 256<<10},
			harness.MuxFrame{Kind: harness.MuxData, Flags: harness.FlagFIN, Stream: id, Body: answer})
	}
}

// TU-16: a node takes the stream and says nothing, while its session stays, or goes. Everyone has an answer, in time
// and with the right code, and nothing of five hundred pending opens is kept.
func TestPendingOpens(t *testing.T) {
	const callers = 500
	for _, drops := range []bool{false, true} {
		t.Run(fmt.Sprintf("session drops %v", drops), func(t *testing.T) { // not parallel: it looks at the heap
			s := scale(3)
			if drops {
				s = 1
			}
			e := newFakeSite(t, s, callers, harness.Options{Routes: fmt.Sprintf(`[{model: "*", queue: {depth: %d}}]`, callers)}) // whoever comes before a place is free
			var opens atomic.Int64
			fake := harness.DialFake(t, e.Addr.Nodes.String(), harness.FakeNodeOptions{
				Work: func(_ *harness.FakeNode, s *transport.Stream, _ *pb.WorkOpen) {
					opens.Add(1)
					harness.Discard(s)
				}})
			fake.Ready(t, nil)
			before := heap()
			if drops {
				go func() {
					for end := time.Now().Add(limit); opens.Load() < callers && time.Now().Before(end); {
						<-time.After(time.Millisecond)
					}
					fake.Close()
				}()
			}
			start := time.Now()
			all(callers, func(int) {
				a, err := harness.Ask(e.HTTP(), harness.Post(chatPath, chatBody), limit)
				switch {
				case err != nil:
					t.Error(err)
				case !drops && (a.StatusCode != 504 || code(a) != "dispatch_timeout"), drops && (a.StatusCode != 502 || code(a) != "node_lost"):
					t.Errorf("%d %s", a.StatusCode, a.Bytes)
				}
			})
			between(t, "all answers", time.Since(start), 0, s.of(dispatchLimit)+2*late)
			fake.Close()
			e.AwaitIdle(limit)
			if grown := int64(heap()) - int64(before); grown > callers*32<<10 {
				t.Errorf("the heap grew by %d KiB", grown>>10)
			}
		})
	}
}

// TU-17: the link dies under ten streams. Each caller's response is cut, and each run ends once.
func TestLinkDiesUnderStreams(t *testing.T) {
	t.Parallel()
	script, gone := endless(20 * time.Millisecond)
	l := newLinked(t, 1, script, setup{places: 10})
	callers := make([]*follower, 10)
	for i := range callers {
		callers[i] = follow(t, l.HTTP(), chatBody, delta("tick"))
	}
	start := time.Now()
	l.relay.Reset()
	for _, c := range callers {
		between(t, "the cut", c.cut(t, 2*time.Second+late).Sub(start), 0, 2*time.Second+late)
		wantLog(t, l.Log.Ended(t, c.runID()), map[string]any{"code": "node_lost", "origin": "edge"})
		await(t, gone, "the provider's connection is closed")
	}
}

// TU-18: nothing of what is sent to one node leaves the edge. Requests to it end within their limits; the other node,
// registration, the status and cancels don't notice.
func TestStuckLinkHoldsUpNobody(t *testing.T) {
	t.Parallel()
	const s scale = 4
	script, gone := endless(20 * time.Millisecond)
	_, nodeTimers := s.timers()
	healthy := fakeprovider.New(t, behindProbe(fakeprovider.Events(0, delta("well"), done)))
	slow := fakeprovider.New(t, behindProbe(script))
	l := newLinked(t, s, fakeprovider.Events(0, done), setup{places: 60, Options: harness.Options{
		MoreNodes: harness.Record("other", "["+adapter("fast", healthy.URL(), 8)+", "+adapter("slow", slow.URL(), 8)+"]") + ", " +
			harness.Record("third", "[{name: loopback, kind: loopback}]"),
		Routes: `[{model: a, nodes: [box], queue: {wait: 1s}}, {model: b, adapter: fast}, {model: c, adapter: slow}]`}})
	harness.StartNodeAs(t, harness.TokenOf("other"), l.Addr.Nodes.String(), nodeTimers)
	l.AwaitReady("other")
	c := follow(t, l.HTTP(), `{"model":"c","stream":true}`, delta("tick"))

	l.relay.Set(harness.Pause, harness.Pause)
	padding := strings.Repeat(" ", 200<<10) // what fits no socket buffer
	toA := make(chan struct{})
	go func() {
		defer close(toA)
		all(50, func(int) {
			start := time.Now()
			a, err := harness.Ask(l.HTTP(), harness.Post(chatPath, `{"model":"a"}`+padding), limit)
			if err != nil || a.StatusCode != 504 && a.StatusCode != 502 && a.StatusCode != 503 {
				t.Errorf("a request to the stuck node: %v %s", err, brief(a))
				return
			}
			between(t, "an answer of the stuck node", time.Since(start), 0, s.of(dead+dispatchLimit)+2*late)
		})
	}()
	harness.Until(t, limit, "the stuck node was sent work", func() bool { return l.InFlight() > 10 })
	fast := func(what string, do func()) { // else it waits until the link is dead, or until the dispatch limit is over
		start := time.Now()
		do()
		between(t, what, time.Since(start), 0, s.of(dead)-time.Second)
	}
	delayed := 0
	for range 50 {
		start := time.Now()
		if a := l.ask(harness.Post(chatPath, `{"model":"b"}`)); a.StatusCode != 200 {
			t.Errorf("the other node: %d %s", a.StatusCode, a.Bytes)
		}
		if time.Since(start) > s.of(dispatchLimit)/2 {
			delayed++
		}
	}
	if delayed > 5 {
		t.Errorf("%d of 50 requests to the other node took long", delayed)
	}
	fast("a registration", func() { harness.DialFake(t, l.Addr.Nodes.String(), harness.FakeNodeOptions{ID: "third"}).Ready(t, nil) })
	fast("the status", func() { l.Node("box") })
	fast("a cancel", func() { c.Reset(); await(t, gone, "the provider's connection is closed") })
	<-toA
	l.relay.Set(harness.Pass, harness.Pass)
}

// CP-18: another node speaks of a run that isn't its own, and opens a stream. None of it touches the run; the other
// node's connection ends for the stream.
func TestForeignFramesChangeNothing(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	l := newLinked(t, 1, f.script, setup{Options: harness.Options{
		MoreNodes: harness.Record("other", "[{name: gpu, kind: loopback}]"), Routes: `[{model: "*", nodes: [box]}]`}})
	c := l.dial()
	c.Send(chat())
	f.begin(t, "text/event-stream")
	response := c.Head(limit, "POST")
	run := response.Header.Get("X-IOP-Run-Id")
	mux, resp := rawNode(t, l.Edge, "other")
	ready(t, l.Edge, mux, resp)
	state := harness.FakeReady(resp)
	state.Running = []*pb.RunningExecution{{RunId: run, Attempt: 1, Adapter: "gpu"}}
	say(t, mux, &pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{
		{RunId: run, Attempt: 1, Status: pb.RunStatus_RUN_STATUS_COMPLETE}, {RunId: run, Attempt: 2, Status: pb.RunStatus_RUN_STATUS_ERROR}}}}})
	say(t, mux, &pb.NodeControl{Message: &pb.NodeControl_CancelResult{CancelResult: &pb.CancelResult{RunId: run}}})
	say(t, mux, &pb.NodeControl{Message: &pb.NodeControl_Ready{Ready: state}})
	say(t, mux, &pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{
		{RunId: run, Attempt: 1, Status: pb.RunStatus_RUN_STATUS_COMPLETE}}}}})
	if err := mux.Open(3); err != nil {
		t.Fatal(err)
	}
	mux.AwaitEnd(time.Second + late)
	awaitFenced(t, l.Edge, "other", "protocol", 1, late)

	if n := l.InFlight(); n != 1 {
		t.Errorf("%d places are held, want the run's", n)
	}
	f.chunk(t, delta("still here"))
	c.Expect(response.Body, delta("still here"), limit)
	f.finish(t)
	c.Expect(response.Body, "", limit)
	wantLog(t, l.Log.Ended(t, run), map[string]any{"code": "ok"})
}

// CP-18, TU-20: what is still said on the connection of generation g once g+1 is live is lost with it.
func TestOldGenerationIsNotHeard(t *testing.T) {
	t.Parallel()
	e := newFakeSite(t, 1, 4, harness.Options{})
	old, resp := rawNode(t, e, "box")
	ready(t, e, old, resp)
	hello := harness.Hello("box", "box") // the same process comes back
	hello.LastGeneration = resp.GetConnectionGeneration()
	release := make(chan struct{})
	accepted := make(chan *pb.WorkOpen, 1)
	n := harness.DialFake(t, e.Addr.Nodes.String(), harness.FakeNodeOptions{Hello: hello,
		Work: func(n *harness.FakeNode, s *transport.Stream, open *pb.WorkOpen) {
			accepted <- open
			<-release
			_ = n.Answer(s, open, "the new one")
			harness.Discard(s)
		}})
	n.Ready(t, nil)
	answer := make(chan *harness.Answer, 1)
	go func() {
		a, _ := harness.Ask(e.HTTP(), harness.Post(chatPath, chatBody), limit)
		answer <- a
	}()
	open := await(t, accepted, "an open at the new connection")
	end := &pb.NodeControl{Message: &pb.NodeControl_RunEnded{RunEnded: &pb.RunEnded{Ends: []*pb.RunEnd{{
		RunId: open.GetTunnel().GetRunId(), Attempt: 1, Status: pb.RunStatus_RUN_STATUS_COMPLETE}}}}}
	_ = old.Send(harness.ControlStream, harness.Framed(t, end)) // it may be closed already
	old.AwaitEnd(time.Second + late)
	if held := e.InFlight(); held != 1 {
		t.Errorf("%d places are held", held)
	}
	close(release)
	if a := await(t, answer, "the answer"); a == nil || string(a.Bytes) != "the new one" {
		t.Error(brief(a))
	}
	e.AwaitIdle(limit)
}
