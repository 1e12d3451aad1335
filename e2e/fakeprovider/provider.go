// Package fakeprovider is a scripted HTTP provider on a bare TCP listener. It records every connection and request as
// bytes, and a script answers with any bytes at any time: whole answers, answers cut after k bytes, resets, silence,
// garbage, answers before the request's body, paced streams, and recordings of real providers ([Fixture]).
//
// It isn't built on net/http's server, because what it is for are answers that a correct server can't give. It must
// not know anything of IOP.
package fakeprovider

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Script answers one request. It runs in the connection's goroutine, after the request's head was read and before its
// body is (see [Exchange.Body]). When it returns, the connection waits for a further request unless it was closed.
type Script func(x *Exchange)

// Provider is a listening fake. Its methods may be called concurrently.
type Provider struct {
	listener net.Listener
	scheme   string
	roots    *x509.CertPool
	cert     []byte // of a provider with TLS, DER
	done     chan struct{}
	serving  sync.WaitGroup

	mu        sync.Mutex
	script    Script
	exchanges []*Exchange
	live      map[net.Conn]struct{}
	opened    int
	closed    bool
}

// New starts a provider on a free port of 127.0.0.1 that answers with s until the test ends.
func New(t testing.TB, s Script) *Provider {
	t.Helper()
	p, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewTLS is [New] with TLS; [Provider.Roots] trusts its certificate.
func NewTLS(t testing.TB, s Script) *Provider {
	t.Helper()
	lender := httptest.NewTLSServer(nil)
	lender.Close()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := serve(tls.NewListener(plain, &tls.Config{Certificates: lender.TLS.Certificates}), s)
	p.scheme = "https://"
	p.roots = x509.NewCertPool()
	p.roots.AddCert(lender.Certificate())
	p.cert = lender.Certificate().Raw
	t.Cleanup(p.Close)
	return p
}

// Start starts a provider on a free port of 127.0.0.1; its caller closes it.
func Start(s Script) (*Provider, error) { return StartOn("127.0.0.1:0", s) }

// StartOn is [Start] on an address of the caller's choice.
func StartOn(addr string, s Script) (*Provider, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return serve(l, s), nil
}

func serve(l net.Listener, s Script) *Provider {
	p := &Provider{listener: l, scheme: "http://", done: make(chan struct{}), script: s, live: map[net.Conn]struct{}{}}
	p.serving.Go(p.accept)
	return p
}

// URL returns the provider's base URL, without a path.
func (p *Provider) URL() string { return p.scheme + p.Addr() }

// Addr returns the provider's host and port.
func (p *Provider) Addr() string { return p.listener.Addr().String() }

// Roots returns what trusts the certificate of a provider with TLS, nil without.
func (p *Provider) Roots() *x509.CertPool { return p.roots }

// CertPEM returns the certificate of a provider with TLS, which vouches for itself.
func (p *Provider) CertPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert})
}

// Use replaces the script, for requests whose head isn't read yet.
func (p *Provider) Use(s Script) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = s
}

// Exchanges returns the requests so far, in the order in which their heads arrived.
func (p *Provider) Exchanges() []*Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*Exchange(nil), p.exchanges...)
}

// Connections returns how many connections were ever accepted, and how many are open now.
func (p *Provider) Connections() (opened, open int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened, len(p.live)
}

// Close ends the provider and every connection, and returns after every script has.
func (p *Provider) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
	}
	_ = p.listener.Close()
	for c := range p.live {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.serving.Wait()
}

func (p *Provider) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		number, ok := p.enter(c)
		if !ok {
			_ = c.Close()
			return
		}
		p.serving.Go(func() {
			defer p.leave(c)
			p.converse(&tape{Conn: c, number: number})
		})
	}
}

func (p *Provider) enter(c net.Conn) (number int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, false
	}
	p.live[c] = struct{}{}
	p.opened++
	return p.opened, true
}

func (p *Provider) leave(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, c)
}

// converse serves the requests of one connection, one after the other.
func (p *Provider) converse(t *tape) {
	br := bufio.NewReader(t)
	var idle time.Duration
	for number := 1; ; number++ {
		if idle > 0 {
			_ = t.SetReadDeadline(time.Now().Add(idle))
		}
		x, err := readHead(p, t, br, number)
		if err != nil {
			return
		}
		_ = t.SetReadDeadline(time.Time{})
		p.mu.Lock()
		p.exchanges = append(p.exchanges, x)
		script := p.script
		p.mu.Unlock()
		script(x)
		x.stopWatch()
		if x.Closed() {
			return
		}
		if x.Body(); !x.Whole() {
			return
		}
		idle = x.idle
	}
}

// tape keeps what was read from a connection, so that a request's head is known byte for byte.
type tape struct {
	net.Conn
	number int // which connection of the provider, from 1
	read   []byte
}

func (t *tape) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.read = append(t.read, p[:n]...)
	return n, err
}
