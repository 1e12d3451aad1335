package harness

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Caller is a raw HTTP/1 caller on one TCP connection (CL of the cases).
type Caller struct {
	*net.TCPConn
	t      testing.TB
	reader *bufio.Reader
	pieces []Piece
}

// Piece is what one read of the socket returned, and when.
type Piece struct {
	At    time.Time
	Bytes []byte
}

// Dial connects a caller; the connection ends with the test.
func Dial(t testing.TB, addr string) *Caller {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &Caller{TCPConn: conn.(*net.TCPConn), t: t}
	c.reader = bufio.NewReaderSize(recorder{c}, 64<<10)
	t.Cleanup(func() { conn.Close() })
	return c
}

// recorder notes the time of each read below the buffered reader.
type recorder struct{ c *Caller }

func (r recorder) Read(p []byte) (int, error) {
	n, err := r.c.TCPConn.Read(p)
	if n > 0 {
		r.c.pieces = append(r.c.pieces, Piece{At: time.Now(), Bytes: bytes.Clone(p[:n])})
	}
	return n, err
}

// Send writes text as it is.
func (c *Caller) Send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.TCPConn, text); err != nil {
		c.t.Fatalf("write the request: %v", err)
	}
}

// Post sends an HTTP/1.1 POST with a JSON body and the extra header lines.
func (c *Caller) Post(path, body string, headers ...string) {
	c.t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: edge.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(body))
	for _, line := range headers {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n" + body)
	c.Send(b.String())
}

// Head reads one response's status line and header, within the limit. The body is for the caller to read.
func (c *Caller) Head(limit time.Duration, method string) *http.Response {
	c.t.Helper()
	c.SetReadDeadline(time.Now().Add(limit))
	response, err := http.ReadResponse(c.reader, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("read the response: %v", err)
	}
	return response
}

// Response reads one whole response within the limit; err is the body's read error (io.ErrUnexpectedEOF when cut).
func (c *Caller) Response(limit time.Duration) (response *http.Response, body []byte, err error) {
	c.t.Helper()
	response = c.Head(limit, http.MethodPost)
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// Pieces returns what the socket gave so far, read by read.
func (c *Caller) Pieces() []Piece { return c.pieces }

// Reset closes the connection with RST.
func (c *Caller) Reset() {
	_ = c.SetLinger(0)
	c.Close()
}
