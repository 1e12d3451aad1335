package transport

import (
	"bytes"
	"testing"
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

// Pings are found wherever the reads cut the frames, and nothing else is taken for one.
func TestFrameWatch(t *testing.T) {
	sound := bytes.Join([][]byte{
		rawHead(frameWindow, flagSYN, 2, 1<<20),
		dataFrame(2, 3, framePing),
		rawHead(frameData, flagSYN, 4, 0),
		dataFrame(1, 500, framePing),
		rawHead(3, 0, 0, 0), // GoAway
		rawHead(frameWindow, 0, 2, framePing),
	}, nil)
	ping := append(bytes.Clone(sound), rawHead(framePing, 2, 0, 7)...)
	for size := 1; size <= len(ping); size++ {
		for name, text := range map[string][]byte{"sound": sound, "ping": ping} {
			var w frameWatch
			var err error
			for rest := text; len(rest) > 0 && err == nil; rest = rest[min(size, len(rest)):] {
				err = w.take(rest[:min(size, len(rest))])
			}
			if (err == errPing) != (name == "ping") {
				t.Fatalf("%s in pieces of %d: %v", name, size, err)
			}
		}
	}
}
