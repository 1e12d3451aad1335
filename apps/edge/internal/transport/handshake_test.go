package transport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	link "iop/packages/go/transport"
	pb "iop/proto/iop"
)

const (
	unknownToken     = pb.RegisterReason_REGISTER_REASON_UNKNOWN_TOKEN
	nodeDisabled     = pb.RegisterReason_REGISTER_REASON_NODE_DISABLED
	identityMismatch = pb.RegisterReason_REGISTER_REASON_IDENTITY_MISMATCH
	duplicate        = pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION
	versionUnsupp    = pb.RegisterReason_REGISTER_REASON_VERSION_UNSUPPORTED
	payloadFailed    = pb.RegisterReason_REGISTER_REASON_PAYLOAD_FAILED
	edgeDraining     = pb.RegisterReason_REGISTER_REASON_EDGE_DRAINING
	protocolReason   = pb.RegisterReason_REGISTER_REASON_PROTOCOL
)

// §2.A hello: RegisterRequest valid, no predecessor.
func TestAccepted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		hello := edgetest.Hello("a")
		hello.Features = []pb.Feature{pb.Feature_FEATURE_BACKGROUND, 999, pb.Feature_FEATURE_TRACE}
		hello.ProtocolMax = 7 // a newer node
		hello.NodeIdClaim = "a"
		_, resp := register(t, l, hello)
		switch {
		case !resp.GetAccepted(), resp.GetNodeId() != "a", resp.GetProtocol() != 1:
			t.Errorf("answer %v", resp)
		case !slices.Equal(resp.GetFeatures(), []pb.Feature{pb.Feature_FEATURE_BACKGROUND, pb.Feature_FEATURE_TRACE}):
			t.Errorf("features %v: not those of both sides", resp.GetFeatures())
		case resp.GetConnectionGeneration() == 0, resp.GetEdgeId() == "", len(resp.GetEdgeInstance()) != 16:
			t.Errorf("answer %v", resp)
		case resp.GetLimits().GetHeartbeatMs() != 30_000, resp.GetLimits().GetDeadMs() != 45_000:
			t.Errorf("limits %v", resp.GetLimits())
		case resp.GetEdgeTimeMs() != time.Now().UnixMilli():
			t.Errorf("edge time %d", resp.GetEdgeTimeMs())
		}
		p := resp.GetConfig()
		if p.GetProjection() == 0 || len(p.GetAdapters()) != 1 || p.GetAdapters()[0].GetMaxConcurrency() != 4 {
			t.Errorf("config %v", p)
		}
		ev := seen.want(t, events.KindRegistered, "registered")
		if ev.NodeID != "a" || ev.Generation != resp.GetConnectionGeneration() {
			t.Errorf("event %+v", ev)
		}
		if c := e.Registry.Lookup("a", resp.GetConnectionGeneration()); c == nil {
			t.Error("not in the registry")
		}
		if e.Registry.Lookup("a", resp.GetConnectionGeneration()+1) != nil || e.Registry.Current("b") != nil {
			t.Error("more in the registry than was registered")
		}
	})
}

// §2.A hello: RegisterRequest refused, one case for each reason of this step. faults.md row 33, security.md E27.
func TestRefused(t *testing.T) {
	expired := edgetest.Record("expired", 1)
	expired.TokenHashes[0].NotAfter = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	disabled := edgetest.Record("disabled", 1)
	disabled.Enabled = false
	recs := append(nodes("a", "b"), expired, disabled)

	for name, c := range map[string]struct {
		change    func(*pb.RegisterRequest)
		reason    pb.RegisterReason
		node      string // that the event may name
		retryable bool
		text      string
	}{
		"unknown token":    {func(r *pb.RegisterRequest) { r.Token = "nobody knows this" }, unknownToken, "", false, "token new"},
		"no token":         {func(r *pb.RegisterRequest) { r.Token = "" }, unknownToken, "", false, ""},
		"token, one bit":   {func(r *pb.RegisterRequest) { r.Token += "x" }, unknownToken, "", false, ""},
		"right id, wrong":  {func(r *pb.RegisterRequest) { r.Token, r.NodeIdClaim = "wrong", "a" }, unknownToken, "", false, ""},
		"expired token":    {func(r *pb.RegisterRequest) { r.Token = edgetest.Token("expired") }, unknownToken, "expired", false, "expired"},
		"disabled":         {func(r *pb.RegisterRequest) { r.Token = edgetest.Token("disabled") }, nodeDisabled, "disabled", false, ""},
		"another's id":     {func(r *pb.RegisterRequest) { r.NodeIdClaim = "b" }, identityMismatch, "a", false, ""},
		"an unknown id":    {func(r *pb.RegisterRequest) { r.NodeIdClaim = "nobody" }, identityMismatch, "a", false, ""},
		"newer only":       {func(r *pb.RegisterRequest) { r.ProtocolMin, r.ProtocolMax = 2, 3 }, versionUnsupp, "a", false, "2 to 3, the edge 1 to 1"},
		"no version":       {func(r *pb.RegisterRequest) { r.ProtocolMin, r.ProtocolMax = 0, 0 }, versionUnsupp, "a", false, "0 to 0"},
		"upside down":      {func(r *pb.RegisterRequest) { r.ProtocolMin, r.ProtocolMax = 3, 1 }, versionUnsupp, "a", false, ""},
		"no instance":      {func(r *pb.RegisterRequest) { r.InstanceId = nil }, protocolReason, "a", false, "instance_id"},
		"short instance":   {func(r *pb.RegisterRequest) { r.InstanceId = r.InstanceId[:15] }, protocolReason, "a", false, ""},
		"too long a claim": {func(r *pb.RegisterRequest) { r.NodeIdClaim = strings.Repeat("a", 9000) }, identityMismatch, "a", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{Nodes: recs})
				hello := edgetest.Hello("a")
				c.change(hello)
				start := time.Now()
				conn, resp := register(t, l, hello)
				wantRefused(t, conn, resp, c.reason)
				if resp.GetRetryable() != c.retryable || !strings.Contains(resp.GetReasonText(), c.text) {
					t.Errorf("answer %v, want retryable %v and %q in the text", resp, c.retryable, c.text)
				}
				if d := time.Since(start); d > time.Second {
					t.Errorf("refused after %v", d)
				}
				code := seen.want(t, events.KindRefused, strings.ToLower(strings.TrimPrefix(c.reason.String(), "REGISTER_REASON_")))
				if code.NodeID != c.node {
					t.Errorf("the event names node %q, want %q", code.NodeID, c.node)
				}
				if n := len(e.Registry.Connections()); n != 0 {
					t.Errorf("%d connections in the registry", n)
				}
				if s := e.Server.Stats(); s.Refused[code.Code] != 1 {
					t.Errorf("stats %+v", s)
				}
				synctest.Wait() // the last of the refused connection's goroutine
				if s := e.Server.Stats(); s.Unregistered != 0 || s.Handshakes != 0 {
					t.Errorf("stats at rest %+v", s)
				}
			})
		})
	}
}

// faults.md row 33: a payload that can't be built, or a generation that can't be kept, is refused and retried.
func TestPayloadFailed(t *testing.T) {
	var out safeBuffer
	bubble(t, func(t *testing.T) {
		fail := true
		_, l, seen := inMemory(t, edgetest.Options{Log: &out, Payload: func(p *config.Projection) (*pb.NodeConfigPayload, error) {
			if fail {
				return nil, errors.New("no such thing")
			}
			return &pb.NodeConfigPayload{Projection: p.Number}, nil
		}})
		conn, resp := register(t, l, edgetest.Hello("a"))
		wantRefused(t, conn, resp, payloadFailed)
		if !resp.GetRetryable() || resp.GetRetryAfterMs() == 0 || strings.Contains(resp.GetReasonText(), "no such thing") {
			t.Errorf("answer %v", resp)
		}
		seen.want(t, events.KindRefused, "payload_failed")
		fail = false
		if _, resp := register(t, l, edgetest.Hello("a")); !resp.GetAccepted() {
			t.Errorf("answer %v", resp)
		}
		if !strings.Contains(out.String(), "no such thing") {
			t.Errorf("the log doesn't say why:\n%s", out.String())
		}
	})
}

func TestPayloadTooLarge(t *testing.T) {
	rec := edgetest.Record("a", 1)
	for range 1100 {
		rec.Adapters[0].Targets = append(rec.Adapters[0].Targets, strings.Repeat("m", 1000))
	}
	bubble(t, func(t *testing.T) {
		_, l, _ := inMemory(t, edgetest.Options{Nodes: []config.NodeRecord{rec}})
		conn, resp := register(t, l, edgetest.Hello("a"))
		wantRefused(t, conn, resp, payloadFailed)
	})
}

// §2.A hello and contending: edge starts draining.
func TestRefusedWhileDraining(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		e.Server.Drain(30 * time.Second)
		conn, resp := register(t, l, edgetest.Hello("a"))
		wantRefused(t, conn, resp, edgeDraining)
		if !resp.GetRetryable() || resp.GetRetryAfterMs() == 0 {
			t.Errorf("answer %v", resp)
		}
		seen.want(t, events.KindRefused, "edge_draining")
		// Who has no token learns nothing of it.
		hello := edgetest.Hello("a")
		hello.Token = "nobody"
		conn, resp = register(t, l, hello)
		wantRefused(t, conn, resp, unknownToken)
	})
}

// CR-07: no part of a refused token, nor of an accepted one, is shown anywhere.
func TestTokensAreNowhere(t *testing.T) {
	secret := "q7Zx-Wm2Kp9Lr4Tn8Vb3"
	expired := edgetest.Record("expired", 1)
	expired.TokenHashes[0].NotAfter = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	accepted := edgetest.Record("ok", 1)
	sum := config.HashSecret(secret + "Hd6Yq1Ws")
	accepted.TokenHashes[0].SHA256 = hexOf(sum)
	var out safeBuffer
	bubble(t, func(t *testing.T) {
		_, l, seen := inMemory(t, edgetest.Options{Nodes: append(nodes("a"), expired, accepted), Log: &out})
		for name, token := range map[string]string{
			"unknown": secret, "blank": " " + secret, "newline": secret[:8] + "\n" + secret[8:], "accepted": secret + "Hd6Yq1Ws",
			"8 KiB": strings.Repeat(secret, 410), "expired": edgetest.Token("expired"),
		} {
			hello := edgetest.Hello("a")
			hello.Token = token
			_, resp := register(t, l, hello)
			if text := resp.String(); leaks(text, token) {
				t.Errorf("%s: the answer shows the token: %s", name, text)
			}
			// The same text where it doesn't belong.
			hello.Token, hello.NodeIdClaim = edgetest.Token("a"), token
			_, resp = register(t, l, hello)
			if text := resp.String(); leaks(text, token) {
				t.Errorf("%s: the answer shows the claim: %s", name, text)
			}
			synctest.Wait()
			seen.drain()
			for _, ev := range seen.seen {
				if leaks(ev.Text+ev.Code+ev.NodeID, token) {
					t.Errorf("%s: an event shows the token: %+v", name, ev)
				}
			}
			if leaks(out.String(), token) {
				t.Errorf("%s: the log shows the token:\n%s", name, out.String())
			}
		}
		if !strings.Contains(out.String(), "unknown_token") {
			t.Errorf("the log doesn't name the reason:\n%s", out.String())
		}
	})
}

// leaks reports whether any eight characters of secret are in text.
func leaks(text, secret string) bool {
	for i := 0; i+8 <= len(secret); i++ {
		if strings.Contains(text, secret[i:i+8]) {
			return true
		}
	}
	return false
}

// §2.A hello: frame error → close. faults.md rows 45 and 46, TU-28, E31, and "multiplexer before authentication" of
// protocol.md §8. Nothing is answered, and nothing is reserved for what a prefix promises.
func TestHelloThatIsNone(t *testing.T) {
	whole, err := proto.Marshal(edgetest.Hello("a"))
	if err != nil {
		t.Fatal(err)
	}
	prefixed := func(n uint32, body []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, n), body...) }
	for name, bytes := range map[string][]byte{
		"HTTP request":       []byte("GET / HTTP/1.1\r\nHost: edge\r\n\r\n"),
		"TLS hello":          {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc},
		"multiplexer open":   {0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0},
		"multiplexer ping":   {0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1},
		"multiplexer data":   {0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0x10, 0},
		"length 0":           {0, 0, 0, 0},
		"length 2^32-1":      {0xff, 0xff, 0xff, 0xff},
		"length 2^31-1":      {0x7f, 0xff, 0xff, 0xff},
		"one over the cap":   prefixed(link.MaxRegisterRequest+1, nil),
		"not a message":      prefixed(8, []byte("\xff\xff\xff\xff\xff\xff\xff\xff")),
		"truncated varint":   prefixed(2, []byte{0x08, 0x80}),
		"string not UTF-8":   prefixed(4, []byte{0x1a, 0x02, 0xff, 0xfe}),
		"truncated message":  prefixed(uint32(len(whole)-1), whole[:len(whole)-1]),
		"groups, deep":       prefixed(16<<10, deep(16<<10)),
		"register, after it": nil, // filled below: a valid request after garbage isn't looked at
	} {
		if bytes == nil {
			bytes = append([]byte{0, 0, 0, 0}, prefixed(uint32(len(whole)), whole)...)
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				e, l, seen := inMemory(t, edgetest.Options{})
				c := l.Dial()
				defer c.Close()
				go func() { _, _ = c.Write(bytes) }() // ends when the edge closes
				start := time.Now()
				if got, _ := io.ReadAll(c); len(got) != 0 {
					t.Errorf("the edge answered %q", got)
				}
				if d := time.Since(start); d > time.Second {
					t.Errorf("closed after %v", d)
				}
				seen.want(t, events.KindRefused, "protocol")
				if s := e.Server.Stats(); s.Refused["protocol"] != 1 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// deep is a message of unknown groups inside each other.
func deep(n int) []byte { return bytes.Repeat([]byte{0xa3, 0x06}, n/2) }

// §2.A hello: EOF. It is no refusal, and no news.
func TestHelloThatEnds(t *testing.T) {
	whole, err := proto.Marshal(edgetest.Hello("a"))
	if err != nil {
		t.Fatal(err)
	}
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(whole))), whole...)
	for _, n := range []int{0, 1, 3, 4, 5, len(frame) / 2, len(frame) - 1} {
		bubble(t, func(t *testing.T) {
			e, l, seen := inMemory(t, edgetest.Options{})
			c := l.Dial()
			if _, err := c.Write(frame[:n]); err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
			synctest.Wait()
			if s := e.Server.Stats(); s.Unregistered != 0 {
				t.Errorf("after %d bytes: %+v", n, s)
			}
			if seen.drain(); len(seen.seen) != 0 {
				t.Errorf("after %d bytes: %v", n, seen.seen)
			}
		})
	}
}

// §2.A hello: handshake 10 s. faults.md row 47, E30: silence and one byte each few seconds.
func TestHelloThatIsSlow(t *testing.T) {
	for name, every := range map[string]time.Duration{"silence": 0, "one byte per second": time.Second, "per 5 s": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				_, l, seen := inMemory(t, edgetest.Options{})
				c := l.Dial()
				defer c.Close()
				start := time.Now()
				var writer sync.WaitGroup
				defer writer.Wait()
				if every > 0 {
					writer.Go(func() {
						for _, b := range []byte{0, 0, 0x10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} {
							if _, err := c.Write([]byte{b}); err != nil {
								return
							}
							time.Sleep(every)
						}
					})
				}
				_, _ = io.ReadAll(c)
				if d := time.Since(start); d != 10*time.Second {
					t.Errorf("closed after %v, want 10 s", d)
				}
				seen.want(t, events.KindRefused, "handshake_timeout")
			})
		})
	}
}

// faults.md row 47, E30: the excess of unregistered connections waits in accept and isn't refused; what has registered
// doesn't count. Those who have said nothing give way, one for each that comes.
func TestUnregisteredConnectionsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{MaxUnregistered: 3})
		closed := make(chan time.Time, 3)
		for range 3 {
			c := l.Dial()
			go func() {
				_, _ = c.Read(make([]byte, 1))
				closed <- time.Now()
			}()
		}
		var late sync.WaitGroup
		start := time.Now()
		for _, id := range []string{"a", "b"} {
			late.Go(func() {
				c := l.Dial() // waits for a token
				t.Cleanup(func() { _ = c.Close() })
				if resp, err := edgetest.Register(c, edgetest.Hello(id)); err != nil || !resp.GetAccepted() {
					t.Errorf("%s: %v, %v", id, resp, err)
				}
			})
		}
		synctest.Wait()
		if s := e.Server.Stats(); s.Accepted != 3 || s.Unregistered != 3 {
			t.Errorf("stats %+v", s)
		}
		late.Wait()
		if d := time.Since(start); d < 250*time.Millisecond || d > 260*time.Millisecond {
			t.Errorf("the excess was let in after %v, want 250 ms", d)
		}
		for i, want := range []time.Duration{250 * time.Millisecond, 10 * time.Second, 10 * time.Second} { // nobody needs two of the places
			if d := (<-closed).Sub(start); d < want || d > want+10*time.Millisecond {
				t.Errorf("silent connection %d was closed after %v, want %v", i, d, want)
			}
		}
	})
}

// One registration too many at a time waits for its turn; when its own time is up first, it is told to come again.
func TestHandshakesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		block := make(chan struct{})
		_, l, _ := inMemory(t, edgetest.Options{MaxHandshakes: 1, Payload: func(p *config.Projection) (*pb.NodeConfigPayload, error) {
			<-block
			return &pb.NodeConfigPayload{Projection: p.Number}, nil
		}})
		first := make(chan *pb.RegisterResponse, 1)
		go func() {
			c := l.Dial()
			t.Cleanup(func() { _ = c.Close() })
			resp, _ := edgetest.Register(c, edgetest.Hello("a"))
			first <- resp
		}()
		synctest.Wait()
		start := time.Now()
		conn, resp := register(t, l, edgetest.Hello("b"))
		wantRefused(t, conn, resp, pb.RegisterReason_REGISTER_REASON_HANDSHAKE_TIMEOUT)
		if d := time.Since(start); d != 10*time.Second || !resp.GetRetryable() {
			t.Errorf("after %v: %v", d, resp)
		}
		close(block)
		// Its own time was up as well, so its answer can't be written any more.
		if resp := <-first; resp.GetAccepted() {
			t.Errorf("answer %v", resp)
		}
	})
}

// Commit, then the answer: a failed write is fence(lost).
func TestAnswerThatCannotBeWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, seen := inMemory(t, edgetest.Options{})
		c := l.Dial()
		if err := link.WriteMessage(c, edgetest.Hello("a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the edge is writing its answer now
		if e.Registry.Current("a") == nil {
			t.Error("not committed before the answer")
		}
		_ = c.Close()
		seen.want(t, events.KindFenced, "lost")
		if e.Registry.Current("a") != nil {
			t.Error("still in the registry")
		}
	})
}

// An edge that ends closes what hasn't registered at once.
func TestEndClosesWhatHasNotRegistered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, l, _ := inMemory(t, edgetest.Options{})
		c := l.Dial()
		defer c.Close()
		start := time.Now()
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		wantClosed(t, c)
		if d := time.Since(start); d > time.Second {
			t.Errorf("ended after %v", d)
		}
		if l.Dial() != nil {
			t.Error("the listener still accepts")
		}
	})
}

// faults.md row 45: whatever bytes come, they are no registration, and the edge stays up.
func FuzzHello(f *testing.F) {
	whole, err := proto.Marshal(edgetest.Hello("nobody"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(whole))), whole...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0, 0, 0, 1, 0xff})
	f.Add([]byte{0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0})
	l := edgetest.Listen()
	e := edgetest.Start(f, edgetest.Options{Nodes: nodes("a"), Listener: l})
	f.Fuzz(func(t *testing.T, hello []byte) {
		c := l.Dial()
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, c)
		}()
		_, _ = c.Write(hello)
		_ = c.Close()
		<-read
		if len(e.Registry.Connections()) != 0 {
			t.Error("registered")
		}
	})
}
