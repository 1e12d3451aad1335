package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"

	"iop/packages/go/execution"
)

// This file turns what went wrong into the one failure that the exchange ends with. Texts name sizes, limits and the
// configured address; they hold nothing of the request or the answer.

// connectFailure is a failure before any byte of a request: another node may try.
func connectFailure(p *pool, err error) error {
	f := execution.Failf(execution.CodeUpstreamConnect, execution.OriginProvider, "connect to %s: %s", p.base.Addr, reason(p, err))
	f.NothingSent = true
	return f
}

func reason(p *pool, err error) string {
	var (
		errno   syscall.Errno
		dns     *net.DNSError
		alert   tls.AlertError
		record  tls.RecordHeaderError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no connection within " + p.connect.String()
	case errors.As(err, &dns):
		return "the host name can't be resolved"
	case errors.As(err, &record):
		return "TLS: the provider doesn't speak it; is it http://?"
	case errors.As(err, &unknown):
		return "TLS: the certificate is signed by nobody that this node trusts"
	case errors.As(err, &name):
		return "TLS: the certificate is for another host"
	case errors.As(err, &invalid):
		return "TLS: the certificate is expired or otherwise not valid"
	case errors.As(err, &alert):
		return "TLS: the provider refused the handshake: " + alert.Error()
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF):
		return "the provider closed the connection during the TLS handshake"
	}
	return "the connection can't be made"
}

// requestFailure is a failure of the request's own body. got is how much of it there was, if it ended early.
func (x *exchange) requestFailure(got int64) error {
	x.mu.Lock()
	err, wrote := x.bodyErr, x.wrote
	x.mu.Unlock()
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		err = execution.Failf(execution.CodeBadRequest, execution.OriginCaller,
			"request body ended after %d of %d bytes", got, x.req.ContentLength)
	}
	f := *execution.AsFailure(err, execution.OriginNode)
	f.NothingSent = !wrote
	return &f
}

// headFailure says why there is no head of an answer.
func (x *exchange) headFailure(err error) error {
	if f := x.sendFailure(); f != nil {
		return f
	}
	switch {
	case errors.Is(err, errHeadTooLarge):
		return execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"head of the provider's answer is over %d bytes", MaxResponseHead)
	case errors.Is(x.conn.readErr, os.ErrDeadlineExceeded): // not err: half a head at that moment reads as broken
		return execution.Failf(execution.CodeFirstByteTimeout, execution.OriginProvider,
			"provider didn't answer within %v", x.req.Timers.FirstByte)
	case x.conn.cut():
		if x.conn.reused && x.conn.closedByProvider() {
			x.pool.distrust()
		}
		return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider,
			"provider %s before its answer began", x.conn.howCut())
	}
	return execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "provider's answer isn't HTTP/1.1")
}

// sendFailure is the failure of a request that couldn't be sent whole, nil if it could. It is called when there is no
// answer.
func (x *exchange) sendFailure() error {
	x.mu.Lock()
	bodyErr, writeErr, wrote := x.bodyErr, x.writeErr, x.wrote
	x.mu.Unlock()
	switch {
	case bodyErr != nil:
		<-x.sender // it owns rest
		return x.requestFailure(x.req.ContentLength - x.rest)
	case errors.Is(writeErr, os.ErrDeadlineExceeded):
		return execution.Failf(execution.CodeFirstByteTimeout, execution.OriginProvider,
			"provider took nothing of the request for %v", x.req.Timers.FirstByte)
	case writeErr != nil && !wrote:
		f := execution.Failf(execution.CodeUpstreamConnect, execution.OriginProvider,
			"provider at %s closed the connection before it took anything", x.pool.base.Addr)
		f.NothingSent = true
		return f
	case writeErr != nil:
		return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider,
			"provider closed the connection while the request was sent to it")
	}
	return nil
}

// bodyFailure says why the body of an answer isn't whole. (ST-12)
func (x *exchange) bodyFailure(resp *http.Response) error {
	var f *execution.Failure
	x.mu.Lock()
	broken := x.bodyErr != nil
	x.mu.Unlock()
	switch {
	case broken: // and so failBody closed the connection
		return x.sendFailure()
	case errors.Is(x.conn.readErr, os.ErrDeadlineExceeded):
		f = execution.Failf(execution.CodeIdleTimeout, execution.OriginProvider,
			"provider sent nothing for %v after %d bytes of its answer", x.req.Timers.Idle, x.passed)
	case x.conn.cut() && resp.ContentLength >= 0:
		f = execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider,
			"provider %s after %d of %d bytes of its answer", x.conn.howCut(), x.passed, resp.ContentLength)
	case x.conn.cut():
		f = execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider,
			"provider %s after %d bytes, inside its answer", x.conn.howCut(), x.passed)
	default:
		f = execution.Failf(execution.CodeUpstreamError, execution.OriginProvider,
			"framing of the provider's answer is broken after %d bytes", x.passed)
	}
	f.UpstreamStatus = resp.StatusCode
	return f
}

// closedByProvider reports whether the provider ended the connection, rather than the node or the path between.
func (c *conn) closedByProvider() bool {
	return errors.Is(c.readErr, io.EOF) || errors.Is(c.readErr, syscall.ECONNRESET)
}

// howCut says how the connection ended.
func (c *conn) howCut() string {
	switch {
	case errors.Is(c.readErr, io.EOF):
		return "closed the connection"
	case errors.Is(c.readErr, syscall.ECONNRESET):
		return "reset the connection"
	}
	return "lost the connection"
}
