package leasetest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/store"
	"iop/e2e/fakeprovider"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

const secret = "sk-canary-0123456789abcdef"

// lent is the open of a tunnel with a good lease.
func (r *rig) lent(runID string) *pb.WorkOpen { return r.lender.Lend(r.TunnelOpen(runID), secret) }

// credentials are the lines of a request's head that could carry one.
func credentials(x *fakeprovider.Exchange) (lines []string) {
	for line := range strings.Lines(string(x.Head)) {
		name, _, _ := strings.Cut(strings.ToLower(line), ":")
		switch name {
		case "authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "x-auth-token", "cookie":
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// E36, CR-03: whatever a caller sends in whatever case, a provider is shown one credential, the lent one, or none.
func TestOneCredentialGoesUpstream(t *testing.T) {
	sent := []string{
		"authorization: Bearer client-1", "AUTHORIZATION: Bearer client-1", "Proxy-authorization: Basic client-2", "X-API-KEY: client-2", "x-api-key: client-2",
		"api-KEY: client-2", "x-goog-API-key: client-2", "COOKIE: a=client-2", "X-Auth-Token: client-2",
	}
	for header, want := range map[string]string{
		"": "Authorization: Bearer " + secret, "X-Api-Key": "X-Api-Key: " + secret, "Api-Key": "Api-Key: " + secret, "X-Goog-Api-Key": "X-Goog-Api-Key: " + secret,
	} {
		t.Run(want[:12], func(t *testing.T) {
			p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
			r := newRig(t, p.URL(), func(s *setup) { s.header = header })
			probes := len(p.Exchanges())
			body := `{"model":"m"}`
			open := headers(r.lent("r1"), sent...)
			open.GetTunnel().ContentLength = int64(len(body))
			if got := r.Open(open).Body([]byte(body)).End().Collect(); got.Kinds != "ahbe" {
				t.Fatalf("with a key: %q %v %v", got.Kinds, got.Error, got.Rejected)
			}
			if got := r.Open(headers(r.TunnelOpen("r2"), sent...)).End().Collect(); got.Kinds != "ahbe" {
				t.Fatalf("without: %q %v", got.Kinds, got.Error)
			}
			seen := p.Exchanges()[probes:]
			if got := credentials(seen[0]); len(got) != 1 || got[0] != want {
				t.Errorf("the provider was shown %q", got)
			}
			if string(seen[0].Received()) != body {
				t.Errorf("the body came as %q", seen[0].Received())
			}
			if got := credentials(seen[1]); len(got) != 0 {
				t.Errorf("without a key the provider was shown %q", got)
			}
			for _, x := range seen {
				if bytes.Contains(x.Head, []byte("client-")) {
					t.Errorf("a caller's credential went upstream:\n%s", x.Head)
				}
			}
		})
	}
}

// E37, CR-01: a redirect is the caller's to see; the node follows none, and nobody else sees the key.
func TestARedirectIsNotFollowed(t *testing.T) {
	sink := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "text/plain", "gotcha"))
	plain := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "gotcha"))
	p := fakeprovider.NewTLS(t, nil)
	p.Use(fakeprovider.Answer(401, "text/plain", "no"))
	r := newRig(t, p.URL())
	for i, to := range []string{sink.URL() + "/v1/chat/completions", plain.URL() + "/x", "https://example.invalid/x"} {
		for j, status := range []int{302, 307, 308} {
			p.Use(fakeprovider.Answer(status, "text/plain", "", "Location: "+to))
			id := "r" + string(rune('0'+i)) + string(rune('0'+j))
			got := r.Open(r.lent(id)).End().Collect()
			if got.Head.GetStatus() != int32(status) || !strings.Contains(got.Head.String(), to) {
				t.Errorf("%d: got %v, %v", status, got.Head, got.Error)
			}
			wantLease(t, r.RunEnd(id), credentiallease.Committed, 0)
		}
	}
	for name, s := range map[string]*fakeprovider.Provider{"https": sink, "http": plain} {
		if opened, _ := s.Connections(); opened != 0 {
			t.Errorf("%s: %d connections to where a redirect leads", name, opened)
		}
	}
}

// E22: proxies of the environment are never asked, neither for the dial nor on a connection.
func TestNoProxyIsAsked(t *testing.T) {
	proxy := fakeprovider.New(t, fakeprovider.Answer(200, "text/plain", "proxied"))
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.URL())
	}
	t.Setenv("NO_PROXY", "")
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", `{"direct":1}`))
	r := newRig(t, p.URL())
	if got := r.Open(r.lent("r")).End().Collect(); string(got.Body) != `{"direct":1}` {
		t.Errorf("got %q %v", got.Body, got.Error)
	}
	if opened, _ := proxy.Connections(); opened != 0 {
		t.Errorf("%d connections to the proxy", opened)
	}
}

// E21: a kept connection that dies under a request with a key fails it: the key is shown once, although the request says
// that it may be repeated.
func TestADeadConnectionIsNotTriedAgain(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	r := newRig(t, p.URL())
	if got := r.Open(r.lent("r1")).End().Collect(); got.Kinds != "ahbe" {
		t.Fatalf("first: %q %v", got.Kinds, got.Error)
	}
	before := len(p.Exchanges())
	p.Use(func(x *fakeprovider.Exchange) { x.Reset() })
	got := r.Open(headers(r.lent("r2"), "Idempotency-Key: k")).End().Collect()
	if got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode(execution.CodeUpstreamTruncated) || got.Error.GetNothingSent() {
		t.Errorf("got %q %v", got.Kinds, got.Error)
	}
	wantLease(t, r.RunEnd("r2"), credentiallease.Committed, 0)
	seen := p.Exchanges()[before:]
	if len(seen) != 1 || seen[0].Number < 2 {
		t.Errorf("%d requests after the first, want one on the kept connection", len(seen))
	}
}

// E16: what the edge sealed isn't a header's value: the provider gets not one byte.
func TestABrokenSecretSendsNothing(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	r := newRig(t, p.URL())
	probes := len(p.Exchanges())
	for id, value := range map[string]string{"r1": "sk-x\r\nX-Evil: 1", "r2": "sk-0123456789\x00"} {
		s, err := credentiallease.NewSecret(bytes.Repeat([]byte("x"), len(value)))
		if err != nil {
			t.Fatal(err)
		}
		s.Use(func(inside []byte) { copy(inside, value) }) // as a broken edge would
		open := r.TunnelOpen(id)
		lease, err := credentiallease.NewIssuer("e", r.lender.Signer).Issue(r.lender.To, r.lender.Grant(open, "/v1/chat/completions"), s, nodetest.EdgeTime, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		got := r.Open(r.lender.Put(open, lease.Wire)).End().Collect()
		if got.Kinds != "ax" || got.Error.GetCode() != pb.FailureCode(execution.CodeCredentialRefused) || !got.Error.GetNothingSent() {
			t.Errorf("got %q %v", got.Kinds, got.Error)
		}
		wantLease(t, r.RunEnd(id), credentiallease.Refused, credentiallease.BadSecret)
	}
	if n := len(p.Exchanges()); n != probes {
		t.Errorf("the provider saw %d requests", n-probes)
	}
}

// E10, E12, E18, CR-10: what is refused reaches no provider, not even as a connection.
func TestARefusalOpensNoConnection(t *testing.T) {
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	r := newRig(t, p.URL())
	opened, _ := p.Connections()
	revoked := r.lent("r1")
	unnamed := r.TunnelOpen("r2")
	unnamed.GetTunnel().Route = nodetest.LeaseRoute
	r.session.Revoked(&pb.CredentialRevoked{Slot: nodetest.LeaseSlot, MinRevision: 101})
	for reason, open := range map[credentiallease.Reason]*pb.WorkOpen{
		credentiallease.Revoked: revoked, credentiallease.IdentityRequired: headers(unnamed, "Authorization: Bearer client-1"),
	} {
		got := r.Open(open).End().Collect()
		if f := got.Rejected.GetFailure(); got.Kinds != "r" || f.GetLeaseReason() != pb.LeaseReason(reason) {
			t.Errorf("got %q %v", got.Kinds, f)
		}
	}
	r.lender.SlotRevision = 101
	if got := r.Open(r.lent("r3")).End().Collect(); got.Kinds != "ahbe" {
		t.Errorf("the next revision: %q %v", got.Kinds, got.Rejected)
	}
	if now, _ := p.Connections(); now != opened+1 {
		t.Errorf("%d connections were opened", now-opened)
	}
}

// A provider that isn't reached by TLS is shown no key.
func TestNoKeyWithoutTLS(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", "{}"))
	r := newRig(t, p.URL())
	seen := len(p.Exchanges())
	open := r.TunnelOpen("r")
	g := r.lender.Grant(open, "/v1/chat/completions")
	g.Origin = strings.Replace(g.Origin, "http", "https", 1) // no edge can name another one
	got := r.Open(r.lender.Put(open, r.lender.Issue(g, []byte(secret)))).End().Collect()
	if got.Kinds != "r" || got.Rejected.GetFailure().GetCode() != pb.FailureCode(execution.CodeCredentialRefused) || len(p.Exchanges()) != seen {
		t.Errorf("got %q %v, %d requests", got.Kinds, got.Rejected, len(p.Exchanges())-seen)
	}
}

// safeBuffer takes a log.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}
func (s *safeBuffer) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.b.String() }

// E44, CR-06, CR-08: neither the log at its most talkative, nor the journal, nor what the edge is told holds a key, in
// clear or otherwise written, however its request ended.
func TestNoKeyIsWrittenDown(t *testing.T) {
	var log safeBuffer
	dir := t.TempDir()
	journal, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = journal.Run(running) }()
	p := fakeprovider.NewTLS(t, fakeprovider.Answer(200, "application/json", "{}"))
	r := newRig(t, p.URL(), func(s *setup) { s.log, s.journal = zerolog.New(&log).Level(zerolog.TraceLevel), journal })
	var told strings.Builder
	for id, script := range map[string]fakeprovider.Script{
		"whole": fakeprovider.Answer(200, "application/json", "{}"), "refused": fakeprovider.Answer(401, "application/json", "{}"),
		"reset": func(x *fakeprovider.Exchange) { x.Reset() }, "garbage": fakeprovider.Garbage("", 1),
		"broken head": fakeprovider.Raw([]byte("HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n")),
	} {
		id = strings.ReplaceAll(id, " ", "-")
		p.Use(script)
		open := r.lent(id)
		got := r.Open(open).End().Collect()
		told.WriteString(got.Error.String() + got.Head.String() + r.RunEnd(id).String())
		told.WriteString(r.Open(open).End().Collect().Rejected.String()) // replayed
	}
	stop()
	<-ended
	texts := map[string]string{"the log": log.String(), "what the edge is told": told.String()}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(f)] = string(b)
	}
	for where, text := range texts {
		for _, form := range []string{secret, secret[:12], secret[len(secret)-12:], base64.StdEncoding.EncodeToString([]byte(secret))[:16],
			hex.EncodeToString([]byte(secret))[:16], url.QueryEscape("Bearer " + secret)} {
			if strings.Contains(text, form) {
				t.Errorf("%s holds %q", where, form)
			}
		}
	}
	if !strings.Contains(log.String(), "execution ended") || !strings.Contains(texts["the log"], "whole") {
		t.Error("the log has nothing to look through")
	}
}
