//go:build e2e

package process

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// call is one raw HTTP request on a connection of its own, read by a goroutine of its own.
type call struct {
	name string
	conn *net.TCPConn
	done chan struct{} // closed at the end, whatever it is

	mu    sync.Mutex
	body  []byte
	times []time.Time // of each read of the body

	// after done
	status int
	header http.Header
	err    error // nil: a whole response; without a status, the connection ended before the head
	ended  time.Time
}

// callLimit bounds a call; nothing that a test waits for takes so long.
const callLimit = time.Minute

// begin sends a request as it is.
func begin(t *testing.T, dial dialer, addr, name, request string) *call {
	t.Helper()
	conn, err := dial.connect(addr)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	c := &call{name: name, conn: conn.(*net.TCPConn), done: make(chan struct{})}
	t.Cleanup(func() { conn.Close(); <-c.done })
	if err := conn.SetDeadline(time.Now().Add(callLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	method, _, _ := strings.Cut(request, " ")
	go c.read(method) // ends with the response or the connection
	return c
}

func (c *call) read(method string) {
	defer close(c.done)
	defer func() { c.ended = time.Now() }()
	response, err := http.ReadResponse(bufio.NewReader(c.conn), &http.Request{Method: method})
	if err != nil {
		c.err = err
		return
	}
	c.status, c.header = response.StatusCode, response.Header
	piece := make([]byte, 64<<10)
	for {
		n, err := response.Body.Read(piece)
		c.mu.Lock()
		if n > 0 {
			c.body, c.times = append(c.body, piece[:n]...), append(c.times, time.Now())
		}
		c.mu.Unlock()
		if err == io.EOF {
			c.conn.Close()
			return
		}
		if err != nil {
			c.err = err
			return
		}
	}
}

// text is the body so far.
func (c *call) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.body)
}

// longestGap is the longest time between two pieces of the body so far.
func (c *call) longestGap() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var gap time.Duration
	for i := 1; i < len(c.times); i++ {
		gap = max(gap, c.times[i].Sub(c.times[i-1]))
	}
	return gap
}

// awaitText waits until the body contains part.
func (c *call) awaitText(t *testing.T, part string) {
	t.Helper()
	eventually(t, limit, c.name+" has "+part, func() bool {
		select {
		case <-c.done:
			if !strings.Contains(c.text(), part) {
				t.Fatalf("%s ended before it had %q: %s", c.name, part, c)
			}
		default:
		}
		return strings.Contains(c.text(), part)
	})
}

// await waits for the end.
func (c *call) await(t *testing.T, within time.Duration) *call {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(within):
		t.Fatalf("%s has no end after %v; so far %d bytes", c.name, within, len(c.text()))
	}
	return c
}

// over reports whether the call has ended.
func (c *call) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// leave closes the caller's connection, with a reset or without.
func (c *call) leave(reset bool) {
	if reset {
		_ = c.conn.SetLinger(0) // an ended connection has nothing to reset
	}
	c.conn.Close()
}

// code is the stable code of an error answer.
func (c *call) code() string {
	var answer struct {
		Error struct {
			Code any `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal([]byte(c.text()), &answer) // an answer in no dialect has no code
	return fmt.Sprint(answer.Error.Code)
}

// String shows a call that has ended.
func (c *call) String() string {
	text := c.text()
	if len(text) > 300 {
		text = text[:200] + "…" + text[len(text)-100:]
	}
	return fmt.Sprintf("%s: status %d, error %v, %v, %q", c.name, c.status, c.err, c.header, text)
}

// whole fails the test unless the call is a whole 200 with all that the provider sent.
func (c *call) whole(t *testing.T) {
	t.Helper()
	if c.status != 200 || c.err != nil {
		t.Errorf("not whole: %s", c)
		return
	}
	if text := c.text(); text != jsonAnswer && !complete(text) {
		t.Errorf("a clean end of what isn't whole: %s", c)
	}
}

// cut fails the test unless the call is an aborted 200 whose bytes are the first of what the provider sent.
func (c *call) cut(t *testing.T) {
	t.Helper()
	if c.status != 200 || c.err == nil {
		t.Errorf("not cut: %s", c)
		return
	}
	if text, whole := strings.CutSuffix(c.text(), doneEvent); !whole && !beginning(text) {
		t.Errorf("bytes lost or changed: %s", c)
	}
}

// refused fails the test unless the call is an error answer with the status (0: any) and one of the codes.
func (c *call) refused(t *testing.T, status int, codes ...string) {
	t.Helper()
	if c.status != status && status != 0 || c.err != nil || !strings.Contains(" "+strings.Join(codes, " ")+" ", " "+c.code()+" ") {
		t.Errorf("want %d with %v: %s", status, codes, c)
	}
}

// complete reports whether text is a whole numbered stream.
func complete(text string) bool {
	text, ended := strings.CutSuffix(text, doneEvent)
	return ended && strings.HasSuffix(text, "\n\n") && beginning(text)
}

// beginning reports whether text is what a numbered stream begins with, cut anywhere.
func beginning(text string) bool {
	first, _, _ := strings.Cut(text, "\n\n")
	_, pad, _ := strings.Cut(first, `"pad":"`)
	padding := strings.Count(pad, "x")
	if first == text { // not one whole event: how long its padding would be isn't known
		padding = bulkPadding
		if strings.HasPrefix(events(1, 1, 0), text) {
			return true
		}
	}
	return strings.HasPrefix(events(1, strings.Count(text, "\n\n")+1, padding), text)
}

// chat is a request for a model; mode is the provider's.
func chat(model, mode string, headers ...string) string {
	return chatBody(fmt.Sprintf(`{"model":%q,"stream":%t,"messages":[{"role":"user","content":"%s"}]}`, model, mode != modeJSON, mode), headers...)
}

func chatBody(body string, headers ...string) string {
	lines := strings.Join(append(headers, ""), "\r\n")
	return fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s",
		len(body), lines, body)
}

// get returns the body of a 200 by a connection of its own.
func get(t *testing.T, dial dialer, addr, path string) []byte {
	t.Helper()
	body, err := tryGet(dial, addr, path)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func tryGet(dial dialer, addr, path string) ([]byte, error) {
	client := http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial.connect(addr) }}}
	response, err := client.Get("http://" + addr + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %d %v\n%s", path, response.StatusCode, err, bytes.TrimSpace(body))
	}
	return body, nil
}

func contextWithin(t *testing.T, within time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(background(t), within)
}
