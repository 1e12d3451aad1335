package node

// A background run's end is told on each connection until the Edge has acknowledged it. What is still to be told is
// the journal's knowledge, which outlives this process; what was told on a connection is the session's.

// tellLocked notes that the end of a background run is told on this connection; it reports whether it wasn't before.
func (s *Session) tellLocked(runID string) bool {
	if s.told[runID] {
		return false
	}
	if s.told == nil {
		s.told = map[string]bool{}
	}
	s.told[runID] = true
	return true
}

// tellUnreported tells a new connection the ends that the Edge hasn't acknowledged. They follow its Ready.
func (s *Session) tellUnreported() {
	if !s.background {
		return
	}
	for _, row := range s.x.cfg.Journal.Unreported(s.x.cfg.Edge) {
		s.x.mu.Lock()
		news := s.x.serving == s && s.tellLocked(row.RunID)
		s.x.mu.Unlock()
		if news {
			s.link.SendRunEnded(rowToWire(&row))
		}
	}
}

// Acknowledged takes the Edge's word that it knows how these background runs ended. It reports whether that was
// negotiated. It only changes memory.
func (s *Session) Acknowledged(runIDs []string) bool {
	if !s.background {
		return false
	}
	s.x.mu.Lock()
	for _, id := range runIDs {
		delete(s.told, id)
	}
	s.x.mu.Unlock()
	s.x.cfg.Journal.Reported(s.x.cfg.Edge, runIDs...)
	return true
}
