package harness

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// Caller is a raw HTTP/1 caller on one TCP connection (CL of the cases). One goroutine uses it.
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
	c, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	c.t = t
	t.Cleanup(func() { c.Close() })
	return c
}

func dial(addr string) (*Caller, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Caller{TCPConn: conn.(*net.TCPConn)}
	c.reader = bufio.NewReaderSize(recorder{c}, 64<<10)
	return c, nil
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

// Post is an HTTP/1.1 POST with a JSON body and the extra header lines. A line that begins with "Host:" replaces the
// usual one.
func Post(path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\n", path)
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Host:") }) {
		b.WriteString("Host: localhost\r\n")
	}
	fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	for _, line := range headers {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n" + body)
	return b.String()
}

// Post sends what the function [Post] makes.
func (c *Caller) Post(path, body string, headers ...string) {
	c.t.Helper()
	c.Send(Post(path, body, headers...))
}

// Head reads one response's status line and header, within the limit. The body is for the caller to read, under the
// same limit.
func (c *Caller) Head(limit time.Duration, method string) *http.Response {
	c.t.Helper()
	response, err := c.head(limit, method)
	if err != nil {
		c.t.Fatalf("read the response: %v", err)
	}
	return response
}

func (c *Caller) head(limit time.Duration, method string) (*http.Response, error) {
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	return http.ReadResponse(c.reader, &http.Request{Method: method})
}

// Response reads one whole response within the limit; err is the body's read error (io.ErrUnexpectedEOF when cut).
func (c *Caller) Response(limit time.Duration) (response *http.Response, body []byte, err error) {
	c.t.Helper()
	response = c.Head(limit, http.MethodPost)
	body, err = io.ReadAll(response.Body)
	return response, body, err
}

// Expect reads exactly want from a response's body within the limit, and returns when the last of it came.
func (c *Caller) Expect(body io.Reader, want string, limit time.Duration) time.Time {
	c.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
		c.t.Fatal(err)
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(body, got); err != nil || string(got) != want {
		c.t.Fatalf("got %q (%v), want %q", shorten(got[:n]), err, shorten([]byte(want)))
	}
	return time.Now()
}

func shorten(p []byte) []byte { return p[:min(len(p), 300)] }

// Pieces returns what the socket gave so far, read by read.
func (c *Caller) Pieces() []Piece { return c.pieces }

// Raw returns every byte that the socket gave so far.
func (c *Caller) Raw() []byte {
	var all []byte
	for _, p := range c.pieces {
		all = append(all, p.Bytes...)
	}
	return all
}

// Reset closes the connection with RST.
func (c *Caller) Reset() {
	_ = c.SetLinger(0)
	c.Close()
}

// Answer is one whole response.
type Answer struct {
	*http.Response
	Bytes []byte
	Cut   error // the body's read error: io.ErrUnexpectedEOF when the response was aborted
	Raw   []byte
}

// Ask sends a request on a connection of its own and reads the whole answer, past 100 Continue. It may be called from
// any goroutine.
func Ask(addr, request string, limit time.Duration) (*Answer, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	// An edge that refuses may close before it has read all: its answer is there all the same.
	_, unsent := io.WriteString(c, request)
	method, _, _ := strings.Cut(request, " ")
	a := &Answer{}
	for a.Response == nil || a.StatusCode == http.StatusContinue {
		if a.Response, err = c.head(limit, method); err != nil {
			return nil, errors.Join(fmt.Errorf("read the response: %w", err), unsent)
		}
	}
	a.Bytes, a.Cut = io.ReadAll(a.Body)
	a.Raw = c.Raw()
	return a, nil
}

// Silent is a listener that nothing must reach (SINK of the cases).
type Silent struct{ net.Listener }

// NewSilent listens on a free port and fails the test at its end if anybody connected.
func NewSilent(t testing.TB) *Silent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("somebody connected to the silent listener, from %v", c.RemoteAddr())
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return &Silent{l}
}
