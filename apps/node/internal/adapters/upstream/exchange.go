package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// exchange is one request and its answer. The caller's goroutine runs it; a body that doesn't fit in one write with
// the head is sent by a second one, so that an answer that comes before its end is seen. (HT-13)
type exchange struct {
	// Set once.
	pool *pool
	req  *execution.TunnelRequest
	own  bool   // a connection that nothing else has used and nothing else will
	path string // as the provider sees it; of a request with a credential

	// Owned by the caller's goroutine, out and rest by the sender while it runs.
	out    *[]byte       // the head, then pieces of the body
	cut    int           // where in the head the key belongs, 0 = the request has none
	rest   int64         // bytes of the body that aren't in out yet, -1 = unknown
	sender chan struct{} // closed when the sender has ended; nil = there is none
	passed int64         // bytes of the answer's body that the sink took
	unread bool          // the sink had enough, and what came after is still on the connection

	mu       sync.Mutex
	conn     *conn
	aborted  bool  // the context is done
	answered bool  // the answer's head is there
	wrote    bool  // a byte of the request may be on its way
	bodyErr  error // why the request's body couldn't be read
	writeErr error // why the provider didn't take the request
	closed   bool  // the request's body is closed
}

// Tunnel sends the request once and passes the answer on as it comes; [execution.Tunneler] has the contract. It always
// closes the request's body, if need be while it is read. The request's header isn't changed.
func (c *Client) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	x := &exchange{pool: c.pool, req: req}
	prefix, path := c.base.Join(req.Path)
	err := c.check(req)
	if err == nil && req.Credential != nil && !c.base.TLS {
		err = c.noKeyInPlain(req, prefix+path)
	}
	if err != nil {
		x.closeBody()
		return err
	}
	if req.Credential != nil {
		x.path = prefix + path
	}
	return x.run(ctx, sink, prefix, path)
}

// run does the whole exchange. The request goes to the concatenation of prefix and path.
func (x *exchange) run(ctx context.Context, sink execution.TunnelSink, prefix, path string) error {
	x.req = traced(ctx, x.req)
	x.out = x.pool.heads.Get().(*[]byte)
	*x.out, x.cut = appendHead((*x.out)[:0], x.req, prefix, path, x.pool.base.Host)
	stop := context.AfterFunc(ctx, x.abort)
	resp, err := x.open(ctx)
	if err == nil {
		err = x.pass(resp, sink)
	}
	// A stop that comes too late means that abort runs now or has run: that connection isn't kept.
	reuse := stop() && err == nil && !x.own && x.reusable(resp)
	if reuse {
		x.conn.streamed = len(resp.TransferEncoding) > 0
	}
	x.settle(reuse)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// open sends the request, or as much of it as must be sent before the provider answers, and reads the answer's head.
func (x *exchange) open(ctx context.Context) (*http.Response, error) {
	if err := x.fill(); err != nil {
		return nil, err
	}
	if err := x.connect(ctx); err != nil {
		return nil, err
	}
	if x.rest != 0 {
		x.sender = make(chan struct{})
		go x.send()
	} else {
		x.recycle() // the wait for an answer may be long, and there are many who wait
	}
	return x.readHead()
}

// connect finds a connection and writes what stands in out. A kept connection that took no byte is not used; that is
// the one case in which a request is written anew, and nothing of it has left.
func (x *exchange) connect(ctx context.Context) error {
	for {
		var c *conn
		if !x.own {
			c = x.pool.take()
		}
		if c == nil {
			var err error
			if c, err = x.pool.dial(ctx); err != nil {
				return err
			}
		}
		if !x.adopt(c) {
			return errAborted
		}
		if x.req.Credential != nil {
			return x.sendWithKey()
		}
		n, err := x.write(*x.out)
		switch {
		case err == nil:
			if x.rest == 0 {
				x.sent()
			}
			return nil
		case n == 0 && c.reused && x.pool.tls == nil && !x.isAborted():
			x.pool.distrust()
			x.drop()
		default:
			x.rest = 0
			x.failWrite(err)
			return nil // an answer may have come before the provider stopped reading
		}
	}
}

// errAborted never leaves the package: whoever sees it returns the context's cause.
var errAborted = errors.New("aborted")

// adopt makes c the exchange's connection, unless the exchange is over.
func (x *exchange) adopt(c *conn) bool {
	if c.reused {
		_ = c.SetDeadline(time.Time{})
	}
	x.mu.Lock()
	aborted := x.aborted
	if !aborted {
		x.conn = c
	}
	x.mu.Unlock()
	if aborted {
		x.pool.discard(c)
	}
	return !aborted
}

// drop gives up the connection; the exchange has none.
func (x *exchange) drop() {
	x.mu.Lock()
	c := x.conn
	x.conn = nil
	x.mu.Unlock()
	if c != nil {
		x.pool.discard(c)
	}
}

// abort ends the exchange from outside: the context is done.
func (x *exchange) abort() {
	x.mu.Lock()
	x.aborted = true
	c := x.conn
	x.mu.Unlock()
	if c != nil {
		c.abort()
	}
	x.closeBody()
}

func (x *exchange) isAborted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.aborted
}

// closeBody closes the request's body, once.
func (x *exchange) closeBody() {
	x.mu.Lock()
	first := !x.closed
	x.closed = true
	x.mu.Unlock()
	if first && x.req.Body != nil {
		_ = x.req.Body.Close()
	}
}

// pass gives the answer to the sink as it comes.
func (x *exchange) pass(resp *http.Response, sink execution.TunnelSink) error {
	httprules.HopByHop(resp.Header)
	if err := sink.Head(resp.StatusCode, resp.Header); err != nil {
		return err
	}
	usage := newObserver(resp.StatusCode, resp.Header)
	if err := x.passBody(resp, sink, usage); err != nil {
		return err
	}
	if u := usage.usage(); u.Known() {
		return sink.Usage(u)
	}
	return nil
}

// passBody gives each piece to the sink as it was read. A connection on which the last piece was small is probably a
// stream of tokens: it is waited for without a buffer of its own, so that many idle streams stay cheap.
func (x *exchange) passBody(resp *http.Response, sink execution.TunnelSink, usage *observer) error {
	c := x.conn
	for quiet := false; ; {
		if quiet && c.br.Buffered() == 0 {
			if _, err := c.br.Peek(1); err != nil && err != io.EOF {
				return x.bodyFailure(resp)
			}
		}
		n, err := x.passPiece(resp.Body, sink, usage)
		x.passed += int64(n)
		quiet = n < c.br.Size()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		default:
			return x.pieceFailure(resp, err)
		}
	}
}

// sinkError marks an error that came from the sink, to be handed back as it was.
type sinkError struct{ error }

func (x *exchange) passPiece(body io.Reader, sink execution.TunnelSink, usage *observer) (int, error) {
	buf := x.pool.pieces.Get().(*[]byte)
	defer x.pool.pieces.Put(buf)
	n, err := body.Read(*buf)
	if n == 0 {
		return 0, err
	}
	piece := (*buf)[:n]
	usage.write(piece)
	if err := sink.Body(piece); err != nil {
		return n, sinkError{err}
	}
	return n, err
}

func (x *exchange) pieceFailure(resp *http.Response, err error) error {
	if s, ok := err.(sinkError); ok {
		if errors.Is(s.error, ErrEnough) {
			x.readEnd(resp)
			return nil
		}
		return s.error
	}
	return x.bodyFailure(resp)
}

// reusable reports whether the connection may carry another request: the answer was whole and its end was known
// beforehand, nothing was left over, and the whole request was taken. After a chunked answer a connection is used
// again only on https://, where a handshake is worth more, and there only after a rest. (provider notes 1)
func (x *exchange) reusable(resp *http.Response) bool {
	return x.keepable(resp) && !x.unread && x.conn.br.Buffered() == 0
}

// keepable is what reusable asks before the answer's end.
func (x *exchange) keepable(resp *http.Response) bool {
	if resp.Close || !resp.ProtoAtLeast(1, 1) || resp.StatusCode >= 400 {
		return false
	}
	if len(resp.TransferEncoding) > 0 && x.pool.tls == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.bodyErr == nil && x.writeErr == nil
}

// settle keeps or closes the connection and returns when the sender has ended.
func (x *exchange) settle(reuse bool) {
	if x.sender != nil {
		select {
		case <-x.sender:
		default:
			// The answer is over, or nobody wants it: the rest of the request isn't sent.
			reuse = false
			x.conn.abort()
			x.closeBody()
			<-x.sender
		}
	}
	x.recycle()
	x.closeBody()
	if reuse {
		x.pool.put(x.conn)
		return
	}
	x.drop()
}

// recycle gives the request's buffer back, unless a large head made it grow.
func (x *exchange) recycle() {
	if x.out != nil && cap(*x.out) <= outSize {
		x.pool.heads.Put(x.out)
	}
	x.out = nil
}
