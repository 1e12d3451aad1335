package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/e2e/procs"
	"iop/packages/go/config"
)

// site is an edge with two nodes, each a process.
type site struct {
	*procs.Site
	second *procs.Process
	caller string // its key

	mu   sync.Mutex
	live []context.CancelFunc // of requests that are on their way
}

// Nodes of a site: the one that procs makes, and one more.
const (
	firstNode  = procs.NodeID
	secondNode = "desk"
	oddModel   = "<img/src=x/onerror=pwned=1>"
	adminKey   = "sk-iop-admin-of-the-console-tests"
)

func hash(key string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(key))) }

// startSite starts one whose caller is called principal. Its admin listener is on loopback.
func startSite(ctx context.Context, principal string) (*site, error) {
	return startSiteAt(ctx, principal, "127.0.0.1")
}

func startSiteAt(ctx context.Context, principal, adminHost string) (*site, error) {
	token, tokenHash := config.NewToken()
	const adapters = "[{name: loopback, kind: loopback, max_concurrency: 2}, {name: odd, kind: loopback, max_concurrency: 1, targets: ['" + oddModel + "']}]"
	s := &site{caller: "sk-iop-" + principal}
	inner, err := procs.StartSite(ctx, procs.SiteConfig{Bin: the.bin, Adapters: adapters, AdminHost: adminHost,
		Routes:    `[{model: fast, adapter: loopback, target: loopback, queue: {depth: 8, wait: 60s}}, {model: "*", queue: {depth: 64, wait: 60s}}]`,
		MoreNodes: []string{fmt.Sprintf("{id: %s, token_hashes: [{sha256: %s}], labels: {room: east}, adapters: %s}", secondNode, tokenHash, adapters)},
		Edge: fmt.Sprintf("principals: [{id: %s, key_hashes: [%s]}]\nadmin_key_hashes: [%s]\ntimers: {drain: 1s}\n",
			principal, hash(s.caller), hash(adminKey)),
		Node: "timers: {backoff_start: 200ms, backoff_max: 1s, drain: 1s}"})
	if err != nil {
		return nil, err
	}
	s.Site = inner
	dir := s.Path(secondNode)
	text := fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\ndata_dir: ./data\ntimers: {backoff_start: 200ms, backoff_max: 1s, drain: 1s}\n", s.Nodes)
	err = errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "node.token"), []byte(token.Reveal()), 0o600),
		os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(text), 0o600))
	if err == nil {
		err = s.startSecond(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// startSecond starts the second node and waits until the edge says that it is ready.
func (s *site) startSecond(ctx context.Context) error {
	seen := s.Edge.Count("node ready")
	p, err := procs.Start(ctx, secondNode, filepath.Join(the.bin, "iop-node"), "serve", "-c", filepath.Join(s.Path(secondNode), "node.yaml"))
	if err != nil {
		return err
	}
	s.second = p
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err = s.Edge.Wait(ctx, "node ready", seen+1)
	return err
}

func (s *site) stop() error {
	s.quiet()
	if s.second != nil {
		s.second.Kill()
	}
	return s.Stop()
}

// admin is the address of the console, by a name of this machine.
func (s *site) admin() string {
	_, port, _ := net.SplitHostPort(s.Admin)
	return "http://127.0.0.1:" + port
}

// load begins n requests that last, and doesn't wait for them.
func (s *site) load(n int, model, says string) {
	for range n {
		ctx, cancel := context.WithCancel(context.Background())
		s.mu.Lock()
		s.live = append(s.live, cancel)
		s.mu.Unlock()
		go func() { _, _ = s.ask(ctx, model, says) }() // ends with its caller or its answer; how doesn't matter
	}
}

// quiet ends what load began.
func (s *site) quiet() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cancel := range s.live {
		cancel()
	}
	s.live = nil
}

// ask makes one request and reads its answer.
func (s *site) ask(ctx context.Context, model, says string) (string, error) {
	body := fmt.Sprintf(`{"model":%q,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":%q}]}`, model, says)
	r, err := http.NewRequestWithContext(ctx, "POST", "http://"+s.HTTP+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+s.caller)
	r.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return string(bytes.TrimSpace(text)), err
}

// settled waits until nothing runs any more, so that tests don't see each other's requests.
func (s *site) settled(t *testing.T) {
	t.Helper()
	s.quiet()
	until(t, "nothing runs any more", func() bool {
		response, err := http.Get(s.admin() + "/admin/v1/runs")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && !strings.Contains(string(text), `"live":true`)
	})
}

// until polls until ok.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("still not after %v: %s", limit, what)
		}
	}
}
