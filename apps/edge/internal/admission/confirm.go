package admission

import "time"

// confirmList holds the grants whose outcome is decided and whose end the node has yet to confirm. The limit is the
// same for all, so the order of arrival is the order of expiry and one timer is enough.
type confirmList struct {
	head, tail *Grant
	armed      bool // the timer will fire
}

func (l *confirmList) add(g *Grant) {
	g.prev = l.tail
	if l.tail == nil {
		l.head = g
	} else {
		l.tail.next = g
	}
	l.tail = g
}

// remove is a no-op for a grant that has expired and so left the list.
func (l *confirmList) remove(g *Grant) {
	if g.prev == nil && l.head != g {
		return
	}
	if g.prev == nil {
		l.head = g.next
	} else {
		g.prev.next = g.next
	}
	if g.next == nil {
		l.tail = g.prev
	} else {
		g.next.prev = g.prev
	}
	g.prev, g.next = nil, nil
}

func (s *Scheduler) awaitConfirmLocked(g *Grant) {
	s.unconfirmed.add(g)
	if !s.unconfirmed.armed {
		s.unconfirmed.armed = true
		time.AfterFunc(s.confirmLimit, s.checkConfirmed)
	}
}

// checkConfirmed tells of the connections that kept a place too long. Their holders stay until the fence: whether the
// execution is over, only the node knows.
func (s *Scheduler) checkConfirmed() {
	for _, c := range s.overdue() {
		if s.onUnconfirmed != nil {
			s.onUnconfirmed(c.node, c.generation)
		}
	}
}

func (s *Scheduler) overdue() []connKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	var late []connKey
	now := time.Now()
	for g := s.unconfirmed.head; g != nil; g = s.unconfirmed.head {
		if left := s.confirmLimit - now.Sub(g.decidedAt); left > 0 {
			time.AfterFunc(left, s.checkConfirmed)
			return late
		}
		s.unconfirmed.remove(g)
		if c := g.p.conn; !c.reported {
			c.reported = true
			late = append(late, c.key)
		}
	}
	s.unconfirmed.armed = false
	return late
}
