package procs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Site is one edge and one node as processes, on free loopback ports, with their files in a directory of their own.
type Site struct {
	Dir        string
	Bin        string // where iop-edge and iop-node are
	Edge, Node *Process

	HTTP, Admin, Nodes string // the edge's listeners, host:port
}

// SiteConfig is what differs between sites.
type SiteConfig struct {
	Bin      string // directory of the two programs
	Adapters string // the node's adapters, as a YAML flow sequence
	Routes   string // the edge's routes, as a YAML flow sequence; "" = [{model: "*"}]
	Edge     string // further lines of edge.yaml
	Node     string // further lines of node.yaml
	DialNode string // where the node dials; "" = the edge's listener
}

const siteNode = "box"

// StartSite writes the files, starts edge and node and waits until the node is ready. Call Stop in any case.
func StartSite(ctx context.Context, c SiteConfig) (*Site, error) {
	dir, err := os.MkdirTemp("", "iop-site-")
	if err != nil {
		return nil, err
	}
	s := &Site{Dir: dir, Bin: c.Bin}
	if err := s.start(ctx, c); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Site) start(ctx context.Context, c SiteConfig) error {
	token := exec.CommandContext(ctx, filepath.Join(s.Bin, "iop-edge"), "token", "new", siteNode,
		"--hash-file", s.Path("node.token.sha256"), "--token-file", s.Path("node.token"))
	if text, err := token.CombinedOutput(); err != nil {
		return fmt.Errorf("token new: %w\n%s", err, text)
	}
	routes := c.Routes
	if routes == "" {
		routes = `[{model: "*"}]`
	}
	edge := fmt.Sprintf(`mode: dev
listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"}
state_dir: ./state
nodes: [{id: %s, token_hashes: [{file: ./node.token.sha256}], adapters: %s}]
routes: %s
%s
`, siteNode, c.Adapters, routes, c.Edge)
	if err := os.WriteFile(s.Path("edge.yaml"), []byte(edge), 0o600); err != nil {
		return err
	}
	if err := s.StartEdge(ctx); err != nil {
		return err
	}
	dial := c.DialNode
	if dial == "" {
		dial = s.Nodes
	}
	return s.StartNode(ctx, dial, c.Node)
}

// Path names a file of the site.
func (s *Site) Path(name string) string { return filepath.Join(s.Dir, name) }

// StartEdge starts the edge with the site's edge.yaml and waits until it listens. After a first start the file names
// the ports that it got, so that a restarted edge is found again.
func (s *Site) StartEdge(ctx context.Context) error {
	edge, err := Start(ctx, "edge", filepath.Join(s.Bin, "iop-edge"), "serve", "-c", s.Path("edge.yaml"))
	if err != nil {
		return err
	}
	s.Edge = edge
	entry, err := edge.wait20(ctx, "edge is listening", 1)
	if err != nil {
		return err
	}
	s.HTTP, s.Admin, s.Nodes = entry.Str("http"), entry.Str("admin"), entry.Str("nodes")
	text, err := os.ReadFile(s.Path("edge.yaml"))
	if err != nil {
		return err
	}
	fixed := string(text)
	for _, addr := range []string{s.Nodes, s.HTTP, s.Admin} { // in the order of the listen line
		fixed = strings.Replace(fixed, "127.0.0.1:0", addr, 1)
	}
	return os.WriteFile(s.Path("edge.yaml"), []byte(fixed), 0o600)
}

// StartNode starts the node against the address and waits until the edge says that it is ready. extra are further
// lines of node.yaml.
func (s *Site) StartNode(ctx context.Context, edge, extra string) error {
	text := fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\ndata_dir: ./data\n%s\n", edge, extra)
	if err := os.WriteFile(s.Path("node.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	seen := s.Edge.Count("node is ready")
	node, err := Start(ctx, "node", filepath.Join(s.Bin, "iop-node"), "serve", "-c", s.Path("node.yaml"))
	if err != nil {
		return err
	}
	s.Node = node
	if _, err = s.Edge.wait20(ctx, "node is ready", seen+1); err != nil {
		return fmt.Errorf("%w\nthe node:\n%s", err, node.Log())
	}
	return nil
}

// Stop ends both programs (node first) and removes the site's files. It reports how they ended.
func (s *Site) Stop() error {
	var errs []error
	for _, p := range []*Process{s.Node, s.Edge} {
		if p != nil {
			errs = append(errs, p.Stop(40*time.Second))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.Dir))...)
}

func (p *Process) wait20(ctx context.Context, message string, nth int) (Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return p.Wait(ctx, message, nth)
}

// Llama starts the real llama-server of dir (scripts/provider.sh) with a model file of the same directory and waits
// until it is healthy. It returns the server and its address.
func Llama(ctx context.Context, dir, model string, args ...string) (*Process, string, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, "", err
	}
	host, port, _ := net.SplitHostPort(addr)
	args = append([]string{"-m", filepath.Join(dir, model), "--host", host, "--port", port, "-t", "1", "-tb", "1",
		"-c", "16384", "-np", "4", "--jinja", "--alias", "tiny", "--metrics", "--slots", "--offline", "--no-ui"}, args...)
	server, err := Start(ctx, "llama-server", filepath.Join(dir, "llama-server"), args...)
	if err != nil {
		return nil, "", err
	}
	healthy, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(healthy, http.MethodGet, "http://"+addr+"/health", nil)
		if err != nil {
			return nil, "", err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return server, addr, nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-server.Done():
			return nil, "", fmt.Errorf("llama-server ended:\n%s", server.Log())
		case <-healthy.Done():
			server.Kill()
			return nil, "", fmt.Errorf("llama-server wasn't healthy in time:\n%s", server.Log())
		}
	}
}

// freeAddr finds a loopback port that is free now; a program that can't be given a listener has no better way.
func freeAddr() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}
