//go:build e2e

package process

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"iop/e2e/procs"
)

// Issue 9, protocol §7: a node gets another token while callers ask without a pause: two hashes, the new token, one hash. The node
// restarts in between, and nobody's request fails; then the old token is worth nothing.
func TestTokenIsRotated(t *testing.T) {
	m := newManaged(t, "1h", procs.SiteConfig{})
	s := &settings{site: m.site, t: t}
	m.works()
	stop := m.traffic()
	if got := run(t, m.Dir, "iop-edge", "token", "new", procs.NodeID, "--token-file", m.Path("next.token"), "--hash-file", m.Path("next.sha256")); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	const before, both, after = "[{file: ./node.token.sha256}]", "[{file: ./node.token.sha256, not_after: 2099-01-31T00:00:00Z}, {file: ./next.sha256}]", "[{file: ./next.sha256}]"
	s.rename(s.replace(before, both))
	said(t, m.Edge, "configuration reloaded", 1)
	if err := m.Node.Stop(limit); err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) {
		if err := os.Rename(m.Path(from), m.Path(to)); err != nil {
			t.Fatal(err)
		}
	}
	rename("node.token", "old.token")
	rename("next.token", "node.token")
	m.restartNode()
	m.awaitNode("ready", limit)
	generation := m.node().Generation
	s.rename(s.replace(both, after))
	said(t, m.Edge, "configuration reloaded", 2)
	m.works()
	stop()
	if now := m.node(); now.Generation != generation || now.State != "ready" {
		t.Errorf("the node that has the new token lost its connection: %+v, generation before %d", now, generation)
	}
	m.startOther(m.Path("node-id"), m.Path("old.token"))
	m.refusedAs(0, "unknown_token")
}

// startSecond starts another edge beside the site's, for the same nodes, with a state_dir and ports of its own. It returns where its
// callers ask.
func (s *site) startSecond() (edge *procs.Process, callers, nodes string) {
	s.t.Helper()
	text, err := os.ReadFile(s.Path("edge.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	free := strings.NewReplacer(s.HTTP, "127.0.0.1:0", s.Admin, "127.0.0.1:0", s.Nodes, "127.0.0.1:0", "./state", "./state-b")
	write(s.t, s.Dir, "edge-b.yaml", free.Replace(string(text)))
	edge = start(s.t, "edge b", nil, program("iop-edge"), "serve", "-c", s.Path("edge-b.yaml"))
	e := said(s.t, edge, "edge is listening", 1)
	return edge, e.Str("http"), e.Str("nodes")
}

// asked asks one edge. again is an error after which a caller asks the other: nobody there, or one that takes no work.
func asked(addr string) (again bool, err error) {
	client := http.Client{Timeout: callLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Post("http://"+addr+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"loopback","stream":true,"messages":[{"role":"user","content":"loopback: tokens=4 delay=2ms"}]}`))
	if err != nil {
		return true, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case response.StatusCode == http.StatusServiceUnavailable:
		return true, fmt.Errorf("503: %s", body)
	case err != nil || response.StatusCode != http.StatusOK || !bytes.HasSuffix(body, []byte(doneEvent)):
		return false, fmt.Errorf("%d, %w: %s", response.StatusCode, err, body)
	}
	return false, nil
}

// Issue 9: an upgrade without a gap by two edges, `edges: [a, b]`: one drains and starts again under traffic that goes to whichever
// takes it. Nobody's request fails.
func TestTwoEdges(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]"})
	second, b, nodes := s.startSecond()
	if err := s.Node.Stop(limit); err != nil {
		t.Fatal(err)
	}
	write(t, s.Dir, "node.yaml", fmt.Sprintf("edges: [%q, %q]\ntoken: file:./node.token\ndata_dir: ./data\n"+quickNode+"\n", s.Nodes, nodes, "30s"))
	s.Node = start(t, "node", nil, program("iop-node"), "serve", "-c", s.Path("node.yaml"))
	said(t, s.Edge, "node ready", 2)
	said(t, second, "node ready", 1)

	end, failed := make(chan struct{}), make(chan error, 3)
	var mu sync.Mutex
	served := map[string]int{}
	for i := range cap(failed) {
		go func() {
			for n := i; ; n++ {
				select {
				case <-end:
					failed <- nil
					return
				default:
				}
				order := []string{s.HTTP, b}
				if n%2 == 1 {
					order = []string{b, s.HTTP}
				}
				at := order[0]
				again, err := asked(at)
				if again {
					at = order[1]
					_, err = asked(at)
				}
				if err != nil {
					failed <- fmt.Errorf("%s: %w", at, err)
					return
				}
				mu.Lock()
				served[at]++
				mu.Unlock()
			}
		}()
	}
	count := func(addr string) int {
		mu.Lock()
		defer mu.Unlock()
		return served[addr]
	}
	more := func(addr string) {
		t.Helper()
		from := count(addr)
		eventually(t, limit, addr+" serves", func() bool { return count(addr) >= from+5 || len(failed) > 0 })
	}
	more(s.HTTP)
	more(b)
	if err := s.Edge.Stop(limit); err != nil {
		t.Error(err)
	}
	more(b)
	s.restartEdge()
	more(s.HTTP)
	close(end)
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	t.Logf("served: %v", served)
}

// connectProxy is an HTTP proxy that makes tunnels for whoever has the password, and keeps what goes up through them.
type connectProxy struct {
	net.Listener
	mu      sync.Mutex
	tunnels []net.Conn // the node's ends
	up      bytes.Buffer
}

const proxyPassword = "node:let-me-out"

func newConnectProxy(t *testing.T) *connectProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &connectProxy{Listener: l}
	t.Cleanup(func() { l.Close(); p.cut() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn) // ends with its connection
		}
	}()
	return p
}

func (p *connectProxy) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	r.Header.Set("Authorization", r.Header.Get("Proxy-Authorization")) // for BasicAuth
	user, password, _ := r.BasicAuth()
	if r.Method != http.MethodConnect || user+":"+password != proxyPassword {
		_, _ = io.WriteString(conn, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n") // who left needs no answer
		return
	}
	to, err := net.Dial("tcp", r.Host)
	if err != nil {
		_, _ = io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer to.Close()
	p.mu.Lock()
	p.tunnels = append(p.tunnels, conn)
	p.mu.Unlock()
	if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	go func() { // ends with either connection
		defer to.Close()
		_, _ = io.Copy(to, io.TeeReader(in, p))
	}()
	_, _ = io.Copy(conn, to)
}

// Write keeps what goes up.
func (p *connectProxy) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up.Write(b)
}

// cut ends all tunnels and returns how many there have been.
func (p *connectProxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.tunnels {
		conn.Close()
	}
	return len(p.tunnels)
}

// Issue 9, protocol §7: a node behind a company's proxy, in mode managed: it works, comes back through the proxy when that drops its
// tunnels, and the proxy sees no token.
func TestNodeBehindProxy(t *testing.T) {
	p := newConnectProxy(t)
	dir := t.TempDir()
	write(t, dir, "credentials", proxyPassword+"\n")
	m := newManaged(t, "1h", procs.SiteConfig{Node: fmt.Sprintf(quickNode, "30s") +
		fmt.Sprintf("\nproxy: http://%s\nproxy_credentials: file:%s", p.Addr(), filepath.Join(dir, "credentials"))})
	m.works()
	if n := p.cut(); n != 1 {
		t.Errorf("the proxy made %d tunnels", n)
	}
	m.serves(2)
	if got := run(t, m.Dir, "iop-node", "doctor", "-c", m.Path("node.yaml")); got.code == 2 || !strings.Contains(got.stdout, "through the proxy "+p.Addr().String()) {
		t.Errorf("doctor goes another way than the node: %+v", got)
	}
	token, err := os.ReadFile(m.Path("node.token"))
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if secret := bytes.TrimSpace(token); p.up.Len() == 0 || bytes.Contains(p.up.Bytes(), secret[len(secret)/2:]) {
		t.Errorf("the proxy saw %d bytes, and the token among them or nothing", p.up.Len())
	}
}
