package fakeprovider

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Exchange is one request and the script's means to answer it. The script's goroutine owns it; what was set before the
// script ran, Received, Whole and Closed may be read from anywhere.
type Exchange struct {
	// Set once, before the script runs.

	Method string
	Target string // as on the request line
	Host   string
	Header http.Header
	Head   []byte // every byte of the request's head
	Number int    // 1 for the first request of its connection
	Conn   int    // which connection of the provider it came on, from 1

	provider *Provider
	conn     net.Conn
	br       *bufio.Reader
	request  *http.Request

	// Owned by the script.

	idle  time.Duration
	gone  chan struct{} // closed when the client has left
	woken chan struct{} // closed when the watcher of gone has ended

	mu       sync.Mutex
	received []byte
	whole    bool
	closed   bool
}

func readHead(p *Provider, t *tape, br *bufio.Reader, number int) (*Exchange, error) {
	t.read = append([]byte(nil), t.read[len(t.read)-br.Buffered():]...)
	req, err := http.ReadRequest(br)
	if err != nil {
		return nil, err
	}
	head := append([]byte(nil), t.read[:len(t.read)-br.Buffered()]...)
	return &Exchange{Method: req.Method, Target: req.RequestURI, Host: req.Host, Header: req.Header, Head: head,
		Number: number, Conn: t.number, provider: p, conn: t.Conn, br: br, request: req}, nil
}

// Body reads the rest of the request's body and returns all of it. A script that doesn't call it answers early.
func (x *Exchange) Body() []byte {
	x.ReadBody(-1)
	return x.Received()
}

// ReadBody reads up to n further bytes of the request's body, all of it if n is negative.
func (x *Exchange) ReadBody(n int) {
	buf := make([]byte, 32<<10)
	for n != 0 {
		limit := len(buf)
		if n > 0 {
			limit = min(limit, n)
		}
		k, err := x.request.Body.Read(buf[:limit])
		x.mu.Lock()
		x.received = append(x.received, buf[:k]...)
		x.whole = x.whole || err == io.EOF
		x.mu.Unlock()
		if err != nil {
			return
		}
		n -= k
	}
}

// Received returns what was read of the request's body.
func (x *Exchange) Received() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]byte(nil), x.received...)
}

// Whole reports whether the request's body was read to its end.
func (x *Exchange) Whole() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.whole
}

// Write sends bytes as they are.
func (x *Exchange) Write(p []byte) (int, error) { return x.conn.Write(p) }

// Print sends s as it is.
func (x *Exchange) Print(s string) { _, _ = io.WriteString(x.conn, s) }

// Begin sends a status line and headers, each a whole line without its end.
func (x *Exchange) Begin(status int, lines ...string) {
	x.Print(head(status, lines))
}

// BeginStream sends the head of a chunked answer.
func (x *Exchange) BeginStream(status int, contentType string, lines ...string) {
	x.Begin(status, append([]string{"Content-Type: " + contentType, "Transfer-Encoding: chunked"}, lines...)...)
}

// Chunk sends one chunk of a chunked body.
func (x *Exchange) Chunk(s string) { x.Print(fmt.Sprintf("%x\r\n%s\r\n", len(s), s)) }

// EndChunks ends a chunked body.
func (x *Exchange) EndChunks() { x.Print("0\r\n\r\n") }

// Reply reads the request's body and sends a whole answer in one write.
func (x *Exchange) Reply(status int, contentType, body string, lines ...string) {
	x.Body()
	lines = append([]string{"Content-Type: " + contentType, fmt.Sprintf("Content-Length: %d", len(body))}, lines...)
	x.Print(head(status, lines) + body)
}

func head(status int, lines []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %03d %s\r\n", status, http.StatusText(status))
	for _, line := range lines {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	return b.String()
}

// IdleLimit closes the connection when no further request comes within d of the script's return.
func (x *Exchange) IdleLimit(d time.Duration) { x.idle = d }

// Close ends the connection after what was written.
func (x *Exchange) Close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closed = true
	_ = x.conn.Close()
}

// Reset ends the connection with a TCP reset.
func (x *Exchange) Reset() {
	raw := x.conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	if t, ok := raw.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
		_ = t.Close()
	}
	x.Close()
}

// Closed reports whether the script closed the connection.
func (x *Exchange) Closed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.closed
}

// Gone is closed when the client has left, or the provider ends. The request's body is read first.
func (x *Exchange) Gone() <-chan struct{} {
	if x.gone != nil {
		return x.gone
	}
	x.Body()
	x.gone, x.woken = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(x.woken)
		// A further request stays in br; only the end of the connection (or stopWatch) is an error.
		if _, err := x.br.Peek(1); err != nil {
			close(x.gone)
		}
	}()
	return x.gone
}

// Pause waits for d and reports true, or false as soon as the client has left.
func (x *Exchange) Pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-x.Gone():
		return false
	case <-x.provider.done:
		return false
	}
}

// stopWatch ends the watcher of Gone, so that br can be read again.
func (x *Exchange) stopWatch() {
	if x.gone == nil {
		return
	}
	_ = x.conn.SetReadDeadline(time.Unix(1, 0))
	<-x.woken
	_ = x.conn.SetReadDeadline(time.Time{})
}
