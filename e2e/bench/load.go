package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// client is a plain HTTP/1.1 client on one kept connection that reads answers as a client does: it is strict, so that a
// cut or wrong answer counts as an error.
type client struct {
	addr   string
	conn   net.Conn
	reader *bufio.Reader
	body   []byte
}

// maxAnswer is the longest answer that is read as a chat answer.
const maxAnswer = 64 << 10

// reply is what one request gave.
type reply struct {
	firstByte time.Duration
	whole     time.Duration
	chunks    int // SSE data lines, [DONE] included
	bytes     int64
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// do sends request and reads the whole answer. sse wants a stream that ends in [DONE].
func (c *client) do(request []byte, sse bool) (reply, error) {
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			return reply{}, err
		}
		c.conn, c.reader = conn, bufio.NewReaderSize(conn, 64<<10)
	}
	began := time.Now()
	r, keep, err := c.exchange(request, sse, began)
	r.whole = time.Since(began)
	if err != nil || !keep {
		c.close()
	}
	return r, err
}

func (c *client) exchange(request []byte, sse bool, began time.Time) (r reply, keep bool, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return r, false, err
	}
	length, chunked, keep, err := c.head()
	if err != nil {
		return r, false, err
	}
	r.firstByte = time.Since(began)
	if !chunked {
		if length < 0 {
			return r, false, errors.New("the answer has neither a length nor chunks")
		}
		r.bytes = length
		if length > maxAnswer { // one big body
			_, err := io.CopyN(io.Discard, c.reader, length)
			return r, keep, unexpected(err)
		}
		c.body = slices.Grow(c.body[:0], int(length))[:length]
		if _, err := io.ReadFull(c.reader, c.body); err != nil {
			return r, false, unexpected(err)
		}
		if sse {
			return r, keep, errors.New("a stream came with a length")
		}
		var a chatAnswer
		if err := json.Unmarshal(c.body, &a); err != nil || len(a.Choices) != 1 || a.Choices[0].Message.Content != answer {
			return r, false, fmt.Errorf("the answer is %.200q: %v", c.body, err)
		}
		return r, keep, nil
	}
	done := false
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return r, false, unexpected(err)
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil {
			return r, false, err
		}
		if size == 0 {
			_, err := c.reader.ReadSlice('\n')
			if sse && !done {
				return r, false, errors.New("the stream ended without [DONE]")
			}
			return r, keep, unexpected(err)
		}
		if err := c.chunk(int(size), sse, &r, &done); err != nil {
			return r, false, unexpected(err)
		}
	}
}

// chunk reads one chunk; the lines of an SSE answer that the providers here send never cross a reader's buffer.
func (c *client) chunk(size int, sse bool, r *reply, done *bool) error {
	r.bytes += int64(size)
	for size > 0 {
		n := min(size, c.reader.Size())
		data, err := c.reader.Peek(n)
		if err != nil {
			return err
		}
		if sse {
			r.chunks += bytes.Count(data, []byte("data: "))
			*done = *done || bytes.Contains(data, []byte("data: [DONE]"))
		}
		if _, err := c.reader.Discard(n); err != nil {
			return err
		}
		size -= n
	}
	_, err := c.reader.Discard(2)
	return err
}

func (c *client) head() (length int64, chunked, keep bool, err error) {
	length, keep = -1, true
	for first := true; ; first = false {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return 0, false, false, unexpected(err)
		}
		line = bytes.TrimSpace(line)
		switch {
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")):
			rest, _ := c.reader.Peek(min(c.reader.Buffered(), 600))
			return 0, false, false, fmt.Errorf("answer %q …%s", line, rest)
		case len(line) == 0:
			return length, chunked, keep, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(bytes.ToLower(name)) {
		case "content-length":
			if length, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return 0, false, false, err
			}
		case "transfer-encoding":
			chunked = true
		case "connection":
			keep = !bytes.EqualFold(value, []byte("close"))
		}
	}
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// result sums up one slice of load.
type result struct {
	requests, errors, chunks int
	bytes                    int64
	seconds                  float64
	latencies, firsts        []time.Duration // sorted
	err                      error           // the first one
}

func (r *result) rps() float64       { return float64(r.requests) / r.seconds }
func (r *result) chunkRate() float64 { return float64(r.chunks) / r.seconds }
func (r *result) p(q float64) time.Duration {
	if len(r.latencies) == 0 {
		return 0
	}
	return r.latencies[min(len(r.latencies)-1, int(q*float64(len(r.latencies))))]
}

// add joins two slices of the same measurement.
func (r *result) add(other *result) {
	r.requests, r.errors, r.chunks = r.requests+other.requests, r.errors+other.errors, r.chunks+other.chunks
	r.bytes, r.seconds = r.bytes+other.bytes, r.seconds+other.seconds
	r.latencies = append(r.latencies, other.latencies...)
	r.firsts = append(r.firsts, other.firsts...)
	slices.Sort(r.latencies)
	slices.Sort(r.firsts)
	if r.err == nil {
		r.err = other.err
	}
}

// load runs concurrency clients against addr for about the given time; every client ends the request that it began.
func load(ctx context.Context, addr string, request []byte, sse bool, concurrency int, length time.Duration) *result {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	total := &result{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	for range concurrency {
		wg.Go(func() {
			c, mine := &client{addr: addr}, &result{}
			defer c.close()
			for ctx.Err() == nil {
				r, err := c.do(request, sse)
				if err != nil {
					mine.errors++
					mine.err = err
					continue
				}
				mine.requests++
				mine.chunks += r.chunks
				mine.bytes += r.bytes
				mine.latencies = append(mine.latencies, r.whole)
				mine.firsts = append(mine.firsts, r.firstByte)
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(mine)
		})
	}
	wg.Wait()
	total.seconds = time.Since(began).Seconds()
	return total
}

// open sends request and reads until the first chunk is there.
func (c *client) open(request []byte) error {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		return err
	}
	c.conn, c.reader = conn, bufio.NewReaderSize(conn, 4<<10)
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	if _, _, _, err := c.head(); err != nil {
		return err
	}
	_, err = c.reader.ReadSlice('\n')
	return unexpected(err)
}
