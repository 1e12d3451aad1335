package node_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"iop/apps/node/internal/nodetest"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// echo reads the whole request body and answers with it.
func echo(_ context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	body := []byte(nil)
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return err
		}
	}
	if err := sink.Head(http.StatusOK, nil); err != nil {
		return err
	}
	return sink.Body(body)
}

// Bodies of all sizes reach the adapter whole, and no frame of the answer is over 16 KiB.
func TestRequestBodies(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: echo})
	for _, n := range []int{0, 1, transport.MaxBody, transport.MaxBody + 1, 300 << 10, 3 << 20} {
		for _, declared := range []int64{int64(n), -1} {
			body := bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n]
			open := r.TunnelOpen("r1")
			open.GetTunnel().ContentLength = declared
			tn := r.Open(open)
			tn.Body(body).End() // the adapter reads while this side writes, and answers at the end
			tn.Accepted()
			got := tn.Collect()
			if got.Error != nil || got.Err != nil || sha256.Sum256(got.Body) != sha256.Sum256(body) {
				t.Errorf("%d bytes, declared %d: got %d, %v, %v", n, declared, len(got.Body), got.Error, got.Err)
			}
			if e := r.RunEnd("r1"); e.GetBytesIn() != int64(n) || e.GetBytesOut() != int64(n) {
				t.Errorf("RunEnd = %v", e)
			}
		}
	}
	r.atRest()
}

// E41: a body that is longer or shorter than declared, that goes on after its end, or whose end doesn't fit, and
// numbers with a gap: one terminal error, the adapter is cancelled, the stream ends in order.
func TestBodyLengthViolations(t *testing.T) {
	for _, c := range []struct {
		name     string
		declared int64
		send     func(*nodetest.Tunnel)
		want     execution.Code
	}{
		{"longer than declared", 3, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")) }, execution.CodeBadRequest},
		{"longer than declared, then goes on", 3, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")).Body([]byte("more")).End() }, execution.CodeBadRequest},
		{"shorter than declared", 5, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")).EndOf(4) }, execution.CodeBadRequest},
		{"a body where none was declared", 0, func(tn *nodetest.Tunnel) { tn.Body([]byte("x")) }, execution.CodeBadRequest},
		{"end says more", -1, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")).EndOf(5) }, execution.CodeBadRequest},
		{"end says less", 4, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")).EndOf(3) }, execution.CodeBadRequest},
		{"body after end", -1, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")).End().Body([]byte("x")) }, execution.CodeBadRequest},
		{"two ends", 4, func(tn *nodetest.Tunnel) { tn.Body([]byte("four")).End().End() }, execution.CodeBadRequest},
		{"a gap", -1, func(tn *nodetest.Tunnel) {
			_ = tn.AppendBody(2, []byte("x"))
			_ = tn.Flush()
		}, execution.CodeProtocol},
		{"an unknown kind of input", -1, func(tn *nodetest.Tunnel) { _ = tn.Write(&pb.WorkInput{Seq: 1}) }, execution.CodeProtocol},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang}) // doesn't read its body
			open := r.TunnelOpen("r1")
			open.GetTunnel().ContentLength = c.declared
			tn := r.Open(open)
			tn.Accepted()
			c.send(tn)
			got := tn.Collect()
			if got.Kinds != "x" || got.Error.GetCode() != pb.FailureCode(c.want) || got.Error.GetOrigin() != pb.Origin_ORIGIN_EDGE {
				t.Errorf("got %q %v %v", got.Kinds, got.Error, got.Err)
			}
			if e := r.RunEnd("r1"); e.GetStatus() != pb.RunStatus_RUN_STATUS_ERROR || e.GetCode() != pb.FailureCode(c.want) {
				t.Errorf("RunEnd = %v", e)
			}
			r.atRest()
			if n := r.RunEnds("r1"); n != 0 {
				t.Errorf("%d more RunEnds", n)
			}
		})
	}
}

// The adapter that reads sees the violation as its body's error, never as a whole body.
func TestBodyViolationIsTheReadersError(t *testing.T) {
	called, read := make(chan struct{}), make(chan error, 1)
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, req *execution.TunnelRequest, _ execution.TunnelSink) error {
		close(called)
		_, err := io.ReadAll(req.Body)
		read <- err
		return err
	}})
	open := r.TunnelOpen("r1")
	open.GetTunnel().ContentLength = 10
	tn := r.Open(open).Body([]byte("four"))
	nodetest.Receive(t, "the adapter is called", called)
	if got := tn.EndOf(4).Collect(); got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode_FAILURE_CODE_BAD_REQUEST {
		t.Errorf("got %q %v", got.Kinds, got.Error)
	}
	var f *execution.Failure
	if err := nodetest.Receive(t, "the body's error", read); !errors.As(err, &f) || f.Code != execution.CodeBadRequest {
		t.Errorf("the reader got %v", err)
	}
	r.RunEnd("r1")
	r.atRest()
}

// HT-13 at the node: a provider that answers without reading the body; the rest is discarded, nobody hangs.
func TestEarlyAnswer(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: func(_ context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
		if err := sink.Head(413, nil); err != nil {
			return err
		}
		req.Body.Close()
		if _, err := req.Body.Read(make([]byte, 1)); err == nil {
			t.Error("a closed body can be read")
		}
		return nil
	}})
	open := r.TunnelOpen("r1")
	open.GetTunnel().ContentLength = 8 << 20
	tn := r.Open(open).Body(make([]byte, 8<<20)).End()
	if got := tn.Collect(); got.Kinds != "ahe" || got.Head.GetStatus() != 413 {
		t.Errorf("got %q %v", got.Kinds, got.Err)
	}
	r.RunEnd("r1")
	r.atRest()
}

// A provider that doesn't read its body is not read ahead of: the edge's writes stop at the buffers, and a cancel frees
// both sides.
func TestUnreadBodyIsBounded(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{OnTunnel: nodetest.Hang})
	open := r.TunnelOpen("r1")
	open.GetTunnel().ContentLength = 64 << 20
	tn := r.Open(open)
	tn.Accepted()
	var sent atomic.Int64
	blocked := make(chan struct{})
	go func() {
		defer close(blocked)
		piece := make([]byte, transport.MaxBody)
		for seq := uint64(1); ; seq++ {
			if tn.AppendBody(seq, piece) != nil || tn.Flush() != nil {
				return
			}
			sent.Add(int64(len(piece)))
		}
	}()
	const limit = 4 << 20
	still, last := 0, int64(0)
	nodetest.Eventually(t, "the writer waits", func() bool { // a hundred looks, a millisecond each, at which nothing moved
		still++
		if n := sent.Load(); n != last || n < 512<<10 {
			still, last = 0, n
		}
		return still >= 100 || last > limit
	})
	if last > limit {
		t.Errorf("%d bytes were taken of a body that nobody reads, want at most %d", last, limit)
	}
	r.Link.SendCancel("r1", execution.CauseClientGone) // from here on the rest is read, and thrown away
	r.RunEnd("r1")
	tn.Cancel()
	tn.Close()
	nodetest.Receive(t, "the writer ends", blocked)
	r.atRest()
}
