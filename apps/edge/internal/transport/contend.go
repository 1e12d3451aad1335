package transport

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"iop/apps/edge/internal/node"
	pb "iop/proto/iop"
)

func duplicate(text string) *node.Refusal {
	return &node.Refusal{Reason: pb.RegisterReason_REGISTER_REASON_DUPLICATE_CONNECTION, Text: text,
		RetryAfter: duplicateRetry}
}

// contend decides whether the candidate may replace old: at once when it is old's own process that comes back and
// names it, else when old shows no sign of life. Until settle is called no other candidate of the node can contend.
func (h *handshake) contend(ctx context.Context, old *node.Connection) (settle func(), err error) {
	settle, ok := h.s.cfg.Registry.Contend(h.rec.ID)
	if !ok {
		return nil, duplicate("another connection of this node is being decided on")
	}
	if !h.returns(old) {
		err = h.probe(ctx, old)
	}
	if err != nil {
		settle()
		return nil, err
	}
	return settle, nil
}

// returns reports whether old's own process instance comes back and names old: then it knows that old is over.
func (h *handshake) returns(old *node.Connection) bool {
	return h.req.GetLastGeneration() == old.Generation && [16]byte(h.req.GetInstanceId()) == old.InstanceID
}

// probe asks old for a sign of life. Nil = there was none: it may be replaced. Meanwhile the candidate has nothing to
// say: a byte from it, or its end, ends the registration.
func (h *handshake) probe(ctx context.Context, old *node.Connection) error {
	probe, cancel := context.WithTimeout(ctx, h.s.cfg.Timers.Probe)
	defer cancel()
	w := watch(h.conn, cancel)
	err := old.Link.Probe(probe)
	late := !time.Now().Before(h.deadline)
	quiet := w.stop(h.deadline)
	switch {
	case err == nil:
		return duplicate("the node is connected already, and that connection is alive")
	case late:
		return duplicate("the handshake's time was up before the old connection was decided on")
	case !quiet || ctx.Err() != nil:
		return errGone
	}
	return nil
}

// watcher reads a bare connection on which nothing is due.
type watcher struct {
	conn  net.Conn
	done  chan struct{}
	quiet bool // valid once done is closed: the read ended by its deadline
}

// watch starts reading; ended is called when the peer speaks, leaves or runs into the deadline. The goroutine ends by
// any of these or by stop.
func watch(conn net.Conn, ended func()) *watcher {
	w := &watcher{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		var b [1]byte
		n, err := conn.Read(b[:])
		w.quiet = n == 0 && errors.Is(err, os.ErrDeadlineExceeded)
		ended()
	}()
	return w
}

// stop ends the watch, so that nobody but the multiplexer reads from here on, and reports whether the peer was quiet.
func (w *watcher) stop(deadline time.Time) bool {
	_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	<-w.done
	return w.conn.SetReadDeadline(deadline) == nil && w.quiet
}
