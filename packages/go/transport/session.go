package transport

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/rs/zerolog"
)

const (
	// acceptBacklog is a constant of the protocol: over it the multiplexer resets streams from within its receive loop.
	acceptBacklog = 1024
	// streamWindow is what a slow reader may cost, doubled.
	streamWindow = 1 << 20
)

// newSession starts the multiplexer. The node is the client, so that the control stream, the first that it opens, has
// number 1.
func (l *Link) newSession() (*yamux.Session, error) {
	cfg := &yamux.Config{
		AcceptBacklog:     acceptBacklog,
		EnableKeepAlive:   false, // heartbeats are ours
		KeepAliveInterval: time.Minute,
		// A send queue that stands still this long ends the link; it can't while conn.Write never waits.
		ConnectionWriteTimeout: l.cfg.Dead,
		MaxStreamWindowSize:    streamWindow,
		StreamOpenTimeout:      0, // its expiry would end the session, and it costs a goroutine a stream
		StreamCloseTimeout:     l.cfg.StreamReset,
		Logger:                 muxLog{l.cfg.Log},
	}
	if l.edge != nil {
		return yamux.Server(l.conn, cfg)
	}
	return yamux.Client(l.conn, cfg)
}

// muxLog is the multiplexer's logger. What it says concerns single frames of streams that are gone, or an error that
// the link reports by itself: debug.
type muxLog struct{ log zerolog.Logger }

// Print implements yamux.Logger.
func (m muxLog) Print(v ...any) { m.log.Debug().Msg(fmt.Sprint(v...)) }

// Printf implements yamux.Logger.
func (m muxLog) Printf(format string, v ...any) { m.log.Debug().Msgf(format, v...) }

// Println implements yamux.Logger.
func (m muxLog) Println(v ...any) { m.log.Debug().Msg(fmt.Sprint(v...)) }

// opener hands streams from the one goroutine that opens them to whoever asked: opening waits in the multiplexer's
// queue and can't be given up, asking can.
type opener struct{ asks chan ask }

// ask is one caller's. The answer has a channel of its own: a caller that is given up between asking and waiting must not
// take the stream of the next one, who would then wait for nothing.
type ask struct {
	ctx    context.Context
	opened chan *yamux.Stream
}

func newOpener() opener { return opener{asks: make(chan ask)} }

// Open opens a work stream; edge only. It waits for the link's opener no longer than ctx: then it returns ctx's error,
// and a stream that was opened too late is closed again. The peer sees the stream with its first frame at the latest.
func (l *Link) Open(ctx context.Context) (*Stream, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	a := ask{ctx, make(chan *yamux.Stream)}
	select {
	case l.asks <- a:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.down:
		return nil, l.Err()
	}
	select {
	case m := <-a.opened:
		return l.adopt(m), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.down:
		return nil, l.Err()
	}
}

// openLoop is the one opener.
func (l *Link) openLoop(session *yamux.Session) {
	for {
		var a ask
		select {
		case a = <-l.asks:
		case <-l.down:
			return
		}
		m, err := session.OpenStream()
		if err != nil {
			l.sessionFailed(err)
			return
		}
		select {
		case a.opened <- m:
		case <-a.ctx.Done():
			// Not kept for the next caller: the peer knows the stream by now, and gives one up on which nothing comes.
			l.adopt(m).Close()
		case <-l.down:
			return
		}
	}
}

// adopt makes a stream of ours of the multiplexer's.
func (l *Link) adopt(m *yamux.Stream) *Stream {
	s := newStream(l, m)
	l.conn.register(m.StreamID(), &s.flow)
	l.mu.Lock()
	l.streams[m.StreamID()] = s
	ended := l.ended != nil
	l.mu.Unlock()
	if ended {
		s.wakeAll()
	}
	return s
}

// reap queues a stream for the reaper; after the link's end there is nothing to do.
func (l *Link) reap(s *Stream) {
	l.mu.Lock()
	if l.ended == nil {
		l.closing = append(l.closing, s)
	}
	l.mu.Unlock()
	select {
	case l.reaping <- struct{}{}:
	default:
	}
}

// reapLoop closes streams: that waits in the multiplexer's queue, which on a congested link takes seconds that no
// handler has.
func (l *Link) reapLoop() {
	for {
		l.mu.Lock()
		closing := l.closing
		l.closing = nil
		l.mu.Unlock()
		for _, s := range closing {
			_ = s.mux.Close()
			l.conn.unregister(s.mux.StreamID())
			l.mu.Lock()
			delete(l.streams, s.mux.StreamID())
			l.mu.Unlock()
		}
		if len(closing) > 0 {
			continue
		}
		select {
		case <-l.reaping:
		case <-l.down:
			return
		}
	}
}

// openControl opens the control stream; node only.
func (l *Link) openControl(session *yamux.Session, written chan<- struct{}) {
	m, err := session.OpenStream()
	if err != nil {
		l.sessionFailed(err)
		return
	}
	l.startControl(m, written)
}

// acceptControl takes the control stream; edge only. It is the first and only stream that a node may open.
func (l *Link) acceptControl(session *yamux.Session, written chan<- struct{}) {
	for first := true; ; first = false {
		m, err := session.AcceptStream()
		switch {
		case err != nil:
			l.sessionFailed(err)
			return
		case !first || m.StreamID() != controlStream:
			l.end(&LinkError{Reason: ReasonProtocol, Text: "the node opened a stream beside its control stream"})
			return
		}
		l.startControl(m, written)
	}
}

// acceptWork hands work streams to their handlers and does nothing else; node only.
func (l *Link) acceptWork(session *yamux.Session) {
	for {
		m, err := session.AcceptStream()
		if err != nil {
			l.sessionFailed(err)
			return
		}
		s := l.adopt(m)
		l.running.Go(func() {
			defer s.Close()
			l.node.Work(s)
		})
	}
}

// sessionFailed ends the link. Had the connection failed, the link would have learned of it before the multiplexer did;
// so the multiplexer ended the session by itself, because the peer broke its protocol. (There is no other way in which
// accepting fails, and for opening only two that don't happen: a send queue that stands still, and 2^31 streams.)
func (l *Link) sessionFailed(err error) {
	switch err {
	case yamux.ErrConnectionWriteTimeout:
		l.end(&LinkError{Reason: ReasonDead, Text: "the multiplexer's send queue stood still", Err: err})
	case yamux.ErrStreamsExhausted:
		l.end(&LinkError{Reason: ReasonClosed, Text: err.Error(), Err: err})
	default:
		l.end(&LinkError{Reason: ReasonProtocol, Text: errSession.Error() + ": " + err.Error(), Err: err})
	}
}

func (l *Link) startControl(stream muxStream, written chan<- struct{}) {
	close(l.ready)
	w := &controlWriter{link: l, stream: stream}
	l.running.Go(func() {
		defer close(written)
		w.run()
	})
	l.running.Go(func() { l.readControl(stream) })
}
