package transport

import (
	"context"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	"iop/packages/go/patience"
)

// A reader that was cancelled in the middle of a frame reads on from there once it lingers, until the node has closed
// its side, and a cancel that comes later doesn't disturb it.
func TestLinger(t *testing.T) {
	begun, rest := make(chan struct{}), make(chan struct{})
	p := startTCP(t, func(s *Stream) {
		if _, err := s.ReadOpen(patience.Limit); err != nil {
			return
		}
		frame, _ := appendFrame(nil, accepted(1), MaxTunnelFrame)
		more, _ := appendFrame(frame, end(2, 0), MaxTunnelFrame)
		_, _ = s.send(more[:len(frame)+7])
		close(begun)
		<-rest
		_, _ = s.send(more[len(frame)+7:])
		lingerUntilEOF(s)
	})
	s := p.open(t, context.Background())
	if f, err := s.ReadTunnel(); err != nil || !proto.Equal(f.Msg, accepted(1)) {
		t.Fatalf("%v, %v", f, err)
	}
	<-begun
	read := make(chan error)
	go func() { _, err := s.ReadTunnel(); read <- err }()
	s.Cancel()
	if err := within(t, "the reader wakes", read); err != ErrCancelled {
		t.Fatalf("read: %v", err)
	}
	if _, err := s.ReadTunnel(); err != ErrCancelled {
		t.Fatalf("read after the cancel: %v", err)
	}
	s.Close()
	s.Linger()
	s.Cancel()
	close(rest)
	if f, err := s.ReadTunnel(); err != nil || !proto.Equal(f.Msg, end(2, 0)) {
		t.Fatalf("late: %v, %v", f, err)
	}
	if _, err := s.ReadTunnel(); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	if err := s.Write(tunnelOpen("r")); err != ErrCancelled {
		t.Fatalf("write: %v", err)
	}
	s.Release()
}

// A stream that lingers doesn't outlive its link, whichever comes first.
func TestLingerEndsWithTheLink(t *testing.T) {
	for _, downFirst := range []bool{false, true} {
		p := startTCP(t, lingerUntilEOF)
		s := p.open(t, context.Background())
		if downFirst {
			p.edge.Close(ReasonLost)
		}
		s.Linger()
		read := make(chan error)
		go func() { _, err := s.ReadTunnel(); read <- err }()
		p.edge.Close(ReasonLost)
		if err := within(t, "the reader wakes", read); err == nil {
			t.Error("something was read")
		}
	}
}
