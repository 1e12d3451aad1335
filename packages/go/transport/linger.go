package transport

import "time"

// Linger lets one goroutine read on after Close although the stream was cancelled, until the peer has closed its side
// too or the stream is reset: what comes late still tells what became of the open. Call it when the goroutine that read
// before has returned from its last read, however that one ended. Writes stay cancelled, and a later Cancel does
// nothing.
func (s *Stream) Linger() {
	s.Cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link.isDown() { // from then on nothing may be extended; who looks too early is woken with everybody else
		return
	}
	s.lingers.Store(true)
	_ = s.mux.SetReadDeadline(time.Time{})
}

// deaf reports whether reads are over by this side's own doing.
func (s *Stream) deaf() bool { return s.cancelled() && !s.lingers.Load() }

// Release gives the reader's buffer back once nothing more is to be read; what is still in it is gone. Only the reading
// goroutine may call it. A read that fails does it by itself, unless the stream was cancelled.
func (s *Stream) Release() { s.in.release() }
