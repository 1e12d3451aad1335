package transport

import (
	"container/list"
	"net"
	"sync"
	"time"
)

const (
	// patience is how long a connection may be silent while others wait to be accepted. A node sends its registration
	// with the end of TCP's own handshake, so that it is there before the connection is accepted, or a moment later.
	patience = 250 * time.Millisecond
	// roundTrip is how long one may be silent that has begun to speak TLS: its certificate and its registration come
	// after the edge's own.
	roundTrip = time.Second
	// nextLook is how long a place that becomes free by itself is waited for before another has to give way.
	nextLook = time.Millisecond
)

// crowd is the connections whose registration hasn't come yet, the oldest first. Anybody can open
// connections and say nothing: with 128 of them, opened again as they end, no node could register any more. So whoever
// has been silent longest gives way to who comes next, when there is no other room.
type crowd struct {
	mu   sync.Mutex
	list list.List // of *silentConn
}

type silentConn struct {
	net.Conn
	due  time.Time // when it has been silent for too long
	last bool      // it was due at an earlier look already
}

// enter takes in a connection whose read deadline is set, and which may be silent for that long. leave is called when
// what it was due to say was read, or wasn't.
func (c *crowd) enter(conn net.Conn, patience time.Duration) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.list.PushBack(&silentConn{Conn: conn, due: time.Now().Add(patience)})
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.list.Remove(e)
	}
}

// giveWay ends the wait for the registration that is overdue longest, if one is, and returns when to look again.
func (c *crowd) giveWay() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.first()
	if first == nil {
		return patience
	}
	s := first.Value.(*silentConn)
	if left := time.Until(s.due); left > 0 {
		return left
	}
	if !s.last { // this process may have stood still: what has come meanwhile is to be read first
		s.last = true
		return nextLook
	}
	c.list.Remove(first)
	_ = s.SetReadDeadline(time.Unix(1, 0)) // fails on a connection that is closed already
	return nextLook
}

// first returns who is due first; called with mu held. There are as many as unregistered connections may be open.
func (c *crowd) first() (first *list.Element) {
	for e := c.list.Front(); e != nil; e = e.Next() {
		if first == nil || e.Value.(*silentConn).due.Before(first.Value.(*silentConn).due) {
			first = e
		}
	}
	return first
}
