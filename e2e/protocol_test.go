package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"iop/e2e/harness"
	"iop/packages/go/transport"
	pb "iop/proto/iop"
)

// beside is a healthy node with a stream that must not notice what a test does to the edge.
type beside struct {
	*linked
	f        *feed
	c        *harness.Caller
	response io.Reader
	ticks    int
}

func newBeside(t *testing.T) *beside {
	t.Helper()
	b := &beside{f: newFeed(t)}
	b.linked = newLinked(t, 1, b.f.script, setup{Options: harness.Options{
		MoreNodes: harness.Record("other", "[{name: gpu, kind: loopback, max_concurrency: 100}]"),
		Routes:    `[{model: "*", nodes: [box]}, {model: fake, nodes: [other], target: m}]`}})
	b.c = b.dial()
	b.c.Send(chat())
	b.f.begin(t, "text/event-stream")
	b.response = b.c.Head(limit, "POST").Body
	return b
}

// tick lets the stream go on by one event.
func (b *beside) tick(t *testing.T) {
	t.Helper()
	b.ticks++
	text := delta(fmt.Sprint(b.ticks))
	b.f.chunk(t, text)
	b.c.Expect(b.response, text, limit)
}

// badFrames are prefixes and messages that no peer may send, with the stream's cap.
func badFrames(limit uint32) map[string][]byte {
	nested := []byte{}
	for range 12_000 { // groups of an unknown field, one in the other
		nested = protowire.AppendTag(nested, 99, protowire.StartGroupType)
	}
	return map[string][]byte{
		"2^32-1":       harness.Prefixed(math.MaxUint32, []byte("x")),
		"2^31-1":       harness.Prefixed(math.MaxInt32, []byte("x")),
		"cap + 1":      harness.Prefixed(limit+1, []byte("x")),
		"zero":         harness.Prefixed(0, nil),
		"no message":   harness.Prefixed(3, []byte{0xff, 0xff, 0xff}),
		"deep nesting": harness.Prefixed(uint32(len(nested)), nested),
	}
}

// allocated is how much memory was ever asked for. What a test itself needs is little.
func allocated(do func()) uint64 {
	before := heapEver()
	do()
	return heapEver() - before
}

// TU-28, E31, faults row 46, at the edge's control stream: the link of whoever sends this is closed within a second,
// nothing is reserved for what a prefix promises, and nobody else notices.
func TestBadControlFrames(t *testing.T) { // not parallel: it looks at the heap
	b := newBeside(t)
	fenced := 1
	grown := allocated(func() {
		for name, frame := range badFrames(transport.MaxControl) {
			mux, resp := rawNode(t, b.Edge, "other")
			ready(t, b.Edge, mux, resp)
			if err := mux.Send(harness.ControlStream, frame); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			between(t, name, mux.AwaitEnd(time.Second+late), 0, time.Second+late/2)
			awaitFenced(t, b.Edge, "other", "protocol", fenced, late)
			fenced++
			b.tick(t)
		}
	})
	if grown > 32<<20 {
		t.Errorf("%d MiB were allocated", grown>>20)
	}
	b.f.finish(t)
}

// TU-28, faults row 46, at the edge's work streams: the run of whoever answers this fails as protocol within a second,
// the link stays, and nobody else notices.
func TestBadWorkFrames(t *testing.T) { // not parallel: it looks at the heap
	b := newBeside(t)
	mux, resp := rawNode(t, b.Edge, "other")
	ready(t, b.Edge, mux, resp)
	accepted := harness.Framed(t, &pb.ProviderTunnelFrame{Seq: 1, Frame: &pb.ProviderTunnelFrame_Accepted{Accepted: &pb.Accepted{}}})
	head := harness.Framed(t, &pb.ProviderTunnelFrame{Seq: 2, Frame: &pb.ProviderTunnelFrame_Head{Head: &pb.TunnelHead{Status: 200}}})
	frames := badFrames(transport.MaxTunnelFrame)
	frames["a gap"] = harness.Framed(t, &pb.ProviderTunnelFrame{Seq: 9, Frame: &pb.ProviderTunnelFrame_Body{Body: []byte("x")}})
	frames["a run's event"] = harness.Framed(t, &pb.RunEvent{Seq: 3, Event: &pb.RunEvent_Complete{Complete: &pb.RunComplete{}}}) // E41
	before := 0
	grown := allocated(func() {
		for name, frame := range frames {
			for _, begin := range [][]byte{nil, accepted, append(bytes.Clone(accepted), head...)} {
				answer := make(chan *harness.Answer, 1)
				start := time.Now()
				go func() {
					a, err := harness.Ask(b.HTTP(), harness.Post(chatPath, `{"model":"fake","stream":true}`), limit)
					if err != nil {
						t.Error(err)
					}
					answer <- a
				}()
				id := nextStream(t, mux, &before)
				_ = mux.Write(harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagACK, Stream: id},
					harness.MuxFrame{Kind: harness.MuxData, Stream: id, Body: append(bytes.Clone(begin), frame...)})
				a := await(t, answer, "the answer")
				between(t, name, time.Since(start), 0, time.Second+late/2)
				switch {
				case a == nil:
				case len(begin) > len(accepted) && (a.StatusCode != 200 || a.Cut == nil):
					t.Errorf("%s after the head: %d, %v", name, a.StatusCode, a.Cut)
				case len(begin) <= len(accepted) && (a.StatusCode != 502 || code(a) != "protocol"):
					t.Errorf("%s: %d %s", name, a.StatusCode, a.Bytes)
				}
			}
			b.tick(t)
		}
	})
	if n := b.Node("other"); n.State == "offline" {
		t.Error("the link was closed")
	}
	if grown > 64<<20 {
		t.Errorf("%d MiB were allocated", grown>>20)
	}
	mux.Close()
	b.f.finish(t)
}

// nextStream waits for a further work stream with a tunnel's open.
func nextStream(t *testing.T, mux *harness.Mux, before *int) uint32 {
	t.Helper()
	var id uint32
	harness.Until(t, limit, "an open", func() bool {
		streams := mux.Streams()
		for ; *before < len(streams); *before++ {
			messages := mux.Messages(streams[*before])
			if len(messages) == 0 && streams[*before] != harness.ControlStream {
				return false
			}
			open := &pb.WorkOpen{}
			if streams[*before] != harness.ControlStream && proto.Unmarshal(messages[0], open) == nil && open.GetTunnel() != nil {
				id = streams[*before]
				*before++
				return true
			}
		}
		return false
	})
	return id
}

// TU-28, faults row 46, at the node: bad frames in the registration and on control end the connection within a second,
// and the node comes again; on a work stream they end that stream only.
func TestBadFramesAtTheNode(t *testing.T) { // not parallel: it looks at the heap
	edge := harness.NewFakeEdge(t)
	node := harness.StartNode(t, edge.Addr(), soon)
	grown := allocated(func() {
		for name, frame := range badFrames(transport.MaxRegisterResponse) {
			conn, _ := edge.Accept(limit)
			_, _ = conn.Write(frame)
			between(t, name+" as an answer", awaitClose(t, conn), 0, time.Second+late/2)
		}
		for name, frame := range badFrames(transport.MaxControl) {
			mux := rawEdge(t, edge, 7)
			_ = mux.Write(harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagACK, Stream: harness.ControlStream},
				harness.MuxFrame{Kind: harness.MuxData, Stream: harness.ControlStream, Body: frame})
			between(t, name+" on control", mux.AwaitEnd(time.Second+late), 0, time.Second+late/2)
		}
		mux := rawEdge(t, edge, 7)
		stream := uint32(2)
		for name, frame := range badFrames(transport.MaxOpen) {
			_ = mux.Open(stream)
			_ = mux.Send(stream, frame)
			harness.Until(t, time.Second+late, name+" as an open ends its stream", func() bool { return mux.Over(stream) })
			stream += 2
		}
		for name, frame := range badFrames(transport.MaxInput) {
			_ = mux.Open(stream)
			_ = mux.Send(stream, append(harness.Framed(t, harness.TunnelOpen(7, fmt.Sprint("run-", stream))), frame...))
			harness.Until(t, time.Second+late, name+" as input is answered", func() bool { return terminal(mux, stream).GetError() != nil })
			_ = mux.Write(harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagFIN, Stream: stream})
			stream += 2
		}
		if !served(t, mux, stream, 7) {
			t.Error("the node doesn't serve any more")
		}
	})
	if grown > 32<<20 {
		t.Errorf("%d MiB were allocated", grown>>20)
	}
	node.AwaitIdle(limit)
}

// rawEdge accepts a node's registration by hand and waits for its Ready.
func rawEdge(t *testing.T, edge *harness.FakeEdge, generation uint64) *harness.Mux {
	t.Helper()
	mux := harness.NewMux(t, edge.Register(limit, harness.Accepted(generation, 4)))
	harness.Until(t, limit, "the node says Ready", func() bool {
		for _, b := range mux.Messages(harness.ControlStream) {
			m := &pb.NodeControl{}
			if proto.Unmarshal(b, m) == nil && m.GetReady() != nil {
				return true
			}
		}
		return false
	})
	return mux
}

// awaitClose waits until a connection is closed by its other side and returns how long that took.
func awaitClose(t *testing.T, conn net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	_ = conn.SetReadDeadline(start.Add(limit))
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		t.Errorf("the connection is still open after %v", limit)
	}
	conn.Close()
	return time.Since(start)
}

// terminal is the last message of a tunnel that came so far, nil before there is one.
func terminal(mux *harness.Mux, stream uint32) *pb.ProviderTunnelFrame {
	messages := mux.Messages(stream)
	if len(messages) == 0 {
		return nil
	}
	m := &pb.ProviderTunnelFrame{}
	if proto.Unmarshal(messages[len(messages)-1], m) != nil {
		return nil
	}
	return m
}

const chatInput = `{"model":"loopback","stream":true,"messages":[{"role":"user","content":"loopback: tokens=2 delay=0s"}]}`

// served runs a whole tunnel by hand.
func served(t *testing.T, mux *harness.Mux, stream uint32, generation uint64) bool {
	t.Helper()
	_ = mux.Open(stream)
	_ = mux.Send(stream, append(harness.Framed(t, harness.TunnelOpen(generation, fmt.Sprint("run-", stream))), harness.InputFrames(t, chatInput)...))
	harness.Until(t, limit, "a terminal", func() bool {
		m := terminal(mux, stream)
		return m.GetEnd() != nil || m.GetError() != nil || m.GetRejected() != nil
	})
	_ = mux.Write(harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagFIN, Stream: stream})
	return terminal(mux, stream).GetEnd() != nil
}

// protocol.md §8 "ReadyAck races the first work": the edge's acknowledgement and its first open come in one write, in
// both orders.
func TestReadyAckRacesTheFirstWork(t *testing.T) {
	t.Parallel()
	edge := harness.NewFakeEdge(t)
	harness.StartNode(t, edge.Addr(), soon)
	for generation := uint64(1); generation <= 20; generation++ {
		mux := rawEdge(t, edge, generation)
		ack := harness.MuxFrame{Kind: harness.MuxData, Stream: harness.ControlStream, Body: harness.Framed(t, &pb.EdgeControl{
			Message: &pb.EdgeControl_ReadyAck{ReadyAck: &pb.ReadyAck{Projection: 1, Dispatchable: true}}})}
		work := []harness.MuxFrame{{Kind: harness.MuxWindow, Flags: harness.FlagSYN, Stream: 2},
			{Kind: harness.MuxData, Stream: 2, Body: append(harness.Framed(t, harness.TunnelOpen(generation, "first")), harness.InputFrames(t, chatInput)...)}}
		frames := append([]harness.MuxFrame{ack}, work...)
		if generation%2 == 0 {
			frames = append(work, ack)
		}
		if err := mux.Write(frames...); err != nil {
			t.Fatal(err)
		}
		harness.Until(t, limit, "the first work has ended", func() bool { return terminal(mux, 2).GetEnd() != nil })
		mux.Close()
	}
}

// Faults rows 45 and 49, E30, protocol.md §8 "multiplexer before authentication": what isn't a registration is closed
// within a second, whatever it is; a multiplexer is closed within its first frame, and costs nothing.
func TestStrangersAtTheNodePort(t *testing.T) { // not parallel: it looks at the heap
	b := newBeside(t)
	addr := b.Addr.Nodes.String()
	var yamux bytes.Buffer
	for id := uint32(1); id < 500; id += 2 {
		yamux.Write(harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagSYN, Stream: id}.Bytes())
		yamux.Write(harness.MuxFrame{Kind: harness.MuxData, Stream: id, Body: noise(1, 64<<10)}.Bytes())
	}
	strangers := map[string][]byte{
		"http":             []byte("GET / HTTP/1.1\r\nHost: edge\r\n\r\n"),
		"tls":              {0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
		"noise":            noise(45, 4096),
		"2^32-1":           harness.Prefixed(math.MaxUint32, nil),
		"cap + 1":          harness.Prefixed(transport.MaxRegisterRequest+1, nil),
		"zero":             harness.Prefixed(0, nil),
		"an open stream":   harness.MuxFrame{Kind: harness.MuxWindow, Flags: harness.FlagSYN, Stream: 1}.Bytes(),
		"data with a SYN":  harness.MuxFrame{Kind: harness.MuxData, Flags: harness.FlagSYN, Stream: 1, Body: []byte("x")}.Bytes(),
		"a ping":           harness.MuxFrame{Kind: harness.MuxPing, Flags: harness.FlagSYN}.Bytes(),
		"250 full streams": yamux.Bytes(),
	}
	before := heap()
	for name, text := range strangers {
		all(8, func(int) {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write(text) // the edge may have closed before all was written
			between(t, name, awaitClose(t, conn), 0, time.Second+late/2)
		})
		b.tick(t)
	}
	if grown := int64(heap()) - int64(before); grown > 4<<20 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	b.f.finish(t)
}

// Faults row 49, §2.A: a registered node may open its control stream and nothing else. Whoever does more is closed.
func TestStreamsThatANodeMustNotOpen(t *testing.T) {
	t.Parallel()
	b := newBeside(t)
	n := 0
	for name, frame := range map[string]harness.MuxFrame{
		"a second stream":         {Kind: harness.MuxWindow, Flags: harness.FlagSYN, Stream: 3},
		"control a second time":   {Kind: harness.MuxWindow, Flags: harness.FlagSYN, Stream: harness.ControlStream},
		"a stream of the edge's":  {Kind: harness.MuxWindow, Flags: harness.FlagSYN, Stream: 2},
		"an unknown kind":         {Kind: 9, Stream: 1},
		"more than the window":    {Kind: harness.MuxData, Stream: harness.ControlStream, Body: make([]byte, 3<<20)},
		"data on no stream (SYN)": {Kind: harness.MuxData, Flags: harness.FlagSYN, Stream: 5, Body: []byte("x")},
	} {
		mux, resp := rawNode(t, b.Edge, "other")
		ready(t, b.Edge, mux, resp)
		_ = mux.Write(frame)
		between(t, name, mux.AwaitEnd(time.Second+late), 0, time.Second+late/2)
		n++
		awaitFenced(t, b.Edge, "other", "protocol", n, late)
		b.tick(t)
	}
	b.f.finish(t)
}

// protocol.md §8 "duplicate rule", E29: a node that knows its edge by two addresses keeps one link. The other is refused
// as often as it tries, and doesn't disturb; when the one link is lost there is one again.
func TestOneEdgeByTwoAddresses(t *testing.T) {
	t.Parallel()
	e := harness.StartEdge(t, harness.Options{Timers: "{probe: 5m, handshake: 10m}"}) // a link that stands still isn't dead
	relays := []*harness.Relay{harness.NewRelay(t, e.Addr.Nodes.String()), harness.NewRelay(t, e.Addr.Nodes.String())}
	n := harness.StartNodeOn(t, harness.TokenOf("box"), []string{relays[0].Addr(), relays[1].Addr()},
		"{backoff_start: 50ms, backoff_max: 200ms}")
	e.AwaitReady("box")
	stays := func(tries int) {
		t.Helper()
		generation, refused := e.Node("box").Generation, countRefused(e)
		harness.Until(t, limit, "the second link is refused again and again", func() bool { return countRefused(e) >= refused+tries })
		if now := e.Node("box"); now.State != "ready" || now.Generation != generation {
			t.Errorf("the node is %s at %d, was at %d", now.State, now.Generation, generation)
		}
	}
	stays(1)
	serving := 0
	for _, l := range n.Status().Links {
		if l.State == "serving" {
			serving++
		}
	}
	if serving != 1 {
		t.Errorf("%d links serve", serving)
	}
	lost := e.Node("box").Generation
	for _, r := range relays {
		r.Reset()
	}
	comesBack(t, e, lost, limit)
	stays(1)
	if registered := len(events(e, "registered", "box")); registered > 3 {
		t.Errorf("%d registrations", registered)
	}
	if a := ask(t, e, chatInput); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.Bytes)
	}
	e.AwaitIdle(limit)
}
