package httpapi

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/dialect/openai"
	"iop/packages/go/execution"
)

const (
	// tellers is how many callers at once are told why their connection is refused; the others are just closed.
	tellers = 64
	// tellFor bounds how long one of them may take to hear it.
	tellFor = time.Second
)

// Bound returns l for server to serve, with at most so many connections open at once. One more is accepted and refused:
// left in the kernel's backlog it would look to its caller like an edge that doesn't answer, and with the descriptors
// used up no node could come in either. Without TLS it is told why, in HTTP. It is to be called before the server
// serves.
func Bound(server *http.Server, l net.Listener, most int, log zerolog.Logger) net.Listener {
	b := &bounded{Listener: l, most: most, tellFor: tellFor, plain: server.TLSConfig == nil, log: log, turn: make(chan struct{}, tellers)}
	before := server.ConnState
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateClosed || state == http.StateHijacked {
			b.left()
		}
		if before != nil {
			before(c, state)
		}
	}
	return b
}

// bounded is a listener on which one goroutine accepts.
type bounded struct {
	net.Listener
	most    int
	tellFor time.Duration
	plain   bool // without TLS
	log     zerolog.Logger
	turn    chan struct{}

	mu   sync.Mutex
	open int
	full bool // the last connection was refused
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil || b.enters() {
			return c, err
		}
		b.refuse(c)
	}
}

// enters counts a connection, unless there are too many. The log is told once for a row of refusals.
func (b *bounded) enters() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.full
	if b.full = b.open >= b.most; !b.full {
		b.open++
		return true
	}
	if !was {
		b.log.Warn().Int("open", b.open).Msg("as many connections of callers are open as limits.connections permits; more are refused")
	}
	return false
}

func (b *bounded) left() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open--
}

// refuse ends a connection that is one too many.
func (b *bounded) refuse(c net.Conn) {
	select {
	case b.turn <- struct{}{}:
		go func() { // ends within tellFor
			defer func() { <-b.turn }()
			b.tell(c)
		}()
	default:
		_ = c.Close()
	}
}

// tell answers a request that wasn't read, and reads of it what it takes for the answer to arrive: a close with
// something unread would be a reset, which overtakes it.
func (b *bounded) tell(c net.Conn) {
	defer c.Close()
	if !b.plain || c.SetDeadline(time.Now().Add(b.tellFor)) != nil {
		return
	}
	const status = http.StatusServiceUnavailable
	body := openai.Chat().EncodeError(status, crowded(), "")
	_, err := fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: %d\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), len(body), int(defaultRetryAfter/time.Second), body)
	if half, ok := c.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, 64<<10) // until the caller closes, or its time is over
	}
}

// crowded is why a caller is refused when there are too many of them.
func crowded() *execution.Failure {
	return execution.Failf(execution.CodeOverloaded, execution.OriginEdge,
		"too many connections or requests of callers at once (limits.connections); try again later")
}
