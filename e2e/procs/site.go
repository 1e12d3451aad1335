package procs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Site is one edge and one node as processes, on free ports, with their files in a directory of their own.
type Site struct {
	Dir        string
	Edge, Node *Process
	cfg        SiteConfig

	HTTP, Admin, Nodes string // the edge's listeners, host:port
}

// SiteConfig is what differs between sites.
type SiteConfig struct {
	Bin      string // directory of the two programs
	NodeBin  string // of iop-node, where it is another; "" = Bin
	Adapters string // the node's adapters, as a YAML flow sequence
	Routes   string // the edge's routes, as a YAML flow sequence; "" = [{model: "*"}]
	Edge     string // further lines of edge.yaml
	Node     string // further lines of node.yaml
	DialNode string // where the node dials; "" = the edge's listener
	Managed  string // mode managed, with a CA of its own: how long the node's first certificate is valid; "" = mode dev

	Host       string   // where the edge listens; "" = 127.0.0.1
	AdminHost  string   // where the edge listens for operators; "" = Host
	NodesHost  string   // where the edge listens for nodes; "" = Host
	MoreNodes  []string // further entries of edge.yaml's nodes, each a YAML flow mapping
	EdgePrefix []string // what the edge is started by: {"prlimit", "--nofile=64"}, {"ip", "netns", "exec", "a"}
	NodePrefix []string // the same for the node
}

// NodeID is what a site's own node is called.
const NodeID = "box"

// StartSite writes the files, starts edge and node and waits until the node is ready. Call Stop in any case.
func StartSite(ctx context.Context, c SiteConfig) (*Site, error) {
	dir, err := os.MkdirTemp("", "iop-site-")
	if err != nil {
		return nil, err
	}
	s := &Site{Dir: dir, cfg: c}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Site) start(ctx context.Context) error {
	c := s.cfg
	token := exec.CommandContext(ctx, filepath.Join(c.Bin, "iop-edge"), "token", "new", NodeID,
		"--hash-file", s.Path("node.token.sha256"), "--token-file", s.Path("node.token"))
	if text, err := token.CombinedOutput(); err != nil {
		return fmt.Errorf("token new: %w\n%s", err, text)
	}
	routes := cmp.Or(c.Routes, `[{model: "*"}]`)
	own := fmt.Sprintf("{id: %s, token_hashes: [{file: ./node.token.sha256}], adapters: %s}", NodeID, c.Adapters)
	mode := "mode: dev"
	if c.Managed != "" {
		if err := s.certify(ctx); err != nil {
			return err
		}
		mode = "mode: managed\ntls: {cert: ./edge-id/cert.pem, key: ./edge-id/key.pem, ca: ./edge-id/ca.pem, trust_domain: " + TrustDomain + "}"
	}
	host := cmp.Or(c.Host, "127.0.0.1")
	edge := fmt.Sprintf(`%s
listen: {nodes: "%s:0", http: "%s:0", admin: "%s:0"}
state_dir: ./state
nodes: [%s]
routes: %s
%s
`, mode, cmp.Or(c.NodesHost, host), host, cmp.Or(c.AdminHost, host), strings.Join(append([]string{own}, c.MoreNodes...), ", "), routes, c.Edge)
	if err := os.WriteFile(s.Path("edge.yaml"), []byte(edge), 0o600); err != nil {
		return err
	}
	if err := s.StartEdge(ctx); err != nil {
		return err
	}
	return s.RestartNode(ctx)
}

// TrustDomain is that of a managed site.
const TrustDomain = "iop.e2e"

// certify makes a CA, and the identities of the site's edge and node.
func (s *Site) certify(ctx context.Context) error {
	if err := s.CA(ctx, "init", "--trust-domain", TrustDomain); err != nil {
		return err
	}
	if err := s.CA(ctx, "issue", "edge", "--out", s.Path("edge-id")); err != nil {
		return err
	}
	return s.CA(ctx, "issue", "node", "--id", NodeID, "--ttl", s.cfg.Managed, "--out", s.Path("node-id"))
}

// CA runs a command of iop-edge ca on the site's CA.
func (s *Site) CA(ctx context.Context, args ...string) error {
	args = append(append([]string{"ca"}, args...), "--dir", s.Path("ca"))
	if text, err := exec.CommandContext(ctx, filepath.Join(s.cfg.Bin, "iop-edge"), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ca %s: %w\n%s", args[1], err, text)
	}
	return nil
}

// nodeIdentity are the lines of a managed site's node.yaml that say who its node is.
const nodeIdentity = "tls: {cert: ./node-id/cert.pem, key: ./node-id/key.pem, ca: ./node-id/ca.pem, edge_spiffe_id: 'spiffe://" +
	TrustDomain + "/iop/edge'}\n"

// Path names a file of the site.
func (s *Site) Path(name string) string { return filepath.Join(s.Dir, name) }

// StartEdge starts the edge with the site's edge.yaml and waits until it listens. After a first start the file names
// the ports that it got, so that a restarted edge is found again.
func (s *Site) StartEdge(ctx context.Context) error {
	edge, err := s.program(ctx, "edge", s.cfg.EdgePrefix)
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
		fixed = strings.Replace(fixed, `:0"`, addr[strings.LastIndexByte(addr, ':'):]+`"`, 1)
	}
	return os.WriteFile(s.Path("edge.yaml"), []byte(fixed), 0o600)
}

// RestartNode starts the node as StartSite did.
func (s *Site) RestartNode(ctx context.Context) error {
	return s.StartNode(ctx, cmp.Or(s.cfg.DialNode, s.Nodes), s.cfg.Node)
}

// StartNode starts the node against the address and waits until the edge says that it is ready. extra are further
// lines of node.yaml.
func (s *Site) StartNode(ctx context.Context, edge, extra string) error {
	text := fmt.Sprintf("edges: [%q]\ntoken: file:./node.token\ndata_dir: ./data\n%s\n", edge, extra)
	if s.cfg.Managed != "" {
		text += nodeIdentity
	}
	if err := os.WriteFile(s.Path("node.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	seen := s.Edge.Count("node ready")
	node, err := s.program(ctx, "node", s.cfg.NodePrefix)
	if err != nil {
		return err
	}
	s.Node = node
	if _, err = s.Edge.wait20(ctx, "node ready", seen+1); err != nil {
		return fmt.Errorf("%w\nthe node:\n%s", err, node.Log())
	}
	return nil
}

// program starts iop-edge or iop-node with its file.
func (s *Site) program(ctx context.Context, name string, prefix []string) (*Process, error) {
	dir := s.cfg.Bin
	if name == "node" {
		dir = cmp.Or(s.cfg.NodeBin, dir)
	}
	argv := append(slices.Clone(prefix), filepath.Join(dir, "iop-"+name), "serve", "-c", s.Path(name+".yaml"))
	return Start(ctx, name, argv[0], argv[1:]...)
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
