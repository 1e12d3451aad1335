package transport

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

// A node whose write waits for a slow reader is interrupted: nothing is lost or sent twice, and the terminal follows.
func TestInterruptKeepsWhatIsPending(t *testing.T) {
	written, resume := make(chan int, 1), make(chan struct{})
	interrupt, ended := make(chan *Stream, 1), make(chan error, 1)
	p := startTCP(t, func(s *Stream) {
		piece := bytes.Repeat([]byte("x"), MaxBody)
		interrupt <- s
		n := 0
		for seq := uint64(1); ; seq++ {
			if err := s.AppendBody(seq, piece); err != nil {
				t.Error(err)
			}
			n++
			if err := s.Flush(); err != nil {
				if !errors.Is(err, ErrInterrupted) {
					t.Errorf("interrupted write: %v", err)
				}
				if err := s.Flush(); !errors.Is(err, ErrInterrupted) {
					t.Errorf("a write before Resume: %v", err)
				}
				break
			}
		}
		written <- n
		<-resume
		s.Resume()
		ended <- s.Write(end(uint64(n)+1, n*MaxBody))
		lingerUntilEOF(s)
	})
	s := p.open(t, context.Background())
	defer s.Close()
	node := within(t, "work", interrupt)
	eventually(t, "the node's write waits for window", func() bool {
		return p.node.Status().Pending == 0 && p.node.Status().BytesOut > streamWindow
	})
	node.Interrupt()
	node.Interrupt()
	n := within(t, "the interrupted write returns", written)
	close(resume)
	got := 0
	for {
		f, err := s.ReadTunnel()
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		if f.Msg != nil {
			if want := int64(n * MaxBody); f.Msg.GetEnd().GetBytes() != want || got != int(want) {
				t.Errorf("end says %d, got %d, want %d", f.Msg.GetEnd().GetBytes(), got, want)
			}
			break
		}
		got += len(f.Body)
	}
	// The end may be here before its writer is told, and a link that is over then is an error to it.
	if err := within(t, "the terminal is written", ended); err != nil {
		t.Errorf("terminal after Resume: %v", err)
	}
}

// Cancel stands over Interrupt: nothing resumes after it.
func TestResumeAfterCancelDoesNothing(t *testing.T) {
	done := make(chan error, 1)
	p := startTCP(t, func(s *Stream) {
		s.Interrupt()
		s.Cancel()
		s.Resume()
		done <- s.Write(end(1, 0))
	})
	s := p.open(t, context.Background())
	defer s.Close()
	if err := within(t, "the write", done); !errors.Is(err, ErrCancelled) {
		t.Errorf("write after cancel: %v, want ErrCancelled", err)
	}
}
