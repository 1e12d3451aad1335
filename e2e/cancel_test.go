package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// CA-05: callers leave 0 to 20 ms after they asked, five hundred times, some of them while they wait for a place. Each
// run ends once, as cancelled or complete; what had reached the provider is stopped, and nothing reaches it after the
// run's end.
func TestCallersThatLeaveAtOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	at := map[string]time.Time{} // when a request reached the provider, by its mark
	l := newLinked(t, 1, func(x *fakeprovider.Exchange) {
		mu.Lock()
		at[x.Header.Get("X-Mark")] = time.Now()
		mu.Unlock()
		x.Body()
		x.BeginStream(200, "text/event-stream", "Connection: close")
		for range 4 {
			if !x.Pause(5 * time.Millisecond) {
				x.Close()
				return
			}
			x.Chunk(delta("x"))
		}
		x.EndChunks()
		x.Close()
	}, setup{places: 3})
	const rounds, callers = 100, 5 // two of five wait
	left := map[string]time.Time{}
	all(callers, func(caller int) {
		random := rand.New(rand.NewPCG(5, uint64(caller)))
		for round := range rounds {
			mark := fmt.Sprintf("%d-%d", caller, round)
			c := harness.Dial(t, l.HTTP())
			c.Send(chat("X-Mark: " + mark))
			<-time.After(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
			c.Reset()
			mu.Lock()
			left[mark] = time.Now()
			mu.Unlock()
		}
	})
	l.idle()
	harness.Until(t, limit, "the provider has no connection", func() bool { _, open := l.provider.Connections(); return open == 0 })
	l.AwaitEnded(limit)
	ended := map[string]int{}
	for _, line := range l.Log.Entries("run ended") {
		ended[fmt.Sprint(line["run_id"])]++
		if code := line["code"]; code != "client_gone" && code != "ok" {
			t.Errorf("a run ended as %v", code)
		}
	}
	for run, n := range ended {
		if n != 1 {
			t.Errorf("run %s ended %d times", run, n)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for mark, reached := range at {
		if after := reached.Sub(left[mark]); after > limit/3 {
			t.Errorf("request %s reached the provider %v after its caller had left", mark, after)
		}
	}
	t.Logf("%d runs, %d reached the provider", len(ended), len(at))
}

// CA-05 at the node: an execution and its cancel are sent back to back, 0 to 20 ms apart and in both orders, five
// hundred times. Whatever comes first, each open gets exactly one answer, a rejection or an end.
func TestCancelRacesItsOpen(t *testing.T) {
	t.Parallel()
	edge := harness.NewFakeEdge(t)
	harness.StartNode(t, edge.Addr(), "")
	side := edge.Serve(edge.Register(limit, harness.Accepted(7, 16)), 7)
	side.AwaitReady(limit)
	outcomes := map[string]int{}
	var mu sync.Mutex
	all(5, func(caller int) {
		random := rand.New(rand.NewPCG(6, uint64(caller)))
		for round := range 100 {
			run := fmt.Sprintf("run-%d-%d", caller, round)
			outcome := raceCancel(t, side, run, random)
			mu.Lock()
			outcomes[outcome]++
			mu.Unlock()
		}
	})
	t.Logf("%v", outcomes)
	if outcomes["rejected cancelled"] == 0 || outcomes["error cancelled"] == 0 {
		t.Errorf("the race had one side only: %v", outcomes)
	}
}

// raceCancel sends an open and its cancel, and returns how the execution ended.
func raceCancel(t *testing.T, side *harness.EdgeSide, run string, random *rand.Rand) string {
	s, err := side.Link.Open(t.Context())
	if err != nil {
		t.Error(err)
		return "lost"
	}
	defer s.Close()
	if random.IntN(4) == 0 { // the cancel overtakes its open
		side.Link.SendCancel(run, execution.CauseAPI)
		<-time.After(time.Duration(random.Int64N(int64(2 * time.Millisecond))))
	} else {
		defer time.AfterFunc(time.Duration(random.Int64N(int64(20*time.Millisecond))), func() { side.Link.SendCancel(run, execution.CauseAPI) }).Stop()
	}
	body := `{"model":"loopback","stream":true,"messages":[{"role":"user","content":"a few words to say slowly"}]}`
	for _, err := range []error{s.Append(harness.TunnelOpen(side.Generation, run)), s.AppendBody(1, []byte(body)),
		s.Append(&pb.WorkInput{Seq: 2, Input: &pb.WorkInput_End{End: &pb.InputEnd{TotalBytes: int64(len(body))}}}), s.Flush()} {
		if err != nil {
			t.Error(err)
			return "lost"
		}
	}
	defer time.AfterFunc(limit, s.Cancel).Stop()
	for {
		f, err := s.ReadTunnel()
		switch {
		case err != nil:
			t.Errorf("%s: the stream ended with %v before a terminal", run, err)
			return "lost"
		case f.Msg.GetRejected() != nil:
			if ends := side.Ends(run); len(ends) != 0 || !f.Msg.GetRejected().GetNeverStarted() {
				t.Errorf("%s was rejected as %v and ended as %v", run, f.Msg, ends)
			}
			return "rejected " + codeName(f.Msg.GetRejected().GetFailure())
		case f.Msg.GetEnd() != nil, f.Msg.GetError() != nil:
			harness.Until(t, limit, "RunEnded of "+run, func() bool { return len(side.Ends(run)) > 0 })
			ends := side.Ends(run)
			cancelled := ends[0].GetStatus() == pb.RunStatus_RUN_STATUS_CANCELLED
			if len(ends) != 1 || cancelled != (f.Msg.GetError() != nil) {
				t.Errorf("%s ended with %v and %v", run, f.Msg, ends)
			}
			if f.Msg.GetEnd() != nil {
				return "end"
			}
			return "error " + codeName(f.Msg.GetError())
		}
	}
}

func codeName(f *pb.Failure) string { return execution.Code(f.GetCode()).String() }

// CA-07: of ten parallel runs one is cancelled by its caller exactly at its last token, again and again. It has one
// terminal, whichever; the nine others are whole.
func TestCancelRacesCompletion(t *testing.T) {
	t.Parallel()
	const rounds, runs = 60, 10
	whole := delta("one") + delta("two") + delta("last")
	l := newLinked(t, 1, func(x *fakeprovider.Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream")
		x.Chunk(delta("one"))
		x.Chunk(delta("two"))
		x.Pause(time.Millisecond)
		x.Chunk(delta("last"))
		if wait, _ := time.ParseDuration(x.Header.Get("X-Wait")); wait > 0 {
			x.Pause(wait)
		}
		x.EndChunks()
	}, setup{places: runs})
	for round := range rounds {
		wait := []time.Duration{0, time.Duration(round) * 20 * time.Microsecond, time.Minute}[round%3]
		all(runs, func(i int) {
			c := harness.Dial(t, l.HTTP())
			defer c.Close()
			if i == 3 {
				c.Send(chat("X-Wait: " + wait.String()))
			} else {
				c.Send(chat())
			}
			response := c.Head(limit, "POST")
			got := make([]byte, len(whole))
			if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != whole {
				t.Errorf("run %d: %v, %q", i, err, got)
				return
			}
			if i == 3 {
				c.Reset()
				return
			}
			if rest, err := io.ReadAll(response.Body); err != nil || len(rest) != 0 {
				t.Errorf("run %d ended with %v and %q", i, err, rest)
			}
		})
	}
	l.idle()
	harness.Until(t, limit, "every run has ended", func() bool { return len(l.Log.Entries("run ended")) >= rounds*runs })
	outcomes := map[string]int{}
	for _, line := range l.Log.Entries("run ended") {
		outcomes[fmt.Sprint(line["code"])]++
	}
	t.Logf("%v", outcomes)
	if gone := outcomes["client_gone"]; outcomes["ok"]+gone != rounds*runs || gone > rounds || gone < rounds/3 {
		t.Errorf("the runs ended as %v", outcomes)
	}
}

// CA-07, faults row 27: cancels of runs that were never there, and of one that has ended, change nothing and are
// answered.
func TestCancelOfNothing(t *testing.T) {
	t.Parallel()
	edge := harness.NewFakeEdge(t)
	harness.StartNode(t, edge.Addr(), "")
	side := edge.Serve(edge.Register(limit, harness.Accepted(7, 4)), 7)
	side.AwaitReady(limit)
	side.Link.SendCancel("never-there", execution.CauseAPI)
	random := rand.New(rand.NewPCG(7, 7))
	for i := range 3 {
		run := fmt.Sprint("cancelled-", i)
		raceCancel(t, side, run, random)
		side.Link.SendCancel(run, execution.CauseAPI)
	}
	results := func() (found []string) {
		for _, m := range side.Heard() {
			if r := m.GetCancelResult(); r != nil {
				found = append(found, r.GetRunId()+" "+r.GetResult().String())
			}
		}
		return found
	}
	harness.Until(t, limit, "every cancel is answered", func() bool { return len(results()) >= 4 })
	if all := strings.Join(results(), ", "); !strings.Contains(all, "never-there CANCEL_OUTCOME_NOT_FOUND") {
		t.Errorf("the answers: %s", all)
	}
}

// protocol.md §8 "cancel overtakes the request": what the edge sends on the work stream is held up, its control isn't.
// The caller leaves, the cancel passes, and then the open arrives: the provider is never called, and the place is free.
func TestCancelOvertakesTheRequest(t *testing.T) {
	t.Parallel()
	provider := fakeprovider.New(t, behindProbe(fakeprovider.Events(0, done)))
	e := harness.StartEdge(t, harness.Options{Adapters: "[" + adapter("gpu", provider.URL(), 1) + "]"})
	valve := harness.NewValve(t, e.Addr.Nodes.String())
	node := harness.StartNode(t, valve.Addr(), "{probe_interval: 1h}")
	e.AwaitReady("box")
	for round := range 20 {
		valve.Hold(func(f harness.MuxFrame) bool { return f.Stream != 0 && f.Stream%2 == 0 })
		c := harness.Dial(t, e.HTTP())
		c.Send(chat())
		harness.Until(t, limit, "the request is on its way", func() bool { return valve.Held() > 0 })
		c.Reset()
		harness.Until(t, limit, "the cancel has arrived", func() bool {
			return logged(node.Log, func(line map[string]any) bool { return line["result"] == "CANCEL_OUTCOME_NOT_FOUND" }) == round+1
		})
		valve.Open()
		e.AwaitIdle(time.Second + late)
		node.AwaitIdle(limit)
	}
	if n := len(requests(provider)); n != 0 {
		t.Errorf("the provider was called %d times", n)
	}
	if a := ask(t, e, chatBody); a.StatusCode != 200 {
		t.Errorf("the next request: %d %s", a.StatusCode, a.Bytes)
	}
}

// protocol.md §8 "never left the edge": the link stands still, so the request is taken by the edge's side of it and
// never arrives; then the link is cut. The caller is told node_lost, no provider is called, and no other node is asked.
func TestNeverLeftTheEdge(t *testing.T) {
	t.Parallel()
	other := fakeprovider.New(t, behindProbe(fakeprovider.Events(0, done)))
	l := newLinked(t, 1, fakeprovider.Events(0, done), setup{Options: harness.Options{
		MoreNodes: harness.Record("other", "["+adapter("gpu", other.URL(), 4)+"]"), Routes: `[{model: "*"}]`}})
	l.relay.Set(harness.Pause, harness.Pause)
	sent := l.Metric("iop_link_sent_bytes_total")
	answer := make(chan *harness.Answer, 1)
	go func() {
		a, _ := harness.Ask(l.HTTP(), chat(), limit)
		answer <- a
	}()
	harness.Until(t, limit, "the request has a place", func() bool { return l.InFlight() == 1 })
	harness.Until(t, limit, "the link has taken it", func() bool { // what isn't on the link goes to another node
		return l.Metric("iop_link_sent_bytes_total")+l.Metric("iop_link_pending_bytes") > sent+float64(len(chatBody))
	})
	harness.StartNodeAs(t, harness.TokenOf("other"), l.Addr.Nodes.String(), "")
	l.AwaitReady("other")
	l.relay.Reset()
	if a := await(t, answer, "the answer"); a == nil || a.StatusCode != 502 || code(a) != "node_lost" || a.Header.Get("X-Should-Retry") != "false" {
		t.Error(brief(a))
	}
	if n := len(l.seen()) + len(requests(other)); n != 0 {
		t.Errorf("the providers saw %d requests", n)
	}
	l.relay.Set(harness.Pass, harness.Pass)
}

// protocol.md §8 "busy spins", faults row 30: a node says adapter_busy to everything. A request is opened three times
// at most, all of them together about once a second, and each caller is told.
func TestAlwaysBusy(t *testing.T) {
	t.Parallel()
	e := newFakeSite(t, 1, 4, harness.Options{})
	var mu sync.Mutex
	opens := map[string]int{}
	start := time.Now()
	harness.DialFake(t, e.Addr.Nodes.String(), harness.FakeNodeOptions{
		Work: func(n *harness.FakeNode, s *transport.Stream, open *pb.WorkOpen) {
			mu.Lock()
			opens[open.GetTunnel().GetRunId()]++
			mu.Unlock()
			_ = n.Reject(s, pb.FailureCode_FAILURE_CODE_ADAPTER_BUSY)
			harness.Discard(s)
		}}).Ready(t, nil)
	all(2, func(int) {
		a, err := harness.Ask(e.HTTP(), chat(), limit)
		if err != nil || a.StatusCode != 503 || code(a) != "adapter_busy" || a.Header.Get("Retry-After") == "" {
			t.Errorf("%v %s", err, brief(a))
		}
	})
	seconds := int(time.Since(start)/time.Second) + 2
	total := 0
	for run, n := range opens {
		if total += n; n != 3 {
			t.Errorf("run %s was opened %d times", run, n)
		}
	}
	if total > seconds {
		t.Errorf("%d opens in less than %d seconds", total, seconds)
	}
	e.AwaitIdle(limit)
}
