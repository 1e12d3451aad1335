package transport

import "errors"

// ErrInterrupted says that a write was interrupted; what it didn't write is still pending.
var ErrInterrupted = errors.New("write interrupted")

// Interrupt wakes a write that waits for the peer's reader and makes it, and every one that follows, return
// [ErrInterrupted] until Resume. Unlike Cancel it loses nothing, so that a terminal can still follow what was sent in
// part. It may be called from anywhere; reads go on.
func (s *Stream) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.woken || s.interrupted {
		return
	}
	s.haltLocked()
	_ = s.mux.SetWriteDeadline(past())
}

// Resume lets writes go on after Interrupt; the next one begins with what is pending. After Cancel it does nothing.
func (s *Stream) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.interrupted && !s.cancelled() {
		s.interrupted = false
		s.halt = make(chan struct{})
	}
}

// haltLocked wakes a write that waits at the gate.
func (s *Stream) haltLocked() {
	if !s.interrupted {
		s.interrupted = true
		close(s.halt)
	}
}

// halting returns what a write has to listen to.
func (s *Stream) halting() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.halt
}

// halted says why the gate sent a write away.
func (s *Stream) halted(err error) error {
	if err == ErrCancelled && !s.cancelled() {
		return ErrInterrupted
	}
	return err
}
