package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/router"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// Every way in which an adapter can return becomes one terminal and one RunEnded with the same code.
// Faults rows 17-24, CP-14.
func TestAdapterOutcomes(t *testing.T) {
	head := func(sink execution.TunnelSink) error { return sink.Head(200, nil) }
	timeout := execution.Failf(execution.CodeIdleTimeout, execution.OriginProvider, "silent for 5m")
	refused := &execution.Failure{Code: execution.CodeUpstreamConnect, Origin: execution.OriginNode, Text: "connection refused", NothingSent: true}
	for _, c := range []struct {
		name  string
		run   func(sink execution.TunnelSink) error
		kinds string
		code  execution.Code
	}{
		{"whole", func(s execution.TunnelSink) error { return nodetest.Answer(s, "ok") }, "ahbe", execution.CodeOK},
		{"empty", head, "ahe", execution.CodeOK},
		{"failure before the head", func(execution.TunnelSink) error { return refused }, "ax", execution.CodeUpstreamConnect},
		{"failure after the head", func(s execution.TunnelSink) error { _ = head(s); return timeout }, "ahx", execution.CodeIdleTimeout},
		{"wrapped failure", func(execution.TunnelSink) error { return fmt.Errorf("dial: %w", refused) }, "ax", execution.CodeUpstreamConnect},
		{"foreign error", func(s execution.TunnelSink) error { _ = head(s); return errors.New("secret S3CR3T") }, "ahx", execution.CodeInternal},
		{"no answer at all (row 24)", func(execution.TunnelSink) error { return nil }, "ax", execution.CodeInternal},
		{"panic before the head (row 23)", func(execution.TunnelSink) error { panic("secret S3CR3T") }, "ax", execution.CodeAdapterPanic},
		{"panic after the head", func(s execution.TunnelSink) error { _ = nodetest.Answer(s, "x"); panic(errors.New("S3CR3T")) }, "ahbx", execution.CodeAdapterPanic},
		{"101 (E38)", func(s execution.TunnelSink) error { return s.Head(101, nil) }, "ax", execution.CodeUpstreamError},
		{"status 099 (E39)", func(s execution.TunnelSink) error { _ = s.Head(99, nil); return nil }, "ax", execution.CodeUpstreamError},
		{"head of 200 KiB (E39)", func(s execution.TunnelSink) error {
			return s.Head(200, http.Header{"X": {strings.Repeat("x", 200<<10)}})
		}, "ax", execution.CodeUpstreamError},
		{"two heads", func(s execution.TunnelSink) error { _ = head(s); _ = head(s); return nil }, "ahx", execution.CodeProtocol},
		{"body before the head", func(s execution.TunnelSink) error { _ = s.Body([]byte("x")); return nil }, "ax", execution.CodeProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := new(logged)
			r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
				return c.run(sink)
			}}, capacity(1), func(s *setup) { s.log = zerolog.New(log) })
			got := r.Start("r1").Collect()
			e := r.RunEnd("r1")
			if got.Kinds != c.kinds || execution.Code(got.Error.GetCode()) != c.code || execution.Code(e.GetCode()) != c.code {
				t.Errorf("got %q %v, RunEnd %v", got.Kinds, got.Error, e)
			}
			if got.Error.GetNothingSent() != (c.code == execution.CodeUpstreamConnect) {
				t.Errorf("nothing_sent = %v", got.Error.GetNothingSent())
			}
			// CP-01, CP-02: the only place is free again, and the node is up.
			r.adapter.OnTunnel = nil
			if got := r.Start("r2").Collect(); got.Kinds != "ahbe" {
				t.Errorf("the next run got %q %v", got.Kinds, got.Rejected)
			}
			r.RunEnd("r2")
			r.atRest()
			if strings.Contains(log.String(), "S3CR3T") || strings.Contains(got.Error.GetText(), "S3CR3T") {
				t.Error("what a panic or a foreign error said got out")
			}
		})
	}
}

// CP-01: forty requests that hang, are reset or fail, on four places; then twenty good ones.
func TestPlacesComeBackAfterFailures(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		switch req.Query {
		case "hang":
			return nodetest.Hang(ctx, req, sink)
		case "reset":
			return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "reset")
		case "502":
			return sink.Head(502, nil)
		}
		return nodetest.Answer(sink, "ok")
	}})
	for i := range 40 {
		id := fmt.Sprint("bad", i)
		open := r.TunnelOpen(id)
		open.GetTunnel().Query = []string{"hang", "reset", "502"}[i%3]
		open.GetTunnel().DeadlineMs = 20
		r.Open(open).End().Collect()
		r.RunEnd(id)
	}
	for i := range 20 {
		id := fmt.Sprint("good", i)
		if got := r.Start(id).Collect(); got.Kinds != "ahbe" {
			t.Errorf("good run %d: %q %v", i, got.Kinds, got.Rejected)
		}
		r.RunEnd(id)
	}
	r.atRest()
}

// ST-20: whatever an adapter emits, in whatever order, and however it returns, the edge sees one terminal, nothing
// after it, and the grammar is kept.
func TestOneTerminalInAnyOrder(t *testing.T) {
	var script []int
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		n := int64(1)
		for _, step := range script {
			switch step {
			case 0:
				_ = sink.Head(200, nil)
			case 1:
				_ = sink.Body([]byte("x"))
			case 2:
				_ = sink.Usage(execution.Usage{Input: &n})
			case 3:
				_ = sink.Body(nil)
			case 4:
				return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")
			case 5:
				panic("five")
			}
		}
		return nil
	}})
	rapid.Check(t, func(rt *rapid.T) {
		script = rapid.SliceOfN(rapid.IntRange(0, 5), 0, 8).Draw(rt, "script")
		tn := r.Start("r1")
		got := tn.Collect()
		if got.Err != nil || strings.Count(got.Kinds, "e")+strings.Count(got.Kinds, "x") != 1 {
			rt.Fatalf("script %v: %q %v", script, got.Kinds, got.Err)
		}
		seq := execution.NewSequence(execution.KindTunnel)
		steps := map[rune]execution.Step{'a': execution.StepAccepted, 'h': execution.StepHead, 'b': execution.StepBody,
			'u': execution.StepUsage, 'e': execution.StepEnd, 'x': execution.StepError}
		for _, k := range got.Kinds {
			if err := seq.Accept(steps[k], seq.Next()); err != nil {
				rt.Fatalf("script %v: %q: %v", script, got.Kinds, err)
			}
		}
		e := r.RunEnd("r1")
		if (e.GetCode() == 0) != (got.End != nil) || execution.Code(e.GetCode()) != execution.Code(got.Error.GetCode()) {
			rt.Fatalf("script %v: %q, RunEnd %v, terminal %v", script, got.Kinds, e, got.Error)
		}
		if n := r.RunEnds("r1"); n != 0 {
			rt.Fatalf("script %v: %d more RunEnds", script, n)
		}
	})
	r.atRest()
}

// Faults row 25: what is emitted after the return is dropped and counted.
func TestEmissionsAfterReturnAreDropped(t *testing.T) {
	var kept execution.TunnelSink
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		kept = sink
		return nodetest.Answer(sink, "ok")
	}})
	tn := r.Start("r1")
	got := tn.Collect()
	r.RunEnd("r1")
	if kept.Head(200, nil) == nil || kept.Body([]byte("x")) == nil || kept.Usage(execution.Usage{}) == nil {
		t.Error("an emission after the end was taken")
	}
	if got.Kinds != "ahbe" || r.seen.lateOf("emit") != 3 {
		t.Errorf("got %q, %d counted", got.Kinds, r.seen.lateOf("emit"))
	}
	r.atRest()
}

// TU-13, §8 "Close destroys data": the provider ends at once, the node has closed everything, and the reader still gets
// all bytes and a clean end. The place is free long before.
func TestTailReachesASlowReader(t *testing.T) {
	const size = 900 << 10 // below the window: the execution ends while nothing was read
	body := bytes.Repeat([]byte("0123456789abcde\n"), size/16)
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		return nodetest.Answer(sink, string(body))
	}}, capacity(1))
	slow := r.Start("slow")
	e := r.RunEnd("slow")
	if e.GetBytesOut() != size || r.inFlight() != 0 {
		t.Errorf("RunEnd %v, %d in flight", e, r.inFlight())
	}
	if s := r.Snapshot(); s.Lingering != 1 {
		t.Errorf("%d lingering, want 1", s.Lingering)
	}
	// §8 "place confirmed behind a slow caller": a second one gets the place while the first's answer waits.
	r.adapter.OnTunnel = nil
	if got := r.Start("second").Collect(); got.Kinds != "ahbe" {
		t.Errorf("second: %q %v", got.Kinds, got.Rejected)
	}
	r.RunEnd("second")
	got := slow.Collect()
	if got.End.GetBytes() != size || sha256.Sum256(got.Body) != sha256.Sum256(body) || got.Err != nil {
		t.Errorf("got %d bytes, end %v, %v", len(got.Body), got.End, got.Err)
	}
	r.atRest()
}

// TU-13: 300 KiB and the end at once, again and again; no byte is lost and frames stay below their cap.
func TestTailTwoHundredTimes(t *testing.T) {
	body := bytes.Repeat([]byte("x"), 300<<10)
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
		return nodetest.Answer(sink, string(body))
	}})
	for i := range 200 {
		tn := r.Start("r1")
		got := tn.Collect()
		if got.Kinds[:2] != "ah" || len(got.Body) != len(body) || got.End.GetBytes() != int64(len(body)) {
			t.Fatalf("round %d: %d bytes, %v, %v", i, len(got.Body), got.End, got.Err)
		}
		if want := (len(body) + transport.MaxBody - 1) / transport.MaxBody; strings.Count(got.Kinds, "b") != want {
			t.Fatalf("%d body frames, want %d", strings.Count(got.Kinds, "b"), want)
		}
		r.RunEnd("r1")
	}
	r.atRest()
}

// §2.D lingering ends by its limit, and when there are too many the oldest one goes.
func TestLingerLimits(t *testing.T) {
	patience.Widen(t, soon, func(limit time.Duration) (keptUp bool) {
		r := newRig(t, &nodetest.Adapter{}, timers(func(t *node.Timers) { t.Linger = limit }))
		tn := r.Start("r1")
		r.RunEnd("r1")
		nodetest.Eventually(t, "the limit is over", func() bool { return r.Snapshot().Lingering == 0 })
		got := tn.Collect() // what was sent is there for the time of the reset
		r.atRest()
		if got.Err != nil { // the limit was over before the terminal was written
			return false
		}
		if got.Kinds != "ahbe" {
			t.Errorf("got %q", got.Kinds)
		}
		return true
	})

	r := newRig(t, &nodetest.Adapter{})
	for i := range 258 {
		id := fmt.Sprint("r", i)
		r.Start(id)
		r.RunEnd(id)
	}
	nodetest.Eventually(t, "256 linger", func() bool { return r.Snapshot().Lingering == 256 && r.mux.Status().OpenStreams <= 258 })
}

// More executions end at once than may linger. One that hasn't written its terminal yet isn't closed for the others.
func TestManyEndAtOnce(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{})
	held, release := make(chan struct{}), make(chan struct{})
	var later atomic.Bool
	r.seen.hook = func(node.Ended) {
		if !later.Swap(true) { // between the end and the terminal of the first one
			close(held)
			<-release
		}
	}
	slow := r.Start("slow")
	nodetest.Receive(t, "the first execution is over", held)
	for i := range 257 {
		id := fmt.Sprint("r", i)
		r.Start(id)
		r.RunEnd(id)
	}
	nodetest.Eventually(t, "the oldest of the others was closed", func() bool { return r.Snapshot().Lingering == 256 })
	close(release)
	if got := slow.Collect(); got.Kinds != "ahbe" {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
}

// A provider that isn't a Tunneler can't be asked to carry a tunnel.
func TestAdapterWithoutTunnels(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{}, func(s *setup) {
		s.build = func(router.Spec) (execution.Provider, error) {
			return struct{ execution.Provider }{&nodetest.Adapter{}}, nil
		}
	})
	r.rejects(r.Start("r1"), execution.CodeBadRequest)
	r.atRest()
}

// Node drain: what runs is cancelled with node_draining and its caller told; then the executor is quiet.
func TestCancelAllAndQuiet(t *testing.T) {
	adapter, called := started()
	r := newRig(t, adapter)
	tn := r.Start("r1")
	nodetest.Receive(t, "the adapter is called", called)
	r.x.Drain()
	quiet := r.x.Quiet()
	select {
	case <-quiet:
		t.Fatal("quiet with an execution in work")
	default:
	}
	r.x.CancelAll(execution.CauseNodeDraining)
	if e := r.RunEnd("r1"); e.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_DRAINING {
		t.Errorf("RunEnd = %v", e)
	}
	select {
	case <-quiet:
		t.Fatal("quiet while an answer wasn't taken")
	default:
	}
	if got := tn.Collect(); got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_NODE_DRAINING {
		t.Errorf("got %q %v", got.Kinds, got.Error)
	}
	nodetest.Receive(t, "quiet", quiet)
	nodetest.Receive(t, "quiet, asked again", r.x.Quiet())
	r.atRest()
}

// The log line of an execution names what an operator looks for, in the names of the wire.
func TestLogLine(t *testing.T) {
	log := new(logged)
	r := newRig(t, &nodetest.Adapter{}, func(s *setup) { s.log = zerolog.New(log) })
	open := r.TunnelOpen("r1")
	open.GetTunnel().PrincipalRef, open.GetTunnel().Route, open.GetTunnel().SessionId = "alice", "gpt", "s-1"
	r.Open(open).End().Collect()
	r.RunEnd("r1")
	r.atRest()
	for _, want := range []string{`"level":"info"`, `"run_id":"r1"`, `"attempt":1`, `"connection_generation":7`, `"adapter":"a"`, `"target":"m"`,
		`"principal":"alice"`, `"route":"gpt"`, `"session_id":"s-1"`, `"code":"ok"`, `"outcome":"complete"`, `"status":200`,
		`"bytes_out":2`, `"duration_ms":`, `"first_byte_ms":`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log.String())
		}
	}
}
