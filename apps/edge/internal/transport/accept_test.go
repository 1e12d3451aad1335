package transport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	edge "iop/apps/edge/internal/transport"
	"iop/packages/go/patience"
)

// starved is a listener that fails for a while, as one does without descriptors.
type starved struct {
	*edgetest.Listener
	mu    sync.Mutex
	left  int
	tried []time.Time
}

func (s *starved) Accept() (net.Conn, error) {
	s.mu.Lock()
	s.tried = append(s.tried, time.Now())
	fail := s.left > 0
	if fail {
		s.left--
	}
	s.mu.Unlock()
	if fail {
		return nil, &net.OpError{Op: "accept", Net: "memory", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return s.Listener.Accept()
}

// faults.md row 54: without descriptors the edge keeps serving and accepts again later; the wait doubles up to a second,
// and one event tells of it.
func TestTooManyOpenFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := &starved{Listener: edgetest.Listen()}
		e := edgetest.Start(t, edgetest.Options{Nodes: nodes("a", "b"), Listener: s})
		seen := follow(e)
		n := connect(t, s.Listener, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		s.mu.Lock()
		s.left, s.tried = 12, nil
		s.mu.Unlock()
		b := connect(t, s.Listener, "b", edgetest.NodeOptions{}) // its accept was waiting already
		b.AwaitReady(t)
		time.Sleep(10 * time.Second)
		s.mu.Lock()
		tried := s.tried
		s.mu.Unlock()
		if len(tried) != 13 {
			t.Fatalf("%d tries", len(tried))
		}
		for i := 1; i < len(tried); i++ {
			if got, want := tried[i].Sub(tried[i-1]), min(5*time.Millisecond<<(i-1), time.Second); got != want {
				t.Errorf("pause %d is %v, want %v", i, got, want)
			}
		}
		if n := seen.count(events.KindRefused, "accept_failed"); n != 1 {
			t.Errorf("%d events", n)
		}
		if st := e.Server.Stats(); st.AcceptErrors != 12 {
			t.Errorf("stats %+v", st)
		}
		wantWork(t, e, "a") // it kept serving
		b.Close()
		connect(t, s.Listener, "b", edgetest.NodeOptions{}).AwaitReady(t)
	})
}

// A listener that is closed by somebody else ends Serve with an error, and everything with it.
func TestListenerBreaks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := edgetest.Listen()
		e := edgetest.Start(t, edgetest.Options{Nodes: nodes("a"), Listener: l})
		n := connect(t, l, "a", edgetest.NodeOptions{})
		n.AwaitReady(t)
		_ = l.Close()
		<-n.Link.Down()
		if len(e.Registry.Connections()) != 0 {
			t.Error("a connection is left")
		}
		if err := e.Stop(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve returned %v", err)
		}
	})
}

// E30: 200 connections from one address that say nothing, or are half open, all end at the handshake's limit, and
// goroutines and descriptors are back where they were.
func TestManyIdleConnections(t *testing.T) {
	var e *edgetest.Edge
	patience.Widen(t, 2*time.Second, func(limit time.Duration) bool {
		e = edgetest.Start(t, edgetest.Options{Nodes: nodes("a"), MaxUnregistered: 128, Timers: edge.Timers{Handshake: limit}})
		warm, ok := tryDial(t, e, "a")
		if ok {
			warm.AwaitReady(t)
		}
		return ok
	})
	wantWork(t, e, "a") // which starts what is started once
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	var conns []net.Conn
	for i := range 200 {
		c, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, _ = c.Write([]byte{0, 0})
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(patience.Limit))
		if _, err := c.Read(make([]byte, 1)); isTimeout(err) {
			t.Fatal("a connection that never registered is still open")
		}
		_ = c.Close()
	}
	eventually(t, "goroutines and descriptors are back", func() bool {
		return runtime.NumGoroutine() <= goroutines && openFiles(t) <= files
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience.Limit)
	defer cancel()
	if err := e.Registry.Current("a").Link.Probe(ctx); err != nil {
		t.Errorf("the node that had registered: %v", err)
	}
}

// Strangers who hold all places of unregistered connections, and come again as soon as they are closed, don't keep a
// node out. With nothing but the handshake's limit they did, for ever, from one address and without a token.
func TestStrangersDontKeepNodesOut(t *testing.T) {
	e := edgetest.Start(t, edgetest.Options{Nodes: nodes("a", "b"), MaxUnregistered: 8})
	ctx, stop := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	for range 40 {
		strangers.Go(func() {
			for ctx.Err() == nil {
				c, err := net.Dial("tcp", e.Addr())
				if err != nil {
					t.Error(err)
					return
				}
				end := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = c.Read(make([]byte, 1))
				end()
				_ = c.Close()
			}
		})
	}
	eventually(t, "strangers hold all places", func() bool { return e.Server.Stats().Unregistered == 8 })
	for _, id := range []string{"a", "b"} {
		eventually(t, id+" gets in", func() bool { // as a node does, which comes again
			n, ok := tryDial(t, e, id)
			if ok {
				n.AwaitReady(t)
			}
			return ok
		})
	}
	stop()
	strangers.Wait()
}

// tryDial is edgetest.Dial; false: the edge has ended the connection in place of an answer.
func tryDial(t *testing.T, e *edgetest.Edge, id string) (*edgetest.Node, bool) {
	t.Helper()
	c, err := net.Dial("tcp", e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	resp, err := edgetest.Register(c, edgetest.Hello(id))
	if err != nil {
		_ = c.Close()
		return nil, false
	}
	if !resp.GetAccepted() {
		t.Fatalf("the edge refused: %v", resp)
	}
	return edgetest.Run(t, c, resp, edgetest.NodeOptions{}), true
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	return len(entries)
}

// TU-28, E31, "multiplexer before authentication": a length is a promise that costs the edge nothing, however often it
// is made, and neither does a multiplexer that nobody has registered for.
func TestPromisesCostNoMemory(t *testing.T) {
	e := edgetest.Start(t, edgetest.Options{Nodes: nodes("a")})
	greetings := [][]byte{
		binary.BigEndian.AppendUint32(nil, 0xffffffff),
		binary.BigEndian.AppendUint32(nil, 0x7fffffff),
		binary.BigEndian.AppendUint32(nil, 16<<10+1),
	}
	var streams []byte // 250 streams of an unregistered connection
	for i := range uint32(250) {
		streams = append(streams, 0, 1, 0, 1)
		streams = binary.BigEndian.AppendUint32(streams, 1+2*i)
		streams = append(streams, 0, 0, 0, 0)
	}
	greetings = append(greetings, streams)
	const rounds = 50
	patience.Allocated(t, rounds*64<<10, func() {
		for i := range rounds {
			c, err := net.Dial("tcp", e.Addr())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write(greetings[i%len(greetings)])
			_ = c.SetReadDeadline(time.Now().Add(patience.Limit))
			if n, err := c.Read(make([]byte, 1)); n != 0 || isTimeout(err) || err == nil {
				t.Errorf("round %d: %d bytes, %v", i, n, err)
			}
			_ = c.Close()
		}
	})
}

// E27: it takes the same time to refuse a token that nobody has and one that is wrong by its last character.
func TestRefusalTimeDoesNotTell(t *testing.T) {
	if testing.Short() {
		t.Skip("measures time")
	}
	e := edgetest.Start(t, edgetest.Options{Nodes: nodes("a", "b", "c")})
	once := func(token string) time.Duration {
		c, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		hello := edgetest.Hello("a")
		hello.Token = token
		start := time.Now()
		resp, err := edgetest.Register(c, hello)
		if err != nil && !errors.Is(err, io.EOF) || resp.GetReason() != unknownToken {
			t.Fatalf("%v, %v", resp, err)
		}
		return time.Since(start)
	}
	wrong := edgetest.Token("a")[:len(edgetest.Token("a"))-1] + "!"
	unknown := "nobody-has-a-token-like-this-one!"
	var sumWrong, sumUnknown []time.Duration
	for range 300 { // in turns, so that load falls on both alike
		sumWrong, sumUnknown = append(sumWrong, once(wrong)), append(sumUnknown, once(unknown))
	}
	a, b := median(sumWrong), median(sumUnknown)
	if ratio := float64(a) / float64(b); ratio < 0.5 || ratio > 2 {
		t.Errorf("median %v for a wrong token, %v for an unknown one", a, b)
	}
}
