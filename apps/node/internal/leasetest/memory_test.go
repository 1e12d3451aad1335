package leasetest

import (
	"crypto/tls"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"iop/apps/node/internal/adapters/upstream"
	"iop/apps/node/internal/nodetest"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// oneProcessor makes the build without runtimesecret deterministic for a test. There the buffer in which crypto/tls
// encrypts is found again by the processor that gave it back, and a key may stay in memory when its goroutine changes to
// another one between two writes; the shielded build erases it then.
func oneProcessor(t *testing.T) {
	t.Helper()
	if !credentiallease.Shielded {
		before := runtime.GOMAXPROCS(1)
		t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	}
}

// borrow lends the canary to an open, and leaves no copy of it behind.
func (r *rig) borrow(open *pb.WorkOpen, c *canary) *pb.WorkOpen {
	return r.lender.Put(open, r.lender.Issue(r.lender.Grant(open, "/v1/chat/completions"), c.plain()))
}

// wantShown checks that the provider was shown the key as often as it should have been, and nothing else.
func wantShown(t *testing.T, p *provider, c *canary, times int) {
	t.Helper()
	want := append(masked([]byte("Bearer ")), c.masked...)
	n := 0
	for _, field := range p.shown(t) {
		if slices.Equal(field, want) {
			n++
		}
	}
	if n != times {
		t.Errorf("the provider was shown the key %d times, want %d", n, times)
	}
}

// E20: however a request with a key ends, nothing of the key is left in the node's memory.
func TestNothingOfAKeyIsLeft(t *testing.T) {
	oneProcessor(t)
	s, p := newScanner(t), startProvider(t)
	r := newRig(t, p.url)
	for _, k := range []struct {
		scenario string
		kinds    string // how the answer begins and ends
		status   int32
	}{
		{"whole", "ahbe", 200}, {"sse", "ahb...e", 200}, {"unauthorized", "ahbe", 401}, {"redirect", "ahe", 307}, {"reset", "ax", 0}, {"whole", "ahbe", 200},
	} {
		t.Run(k.scenario, func(t *testing.T) {
			c := newCanary()
			open := headers(r.TunnelOpen("r-"+k.scenario), "X-Scenario: "+k.scenario)
			tn := r.Open(r.borrow(open, c)).End()
			got := tn.Collect()
			first, last, _ := strings.Cut(k.kinds, "...")
			if !strings.HasPrefix(got.Kinds, first) || !strings.HasSuffix(got.Kinds, last) || got.Head.GetStatus() != k.status {
				t.Fatalf("got %q, %v, %v", got.Kinds, got.Head.GetStatus(), got.Error)
			}
			wantLease(t, r.RunEnd("r-"+k.scenario), credentiallease.Committed, 0)
			s.wantNothing(t, "afterwards", c)
			wantShown(t, p, c, 1)
		})
	}
}

// E20: nor of a normalized run's.
func TestNothingOfARunsKeyIsLeft(t *testing.T) {
	oneProcessor(t)
	s, p := newScanner(t), startProvider(t)
	r := newRig(t, p.url)
	c := newCanary()
	run := r.StartRun("r", func(req *pb.RunRequest) {
		r.borrow(&pb.WorkOpen{Attempt: 1, Work: &pb.WorkOpen_Run{Run: req}}, c)
	})
	if got := run.Collect(); got.Complete == nil || got.Text.String() != "hi" {
		t.Fatalf("got %q, %v", got.Kinds, got.Error)
	}
	wantLease(t, r.RunEnd("r"), credentiallease.Committed, 0)
	s.wantNothing(t, "afterwards", c)
	wantShown(t, p, c, 1)
}

// E20: nor in mid-stream, while the request is on, nor when it is cancelled there.
func TestNothingOfAKeyIsThereInMidStream(t *testing.T) {
	oneProcessor(t)
	s, p := newScanner(t), startProvider(t)
	r := newRig(t, p.url)
	c := newCanary()
	tn := r.Open(r.borrow(headers(r.TunnelOpen("r"), "X-Scenario: endless"), c)).End()
	for body := false; !body; {
		f, err := tn.Next()
		if err != nil {
			t.Fatal(err)
		}
		body = len(f.Body) > 0
	}
	s.wantNothing(t, "in mid-stream", c)
	r.Link.SendCancel("r", execution.CauseAPI)
	tn.Collect()
	wantLease(t, r.RunEnd("r"), credentiallease.Committed, 0)
	s.wantNothing(t, "after the cancel", c)
	wantShown(t, p, c, 1)
}

// E20: a key whose provider isn't there is never opened.
func TestNothingOfAKeyIsLeftAfterARefusedDial(t *testing.T) {
	oneProcessor(t)
	s, p := newScanner(t), startProvider(t)
	r := newRig(t, p.url)
	c := newCanary()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	gone := "https://" + l.Addr().String()
	client, err := upstream.New(upstream.Config{BaseURL: gone, Paths: []string{"/v1/chat/completions"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	open := r.TunnelOpen("r")
	g := r.lender.Grant(open, "/v1/chat/completions")
	g.Origin = gone
	held, err := r.lender.Guard.Verify(r.lender.Issue(g, c.plain()), g.Binding, r.lender.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Admit(); err != nil {
		t.Fatal(err)
	}
	err = client.Tunnel(t.Context(), &execution.TunnelRequest{Method: "POST", Path: "/v1/chat/completions", Credential: lentKey{t, held, r.lender}}, nothing{})
	if f := execution.AsFailure(err, 0); f == nil || f.Code != execution.CodeUpstreamConnect || !f.NothingSent {
		t.Errorf("got %v", err)
	}
	if out := held.End(); out.State != credentiallease.Refused || out.Refusal.Reason != credentiallease.Unused {
		t.Errorf("the lease ended as %+v", out)
	}
	s.wantNothing(t, "afterwards", c)
}

// lentKey is a credential that must not be used.
type lentKey struct {
	t      *testing.T
	held   *credentiallease.Held
	lender *nodetest.Lender
}

func (k lentKey) Field() (name, prefix string) { return "Authorization", "Bearer " }
func (k lentKey) Bind(string, string, string) error {
	k.t.Error("bound without a connection")
	return nil
}
func (k lentKey) Send(func([]byte) error) error { k.t.Error("opened without a connection"); return nil }

// The naive way is what E20's scan is held against: a key in a header string is found, more than once.
func TestTheScanFindsTheNaiveWay(t *testing.T) {
	oneProcessor(t)
	s, p := newScanner(t), startProvider(t)
	client := newClient(t, p.url)
	c := newCanary()
	req := request("whole")
	req.Header["X-Naive"] = []string{string(c.plain())}
	if err := client.Tunnel(t.Context(), req, nothing{}); err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC()
	if f := s.look(t, c); f.whole == 0 {
		t.Error("the scan finds nothing of a key in a header string")
	}
	runtime.KeepAlive(req)
}

// lengths are those of the head in the tests of cold buffers: 156 from 64 to 1,149 bytes.
const lengths = 156

// E20: nor when crypto/tls has no buffer yet that is long enough, whatever the length of the head.
func TestNothingOfAKeyIsLeftInColdBuffers(t *testing.T) {
	oneProcessor(t)
	s, p := newScanner(t), startProvider(t)
	c := newCanary()
	for i := range lengths {
		client := newClient(t, p.url) // and so a connection of its own
		req := request("whole")
		req.Header["X-Pad"] = []string{strings.Repeat("p", 7*i)}
		req.Credential = &coldKey{c, newPage(t)}
		if err := client.Tunnel(t.Context(), req, nothing{}); err != nil {
			t.Fatal(err)
		}
		client.Close()
		if i%26 == 25 {
			s.wantNothing(t, "after some lengths", c)
		}
	}
	wantShown(t, p, c, lengths)
}

// coldKey is a credential whose key is opened into a page, as the node's is, when crypto/tls has no buffers.
type coldKey struct {
	c    *canary
	page []byte
}

func (k *coldKey) Field() (name, prefix string)      { return "Authorization", "Bearer " }
func (k *coldKey) Bind(string, string, string) error { return nil }
func (k *coldKey) Send(write func([]byte) error) (err error) {
	for range 3 {
		runtime.GC() // a pool keeps what it has over one collection
	}
	credentiallease.Shield(func() {
		defer clear(k.page)
		k.c.clear(k.page[:canarySize])
		err = write(k.page[:canarySize])
	})
	return err
}

// The reason for writing a key by itself: in one write with the head crypto/tls leaves it in memory, for some lengths
// of the head. If this test fails, crypto/tls does better, and the other way isn't needed any more.
func TestTheScanFindsWhatTLSLeaves(t *testing.T) {
	oneProcessor(t)
	if credentiallease.Shielded {
		t.Skip("this build erases it")
	}
	s, p := newScanner(t), startProvider(t)
	for i := range lengths {
		c, page := newCanary(), newPage(t)
		conn, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{ServerName: "127.0.0.1", NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		head := "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nX-Scenario: whole\r\nContent-Length: 0\r\nX-Pad: " + strings.Repeat("p", 7*i) + "\r\nAuthorization: "
		n := copy(page, head)
		c.clear(page[n : n+canarySize])
		n += canarySize + copy(page[n+canarySize:], "\r\n\r\n")
		for range 3 {
			runtime.GC()
		}
		_, err = conn.Write(page[:n])
		clear(page)
		_ = conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		if s.look(t, c).whole > 0 {
			return
		}
	}
	t.Errorf("none of %d lengths left the key in memory", lengths)
}

// newPage is memory outside of Go's heap.
func newPage(t *testing.T) []byte {
	t.Helper()
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return page
}

func newClient(t *testing.T, url string) *upstream.Client {
	t.Helper()
	client, err := upstream.New(upstream.Config{BaseURL: url, Paths: []string{"/v1/chat/completions"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func request(scenario string) *execution.TunnelRequest {
	return &execution.TunnelRequest{
		Method: "POST", Path: "/v1/chat/completions", Header: http.Header{"X-Scenario": {scenario}},
		Timers: execution.Timers{FirstByte: time.Minute, Idle: time.Minute},
	}
}

// nothing is a sink that wants nothing.
type nothing struct{}

func (nothing) Head(int, http.Header) error { return nil }
func (nothing) Body([]byte) error           { return nil }
func (nothing) Usage(execution.Usage) error { return nil }
