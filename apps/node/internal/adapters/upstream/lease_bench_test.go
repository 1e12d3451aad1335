package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/page"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// BenchmarkLeased compares requests over TLS with a key and without, one after the other: with one everything that a
// lease costs at both ends is in the time of its request (issue, verify, open, write). p50-us and p99-us are of single
// requests; "large" has bodies of 4 MiB.
func BenchmarkLeased(b *testing.B) {
	for _, size := range []int{requestSize, 4 << 20} {
		base, roots := cheapTLSProvider(b, size)
		c, err := upstream.New(upstream.Config{BaseURL: base, Paths: paths(), MaxConcurrency: 4, RootCAs: roots})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		name := map[bool]string{true: "small", false: "large"}[size == requestSize]
		body := bytes.Repeat([]byte("r"), size)
		send := func(key execution.Credential) error {
			req := adaptertest.Post("/v1/chat/completions", "")
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(size)
			req.Timers = execution.Timers{FirstByte: time.Minute, Idle: time.Minute}
			req.Credential = key
			return c.Tunnel(context.Background(), req, discard{})
		}
		b.Run(name+"/without", func(b *testing.B) {
			each(b, size, func(int) error { return send(nil) })
		})
		b.Run(name+"/with", func(b *testing.B) {
			l := nodetest.NewLender(b, 7, base)
			if err := l.Guard.Project(lending(l)); err != nil {
				b.Fatal(err)
			}
			var pages page.Pool
			defer pages.Close()
			each(b, size, func(i int) error {
				key, err := lend(l, &pages, i)
				if err != nil {
					return err
				}
				err = send(key)
				if out := key.held.End(); err == nil && out.State != credentiallease.Committed {
					return fmt.Errorf("the lease ended as %v", out)
				}
				return err
			})
		})
	}
}

// lending is what the node is told of the lender's configuration.
func lending(l *nodetest.Lender) credentiallease.Projection {
	return credentiallease.Projection{
		Number: 1, Keys: []credentiallease.VerifyKey{{ID: l.Signer.ID(), Public: l.Signer.Public()}},
		Slots:    []credentiallease.SlotState{{ID: nodetest.LeaseSlot}},
		Routes:   []credentiallease.Revision{{Name: nodetest.LeaseRoute, Number: l.RouteRevision}},
		Profiles: []credentiallease.Revision{{Name: nodetest.LeaseProfile, Number: l.ProfileRevision}},
	}
}

// benchKey does what the node's credential does.
type benchKey struct {
	held  *credentiallease.Held
	now   func() credentiallease.Time
	pages *page.Pool
}

// lend issues a lease for the i-th request and verifies it.
func lend(l *nodetest.Lender, pages *page.Pool, i int) (*benchKey, error) {
	open := &pb.WorkOpen{Attempt: 1, Work: &pb.WorkOpen_Tunnel{Tunnel: &pb.ProviderTunnelRequest{
		RunId: fmt.Sprint("r", i), Adapter: "a", Method: "POST", Path: "/v1/chat/completions", Target: "m"}}}
	grant := l.Grant(open, "/v1/chat/completions")
	held, err := l.Guard.Verify(l.Issue(grant, []byte("sk-canary-0123456789abcdef")), grant.Binding, l.Now())
	if err != nil {
		return nil, err
	}
	return &benchKey{held, l.Now, pages}, held.Admit()
}

func (k *benchKey) Field() (name, prefix string)      { return "Authorization", "Bearer " }
func (k *benchKey) Bind(string, string, string) error { return k.held.Arm() }
func (k *benchKey) Send(write func([]byte) error) (err error) {
	p := k.pages.Take()
	defer p.Free()
	credentiallease.Shield(func() { err = k.held.Redeem(p.Bytes(), k.now, write) })
	return err
}

// each runs f b.N times, one after the other.
func each(b *testing.B, size int, f func(i int) error) {
	b.ReportAllocs()
	b.SetBytes(int64(size))
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := f(len(took)); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(took[(len(took)-1)*p/100].Nanoseconds())/1000, fmt.Sprintf("p%d-us", p))
	}
}

// cheapTLSProvider is cheapProvider over TLS, for bodies of that size.
func cheapTLSProvider(b *testing.B, size int) (url string, roots *x509.CertPool) {
	b.Helper()
	lender := httptest.NewTLSServer(nil)
	lender.Close()
	roots = x509.NewCertPool()
	roots.AddCert(lender.Certificate())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	answer := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 600\r\n\r\n" + strings.Repeat("x", 600)
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go converseTLS(tls.Server(c, &tls.Config{Certificates: lender.TLS.Certificates}), size, answer)
		}
	}()
	return "https://" + l.Addr().String(), roots
}

func converseTLS(c net.Conn, size int, answer string) {
	defer c.Close()
	br := bufio.NewReaderSize(c, 32<<10)
	for {
		for blank := false; !blank; {
			line, err := br.ReadSlice('\n')
			if err != nil {
				return
			}
			blank = len(line) == 2
		}
		if _, err := br.Discard(size); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}
