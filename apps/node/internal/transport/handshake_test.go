package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/router"
	"iop/packages/go/config"
	"iop/packages/go/execution"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// bubble is a link in a synctest bubble, with the real timers. Each dial goes to edge, which may talk on the bare
// connection; the multiplexer is never started here.
type bubble struct {
	link  *Link
	mu    sync.Mutex
	dials []time.Duration // since the start
	slept time.Duration
}

func runBubble(t *testing.T, random float64, edge func(n int, conn net.Conn) error, check func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{}
		began := time.Now()
		x := node.New(node.Config{Edge: "e", Router: router.New(), Log: zerolog.Nop(),
			Build: func(router.Spec) (execution.Provider, error) { return nil, errors.New("none") }})
		b.link = New(Config{
			Edge: "e", Token: config.NewSecret("t"), Executor: x, Log: zerolog.Nop(),
			Random: func() float64 { return random },
			Slept:  func() time.Duration { b.mu.Lock(); defer b.mu.Unlock(); return b.slept },
			Dial: func(context.Context, string) (net.Conn, error) {
				b.mu.Lock()
				n := len(b.dials)
				b.dials = append(b.dials, time.Since(began))
				b.mu.Unlock()
				here, there := net.Pipe()
				errs := make(chan error, 1)
				go func() { errs <- edge(n, there) }()
				select { // an edge that refuses the dial says so before anything is written
				case err := <-errs:
					there.Close()
					return here, err
				case <-time.After(time.Nanosecond):
				}
				go func() { <-errs; there.Close() }()
				return here, nil
			},
		})
		ctx, kill := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); b.link.Run(ctx) }()
		check(b)
		kill()
		<-ended
		x.Close(context.Background())
		time.Sleep(time.Minute) // of the bubble's time: what an edge still does ends
	})
}

func (b *bubble) dialTimes() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]time.Duration(nil), b.dials...)
}

func readHello(conn net.Conn) error {
	return transport.ReadMessage(conn, transport.MaxRegisterRequest, new(pb.RegisterRequest))
}

// refusing answers every registration with the same refusal.
func refusing(resp *pb.RegisterResponse) func(int, net.Conn) error {
	return func(_ int, conn net.Conn) error {
		if err := readHello(conn); err != nil {
			return err
		}
		return transport.WriteMessage(conn, resp)
	}
}

// §2.B refused, by class, with the protocol's waits. Faults row 33.
func TestRefusals(t *testing.T) {
	const none = time.Duration(0)
	for _, c := range []struct {
		reason     pb.RegisterReason
		retryAfter time.Duration
		want       []time.Duration // between dials, with all dice at 1
	}{
		{pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN, none, []time.Duration{5 * time.Minute, 5 * time.Minute}},
		{pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH, none, []time.Duration{5 * time.Minute}},
		{pb.RegisterReason_REGISTER_REASON_POP_FAILED, none, []time.Duration{5 * time.Minute}},
		{pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED, none, []time.Duration{5 * time.Minute}},
		{pb.RegisterReason_REGISTER_REASON_PROTOCOL, none, []time.Duration{5 * time.Minute}},
		{pb.RegisterReason_REGISTER_REASON_NODE_DISABLED, none, []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute}},
		{pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION, 3 * time.Second, []time.Duration{4 * time.Second, 4 * time.Second, 4 * time.Second, 8 * time.Second}},
		{pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED, none, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second}},
		{pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING, 10 * time.Second, []time.Duration{11 * time.Second}},
		{pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT, none, []time.Duration{time.Second, 2 * time.Second}},
		{pb.RegisterReason(99), none, []time.Duration{5 * time.Minute}}, // of a newer edge, which doesn't call it retryable
	} {
		t.Run(reasonName(c.reason), func(t *testing.T) {
			resp := &pb.RegisterResponse{Reason: c.reason, ReasonText: "because\n", RetryAfterMs: c.retryAfter.Milliseconds()}
			runBubble(t, 1, refusing(resp), func(b *bubble) {
				time.Sleep(30 * time.Minute)
				dials := b.dialTimes()
				for i, want := range c.want {
					if got := (dials[i+1] - dials[i]).Round(time.Millisecond); got != want {
						t.Errorf("wait %d: %v, want %v", i, got, want)
					}
				}
				s := b.link.Status()
				if s.State != StateBackoff || !strings.Contains(s.LastError, reasonName(c.reason)) || strings.Contains(s.LastError, "\n") || s.Registrations != 0 {
					t.Errorf("status = %+v", s)
				}
			})
		})
	}
}

// A reason that this version doesn't know, but that the edge calls retryable.
func TestUnknownRetryableReason(t *testing.T) {
	runBubble(t, 1, refusing(&pb.RegisterResponse{Reason: 99, Retryable: true}), func(b *bubble) {
		time.Sleep(3500 * time.Millisecond)
		if n := len(b.dialTimes()); n != 3 {
			t.Errorf("%d dials, want 3", n)
		}
	})
}

// §2.B handshake 10 s: an edge that says nothing, one that drips, and one that doesn't read are given up after the
// limit, each time.
func TestHandshakeLimit(t *testing.T) {
	hang := make(map[string]func(int, net.Conn) error)
	hang["silent"] = func(_ int, conn net.Conn) error {
		_, err := io.Copy(io.Discard, conn)
		return err
	}
	hang["never reads"] = func(_ int, conn net.Conn) error {
		time.Sleep(11 * time.Second)
		return nil
	}
	hang["drips"] = func(_ int, conn net.Conn) error {
		if err := readHello(conn); err != nil {
			return err
		}
		for _, b := range binary.BigEndian.AppendUint32(nil, 1000) {
			if _, err := conn.Write([]byte{b}); err != nil {
				return err
			}
			time.Sleep(3 * time.Second)
		}
		_, err := conn.Read(make([]byte, 1))
		return err
	}
	for name, edge := range hang {
		t.Run(name, func(t *testing.T) {
			runBubble(t, 0, edge, func(b *bubble) {
				time.Sleep(35 * time.Second)
				dials := b.dialTimes()
				if len(dials) != 4 {
					t.Fatalf("dials at %v, want one each 10 s", dials)
				}
				for i := 1; i < len(dials); i++ {
					if got := (dials[i] - dials[i-1]).Round(time.Millisecond); got != 10*time.Second {
						t.Errorf("given up after %v", got)
					}
				}
			})
		})
	}
}

// §2.B dial error, and answers that aren't the protocol: backoff, whatever it was; nothing is allocated for a length
// that is only claimed (TU-28).
func TestHandshakeFaults(t *testing.T) {
	raw := func(b []byte) func(int, net.Conn) error {
		return func(_ int, conn net.Conn) error {
			if err := readHello(conn); err != nil {
				return err
			}
			_, err := conn.Write(b)
			return err
		}
	}
	message := func(m *pb.RegisterResponse) func(int, net.Conn) error { return refusing(m) }
	wrongVersion := acceptance(7, projection(1))
	wrongVersion.Protocol = 2
	for _, c := range []struct {
		name string
		edge func(int, net.Conn) error
		text string
		wait time.Duration // of the first backoff, with all dice at 1
	}{
		{"EOF", func(_ int, conn net.Conn) error { return readHello(conn) }, "EOF", time.Second},
		{"an HTTP server", raw([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")), "is this the node port", time.Second},
		{"length 2^32-1", raw([]byte{0xFF, 0xFF, 0xFF, 0xFF}), "frame", time.Second},
		{"length 0", raw([]byte{0, 0, 0, 0}), "frame", time.Second},
		{"cut inside", raw([]byte{0, 0, 0, 9, 1}), "unexpected EOF", time.Second},
		{"another version", message(wrongVersion), "version_unsupported", 5 * time.Minute},
		{"no generation", message(acceptance(0, projection(1))), "protocol", 5 * time.Minute},
		{"no projection", message(acceptance(7, nil)), "protocol", 5 * time.Minute},
		{"projection 0", message(acceptance(7, &pb.NodeConfigPayload{})), "protocol", 5 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			runBubble(t, 1, c.edge, func(b *bubble) {
				time.Sleep(500 * time.Millisecond)
				s := b.link.Status()
				if s.State != StateBackoff || !strings.Contains(s.LastError, c.text) {
					t.Errorf("status = %+v", s)
				}
				if got := s.NextDial.Sub(s.Since).Round(10 * time.Millisecond); got != c.wait {
					t.Errorf("wait %v, want %v", got, c.wait)
				}
			})
		})
	}
}

// §2.B dial error → backoff; wake from sleep → dialing at once. A short sleep or none isn't a wake-up, and wall time
// has no part in it.
func TestDialErrorsAndWake(t *testing.T) {
	refused := func(int, net.Conn) error { return errors.New("connection refused") }
	runBubble(t, 1, refused, func(b *bubble) {
		time.Sleep(40 * time.Second) // dials at 0, 1, 3, 7, 15, 31, then a wait of 30 s
		if n := len(b.dialTimes()); n != 6 {
			t.Errorf("%d dials in 40 s, want 6", n)
		}
		set := func(d time.Duration) { b.mu.Lock(); b.slept += d; b.mu.Unlock() }
		set(4 * time.Second)
		time.Sleep(3 * time.Second)
		if n := len(b.dialTimes()); n != 6 {
			t.Errorf("a sleep of 4 s dialed")
		}
		set(6 * time.Second)
		time.Sleep(3 * time.Second)
		if n := len(b.dialTimes()); n != 7 {
			t.Errorf("%d dials after the wake-up, want 7", n)
		}
	})
}

// The kernel's clocks answer, and a machine that doesn't sleep doesn't seem to.
func TestSlept(t *testing.T) {
	first := slept()
	w := newSleepWatch(slept, time.Hour)
	defer w.stop()
	if w.woke() || slept()-first > time.Second {
		t.Error("awake, but it seems otherwise")
	}
}
