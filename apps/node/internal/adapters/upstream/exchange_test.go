package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// canned is a connection on which an answer has arrived.
type canned struct {
	net.Conn
	io.Reader
	closed bool
}

func (c *canned) Read(p []byte) (int, error)       { return c.Reader.Read(p) }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }
func (c *canned) SetDeadline(time.Time) error      { return nil }

func (c *canned) Close() error {
	c.closed = true
	return nil
}

// received returns an exchange whose provider has sent answer.
func received(t *testing.T, answer io.Reader) *exchange {
	t.Helper()
	client, err := New(Config{BaseURL: "http://h"})
	if err != nil {
		t.Fatal(err)
	}
	nc := &canned{Reader: answer}
	c := &conn{Conn: nc, tcp: nc}
	c.br = bufio.NewReader(c)
	x := &exchange{pool: client.pool, req: &execution.TunnelRequest{Method: "POST", Timers: execution.Timers{Idle: time.Minute}}}
	x.adopt(c)
	return x
}

// HT-13: what the provider said before it stopped reading isn't thrown away because it stopped reading.
func TestAnswerIsReadAfterTheRequestFailed(t *testing.T) {
	x := received(t, strings.NewReader("HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"))
	x.failWrite(errors.New("broken pipe"))
	resp, err := x.readHead()
	if err != nil || resp.StatusCode != 413 || x.conn.Conn.(*canned).closed {
		t.Fatal(resp, err)
	}
	if x.reusable(resp) {
		t.Error("a connection that took half a request would be used again")
	}
}

// choking is a connection that takes part of a write and then fails.
type choking struct {
	net.Conn
	takes int
}

func (c *choking) Write(p []byte) (int, error) {
	n, _ := c.Conn.Write(p[:c.takes])
	return n, syscall.EPIPE
}

// protocol §1.4, design §7: a kept connection that took nothing is replaced; one that took a byte is the request's last.
func TestNothingIsSentAgainOnceAByteWasTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, takes := range []int{0, 1} {
		client, err := New(Config{BaseURL: "http://" + l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		client.pool.keep = time.Minute
		kept, err := client.pool.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		kept.Conn = &choking{kept.Conn, takes}
		client.pool.put(kept)

		out := []byte("POST / HTTP/1.1\r\n\r\n")
		x := &exchange{pool: client.pool, req: &execution.TunnelRequest{Method: "POST"}, out: &out}
		if err := x.connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if replaced := x.conn != kept; replaced != (takes == 0) || (x.writeErr == nil) != replaced {
			t.Errorf("%d bytes taken: replaced %v, error %v", takes, replaced, x.writeErr)
		}
		x.settle(false)
	}
}

// nothing is a sink that takes all.
type nothing struct{}

func (nothing) Head(int, http.Header) error { return nil }
func (nothing) Body([]byte) error           { return nil }
func (nothing) Usage(execution.Usage) error { return nil }

// perf §6: a piece of the body costs no allocation of ours.
func TestPiecesCostNoAllocation(t *testing.T) {
	if racing {
		t.Skip("under the race detector pools forget what they are given")
	}
	const pieces = 2000
	answer := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" +
		strings.Repeat("9\r\ndata: 1\n\n\r\n", pieces) + "0\r\n\r\n"
	run := func() {
		x := received(t, &stepwise{strings.NewReader(answer)})
		resp, err := x.readHead()
		if err == nil {
			err = x.pass(resp, nothing{})
		}
		if err != nil || x.passed != 9*pieces {
			t.Fatal(err, x.passed)
		}
	}
	patience.Allocations(t, pieces/10, 10, run)
}

// stepwise reads as a stream of tokens arrives: one chunk at a time.
type stepwise struct{ *strings.Reader }

func (s *stepwise) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), 14)]) }
