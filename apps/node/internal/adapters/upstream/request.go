package upstream

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// check refuses a request before anything is sent: what the edge should have refused is refused again.
func (c *Client) check(req *execution.TunnelRequest) error {
	if err := httprules.CheckMethod(req.Method); err != nil {
		return refused(err.Error())
	}
	if err := httprules.CheckTarget(req.Path, req.Query); err != nil {
		return refused(err.Error())
	}
	if !c.allow.allows(req.Path) {
		return refused("path is not one that this adapter passes on; its allow_paths can name more")
	}
	if req.Credential != nil && httprules.QueryHasKey(req.Query) {
		return refused("the query has a key in it; the key for this provider is put in by IOP, leave yours out")
	}
	if err := httprules.CheckHeader(req.Header); err != nil {
		return refused(err.Error())
	}
	return nil
}

func refused(text string) error {
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: text, NothingSent: true}
}

// appendHead appends the request's head. Host and framing are this hop's own; of the caller's headers those go that
// may reach a provider, in a fixed order.
//
// A request with a credential has its field last; cut is where the key belongs, which isn't in the head. Without one cut
// is 0.
func appendHead(dst []byte, req *execution.TunnelRequest, prefix, path, host string) (head []byte, cut int) {
	dst = append(dst, req.Method...)
	dst = append(dst, ' ')
	dst = append(dst, prefix...)
	dst = append(dst, path...)
	if req.Query != "" {
		dst = append(dst, '?')
		dst = append(dst, req.Query...)
	}
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	dst = append(dst, "\r\n"...)
	dst = appendHeaders(dst, req)
	switch {
	case req.Body != nil && req.ContentLength < 0:
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	case req.Body != nil && req.ContentLength > 0 || wantsLength(req.Method):
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, max(req.ContentLength, 0), 10)
		dst = append(dst, "\r\n"...)
	}
	if req.Credential != nil {
		dst = appendCredential(dst, req.Credential)
		cut = len(dst)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...), cut
}

// wantsLength reports whether a request without a body says so.
func wantsLength(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

func appendHeaders(dst []byte, req *execution.TunnelRequest) []byte {
	h := req.Header
	goes := httprules.ForProvider
	if req.Credential != nil {
		goes = besideKey(req.Credential)
		dst = append(dst, "Accept-Encoding: identity\r\n"...)
	}
	if len(h["Connection"]) > 0 { // whoever sent it to us should have obeyed it
		h = h.Clone()
		httprules.HopByHop(h)
	}
	var stack [24]string
	names := stack[:0]
	for name := range h {
		if goes(name) && http.CanonicalHeaderKey(name) != "Content-Length" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range h[name] {
			dst = append(dst, name...)
			dst = append(dst, ": "...)
			dst = append(dst, value...)
			dst = append(dst, "\r\n"...)
		}
	}
	return dst
}

// besideKey returns what of a caller's fields may go along with a key. The answer is searched for the key, which takes one that
// isn't compressed.
func besideKey(cred execution.Credential) func(name string) bool {
	own, _ := cred.Field()
	return func(name string) bool {
		return httprules.ForProvider(name) && !httprules.MayHoldKey(name) && !strings.EqualFold(name, own) && !strings.EqualFold(name, "Accept-Encoding")
	}
}

// fill reads the beginning of the body behind the head, so that a small request is one write and a body that can't be
// read costs no connection.
func (x *exchange) fill() error {
	x.rest = x.req.ContentLength
	if x.req.Body == nil {
		x.rest = 0
	}
	if x.rest <= 0 {
		return nil
	}
	head := len(*x.out)
	n := int(min(x.rest, int64(cap(*x.out)-head)))
	buf := (*x.out)[:head+n]
	got, err := io.ReadFull(x.req.Body, buf[head:])
	if err != nil {
		x.bodyErr = err
		return x.requestFailure(int64(got))
	}
	*x.out = buf
	x.rest -= int64(n)
	return nil
}

// send writes the rest of the body; it ends when all is sent, the body or the connection fails, or settle closes both.
func (x *exchange) send() {
	defer close(x.sender)
	chunked := x.rest < 0
	for x.rest != 0 {
		n, err := x.req.Body.Read(x.window(chunked))
		if n > 0 {
			if _, werr := x.write(x.framed(n, chunked)); werr != nil {
				x.failWrite(werr)
				return
			}
			if !chunked {
				x.rest -= int64(n)
			}
		}
		switch {
		case err == io.EOF && chunked:
			if _, werr := x.write([]byte("0\r\n\r\n")); werr != nil {
				x.failWrite(werr)
				return
			}
			x.rest = 0
		case err != nil && x.rest != 0:
			x.failBody(err)
			return
		}
	}
	x.sent()
}

// chunkHead is room for the size line of a chunk, chunkEnd for what follows its data.
const (
	chunkHead = 16
	chunkEnd  = 2
)

// window returns where the next piece of the body is read to.
func (x *exchange) window(chunked bool) []byte {
	buf := (*x.out)[:cap(*x.out)]
	if chunked {
		return buf[chunkHead : len(buf)-chunkEnd]
	}
	return buf[:min(int64(len(buf)), x.rest)]
}

// framed returns the n bytes that were read to the window as they are written.
func (x *exchange) framed(n int, chunked bool) []byte {
	buf := (*x.out)[:cap(*x.out)]
	if !chunked {
		return buf[:n]
	}
	var line [chunkHead]byte
	size := append(strconv.AppendInt(line[:0], int64(n), 16), "\r\n"...)
	from := chunkHead - len(size)
	copy(buf[from:], size)
	return append(buf[from:chunkHead+n], "\r\n"...)
}

// write writes p whole. A provider that takes nothing for as long as it may take to answer is not going to.
func (x *exchange) write(p []byte) (int, error) {
	c := x.conn
	if limit := x.req.Timers.FirstByte; limit > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
			return 0, err
		}
	}
	n, err := c.Conn.Write(p)
	if n > 0 || x.pool.tls != nil {
		x.mu.Lock()
		x.wrote = true
		x.mu.Unlock()
	}
	return n, err
}

// sent says that the whole request is out: from here on the provider's time to answer runs.
func (x *exchange) sent() {
	if limit := x.req.Timers.FirstByte; limit > 0 {
		x.limitHead(limit)
	}
}

// limitHead bounds the wait for the answer's head, unless it is there.
func (x *exchange) limitHead(limit time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.answered {
		_ = x.conn.SetReadDeadline(time.Now().Add(limit))
	}
}

// failWrite says that the provider takes no more of the request. It may have answered before it stopped (a 413, a
// 401), so the answer is still read, but not waited for.
func (x *exchange) failWrite(err error) {
	x.mu.Lock()
	x.writeErr = err
	x.mu.Unlock()
	x.limitHead(earlyAnswer)
}

// failBody says that the rest of the request's body can't be read: the provider must not take the request for whole.
func (x *exchange) failBody(err error) {
	x.mu.Lock()
	x.bodyErr = err
	x.mu.Unlock()
	x.conn.abort()
}
