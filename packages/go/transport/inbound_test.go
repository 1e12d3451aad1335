package transport

import (
	"bytes"
	"testing"

	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

// What a peer can make the multiplexer spend must be bounded: it takes a goroutine for each ping, and the protocol has
// none, so the first one ends the link.
func TestPingEndsTheLink(t *testing.T) {
	l, done, session, _ := rawNode(t)
	go func() { _, _ = session.Ping() }() // ends with the session
	<-done
	if e, _ := reasonOf(t, l); e.Reason != ReasonProtocol || e.Err != nil {
		t.Errorf("%+v", e)
	}
}

// Whatever the reads are, frames are given out whole and in order, but for those that don't fit the buffer. A ping is
// found wherever the reads cut it, and nothing else is taken for one.
func TestInbound(t *testing.T) {
	sound := bytes.Join([][]byte{
		rawHead(frameWindow, flagSYN, 2, 1<<20),
		dataFrame(2, 3, framePing),
		rawHead(frameData, flagSYN, 4, 0),
		dataFrame(1, 500, framePing),
		rawHead(3, 0, 0, 0), // GoAway
		dataFrame(2, 2*readBuffer, 7),
		dataFrame(2, readBuffer-headerLen, 8),
		rawHead(frameWindow, 0, 2, framePing),
	}, nil)
	ping := append(bytes.Clone(sound), rawHead(framePing, 2, 0, 7)...)
	for _, size := range []int{1, 2, 11, 12, 13, 500, 4096, readBuffer, len(ping)} {
		for name, text := range map[string][]byte{"sound": sound, "ping": ping} {
			var in inbound
			var got []byte
			var err error
			for rest := text; len(rest) > 0 && err == nil; {
				n := copy(in.room(), rest[:min(size, len(rest))])
				rest = rest[n:]
				for err = in.took(n); in.whole > 0; {
					p := make([]byte, 700)
					got = append(got, p[:in.give(p)]...)
				}
			}
			if (err == errPing) != (name == "ping") || !bytes.Equal(got, sound) {
				t.Fatalf("%s in pieces of %d: %v, %d bytes of %d", name, size, err, len(got), len(sound))
			}
		}
	}
}

// A link that goes silent in the middle of a frame doesn't hold who reads its stream: a cancel wakes him as ever. (The
// multiplexer holds the stream's lock while it reads a body; found by e2e/sim, seed 1.)
func TestCancelInTheMiddleOfAFrame(t *testing.T) {
	edge, node := tcpPair(t)
	l := NewEdgeLink(edge, testConfig(), edgeSide{newHandler(nil)})
	go l.Run(t.Context()) // ends with the test
	if _, err := node.Write(rawHead(frameWindow, flagSYN, controlStream, 0)); err != nil {
		t.Fatal(err)
	}
	s, err := l.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(&pb.WorkOpen{ConnectionGeneration: 1}); err != nil {
		t.Fatal(err)
	}
	first := mustFrame(t, &pb.RunEvent{Seq: 1, Event: &pb.RunEvent_Accepted{Accepted: &pb.Accepted{}}})
	cut := append(rawHead(frameWindow, flagACK, 2, 0), append(rawHead(frameData, 0, 2, uint32(len(first))), first...)...)
	if _, err := node.Write(append(cut, dataFrame(2, 1000, 0)[:500]...)); err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 2)
	go func() {
		for range 2 {
			_, err := s.ReadEvent()
			read <- err
		}
	}()
	if err := patience.Receive(t, "the whole frame", read); err != nil {
		t.Fatal(err)
	}
	s.Cancel()
	if err := patience.Receive(t, "the read's end", read); err == nil {
		t.Error("half a frame was read")
	}
}
