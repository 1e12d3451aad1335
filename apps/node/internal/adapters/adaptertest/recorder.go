package adaptertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// Recorder is a sink that keeps what it is given and checks the order of it. Its fields may be read after Tunnel has
// returned; before that, use the methods.
type Recorder struct {
	// OnHead and OnBody, when set before Tunnel is called, run inside the sink's methods; an error is handed on.
	OnHead func(status int) error
	OnBody func(total int) error

	mu     sync.Mutex
	order  *execution.Sequence
	faults []string
	status int
	header http.Header
	body   bytes.Buffer
	pieces int
	usage  execution.Usage
	headed chan struct{}
	grown  chan struct{} // closed and replaced whenever the body grows
}

var _ execution.TunnelSink = (*Recorder)(nil)

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	r := &Recorder{order: execution.NewSequence(execution.KindTunnel), headed: make(chan struct{}), grown: make(chan struct{})}
	r.step(execution.StepAccepted)
	return r
}

// Head implements [execution.TunnelSink].
func (r *Recorder) Head(status int, header http.Header) error {
	r.mu.Lock()
	r.step(execution.StepHead)
	if r.status == 0 {
		close(r.headed)
	}
	r.status, r.header = status, header.Clone()
	r.mu.Unlock()
	if r.OnHead != nil {
		return r.OnHead(status)
	}
	return nil
}

// Body implements [execution.TunnelSink].
func (r *Recorder) Body(p []byte) error {
	r.mu.Lock()
	r.step(execution.StepBody)
	if len(p) == 0 || len(p) > maxPiece {
		r.faults = append(r.faults, fmt.Sprintf("a piece of %d bytes", len(p)))
	}
	r.body.Write(p)
	r.pieces++
	total := r.body.Len()
	close(r.grown)
	r.grown = make(chan struct{})
	r.mu.Unlock()
	if r.OnBody != nil {
		return r.OnBody(total)
	}
	return nil
}

// Usage implements [execution.TunnelSink].
func (r *Recorder) Usage(u execution.Usage) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step(execution.StepUsage)
	if !u.Known() || r.usage.Known() {
		r.faults = append(r.faults, "usage that says nothing, or a second one")
	}
	r.usage = u
	return nil
}

// step checks the grammar; the terminal is the return value of Tunnel, see [Recorder.End].
func (r *Recorder) step(s execution.Step) {
	if err := r.order.Accept(s, r.order.Next()); err != nil {
		r.faults = append(r.faults, err.Error())
	}
}

// End takes the return value of Tunnel as the terminal and returns every fault of order.
func (r *Recorder) End(err error) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.step(execution.StepEnd)
	} else {
		r.step(execution.StepError)
	}
	return r.faults
}

// Headed is closed when the head has come.
func (r *Recorder) Headed() <-chan struct{} { return r.headed }

// WaitBody returns when the body has at least n bytes, or fails the test.
func (r *Recorder) WaitBody(t testing.TB, n int) {
	t.Helper()
	limit := time.After(waitLimit)
	for {
		r.mu.Lock()
		have, grown := r.body.Len(), r.grown
		r.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-grown:
		case <-limit:
			t.Fatalf("%d bytes of the body after %v, want %d", have, waitLimit, n)
		}
	}
}

// Status returns the status of the head, 0 before it.
func (r *Recorder) Status() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Header returns the headers of the head.
func (r *Recorder) Header() http.Header {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.header
}

// Bytes returns the body so far.
func (r *Recorder) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.body.Bytes())
}

// Pieces returns how many pieces the body came in.
func (r *Recorder) Pieces() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pieces
}

// Counted returns the usage that was reported.
func (r *Recorder) Counted() execution.Usage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.usage
}

// maxPiece is the largest body that a frame carries; waitLimit how long a test waits for what must happen.
const (
	maxPiece  = 16320
	waitLimit = patience.Limit
)

// Post returns a request with a JSON body.
func Post(path, body string) *execution.TunnelRequest {
	return &execution.TunnelRequest{
		Method: http.MethodPost, Path: path,
		Header:        http.Header{"Content-Type": {"application/json"}, "Accept": {"*/*"}},
		Body:          io.NopCloser(bytes.NewReader([]byte(body))),
		ContentLength: int64(len(body)),
	}
}

// Get returns a request without a body.
func Get(path string) *execution.TunnelRequest {
	return &execution.TunnelRequest{Method: http.MethodGet, Path: path, Header: http.Header{"Accept": {"*/*"}}}
}

// Do runs a tunnel to its end, checks the order of what came, and returns it with the outcome.
func Do(t testing.TB, ctx context.Context, p execution.Tunneler, req *execution.TunnelRequest) (*Recorder, error) {
	t.Helper()
	r := NewRecorder()
	err := DoWith(t, ctx, p, req, r)
	return r, err
}

// DoWith is [Do] with a recorder of the caller's.
func DoWith(t testing.TB, ctx context.Context, p execution.Tunneler, req *execution.TunnelRequest, r *Recorder) error {
	t.Helper()
	err := p.Tunnel(ctx, req, r)
	for _, fault := range r.End(err) {
		t.Errorf("order: %s", fault)
	}
	return err
}

// Code returns the code of an outcome: of its failure, of the cause that cancelled it, or CodeOK.
func Code(t testing.TB, err error) execution.Code {
	t.Helper()
	switch e := err.(type) {
	case nil:
		return execution.CodeOK
	case *execution.Failure:
		return e.Code
	case execution.CancelCause:
		return e.Code()
	}
	t.Errorf("outcome is %T (%v): neither a failure nor a cause", err, err)
	return execution.CodeInternal
}

// Until returns when cond holds, or fails the test.
func Until(t testing.TB, cond func() bool) {
	t.Helper()
	patience.Until(t, "what the test waits for", cond)
}
