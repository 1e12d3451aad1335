package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"iop/e2e/procs"
	"iop/packages/go/config"
)

// kinds are the providers' dialects, and at once the names of adapters and models.
func kinds() []string { return []string{"openai", "anthropic", "ollama"} }

const nodeCount = 3

// machine is one program that can be killed and started again. Only who holds it touches its process.
type machine struct {
	name  string
	args  []string // program and arguments
	ready string   // what it says when it is up

	held sync.Mutex // one fault at a time
	mu   sync.Mutex
	p    *procs.Process // the one that runs, or ran last
	logs []*procs.Process
}

// start starts the program and waits until it is up.
func (m *machine) start(ctx context.Context) (procs.Entry, error) {
	p, err := procs.Start(context.WithoutCancel(ctx), m.name, m.args[0], m.args[1:]...)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.p = p
	m.logs = append(m.logs, p)
	m.mu.Unlock()
	up, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return p.Wait(up, m.ready, 1)
}

func (m *machine) process() *procs.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.p
}

// starts is how often it was started.
func (m *machine) starts() int { return len(m.processes()) }

// processes are all that ever ran.
func (m *machine) processes() []*procs.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.logs
}

// world is the whole site.
type world struct {
	dir, bin    string
	http, admin string // the edge's listeners
	edge        *machine
	nodes       []*machine
	links       []*relay // of each node
	providers   []*machine
	after       sizes // at the end

	forNodes string   // the edge's listener for nodes
	records  []string // of the nodes, in the edge's file
	version  int      // of the edge's file
}

func newWorld(ctx context.Context, o options, dir string) (*world, error) {
	w := &world{dir: dir, bin: o.bin}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	addresses, err := freeAddresses(len(kinds()) + 3)
	if err != nil {
		return nil, err
	}
	var adapters []string
	for i, kind := range kinds() {
		m := &machine{name: "provider-" + kind, ready: "provider is listening",
			args: []string{self, "-role", "provider", "-listen", addresses[i], "-ledger", filepath.Join(dir, ledgerFile)}}
		w.providers = append(w.providers, m)
		adapters = append(adapters, fmt.Sprintf(`{name: %s, kind: %s, base_url: "http://%s", max_concurrency: %%d}`, kind, kind, addresses[i]))
	}
	w.http, w.admin = addresses[len(kinds())], addresses[len(kinds())+1]
	w.forNodes = addresses[len(kinds())+2]
	w.edge = &machine{name: "edge", ready: "edge is listening", args: []string{filepath.Join(o.bin, "iop-edge"), "serve", "-c", w.path("edge.yaml")}}
	for i := range nodeCount {
		if err := w.addNode(i, w.forNodes, strings.Join(adapters, ", ")); err != nil {
			return nil, err
		}
	}
	if err := w.configure(4); err != nil {
		return nil, err
	}
	return w, w.startAll(ctx)
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// addNode makes a node's files and record, behind a relay of its own.
func (w *world) addNode(i int, edge, adapters string) error {
	id := fmt.Sprintf("node-%d", i)
	link, err := newRelay(edge)
	if err != nil {
		return err
	}
	w.links = append(w.links, link)
	token, hash := config.NewToken()
	if err := os.MkdirAll(w.path(id), 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf(`edges: [%q]
token: file:./node.token
data_dir: ./data
admin: {listen: "127.0.0.1:0"}
timers: {backoff_start: 200ms, backoff_max: 2s, handshake: 3s, probe_interval: 2s, drain: 5s, first_byte: 20s, idle: 10s, linger: 20s}
`, link.addr())
	for name, content := range map[string]string{"node.token": token.Reveal(), "node.yaml": text} {
		if err := os.WriteFile(filepath.Join(w.path(id), name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	w.records = append(w.records, fmt.Sprintf("{id: %s, token_hashes: [{sha256: %s}], adapters: [%s]}", id, hash, adapters))
	w.nodes = append(w.nodes, &machine{name: id, ready: "admin listens",
		args: []string{filepath.Join(w.bin, "iop-node"), "serve", "-c", filepath.Join(w.path(id), "node.yaml")}})
	return nil
}

// configure writes the edge's file: each adapter has so many places.
func (w *world) configure(places int) error {
	w.version++
	var nodes, routes []string
	for _, r := range w.records {
		nodes = append(nodes, fmt.Sprintf(r, places, places, places))
	}
	for _, kind := range kinds() {
		routes = append(routes, fmt.Sprintf("{model: %s, adapter: %s, target: soak, queue: {depth: 64, wait: 20s}}", kind, kind))
	}
	text := fmt.Sprintf(`# version %d
mode: dev
listen: {nodes: %q, http: %q, admin: %q}
state_dir: ./state
timers: {heartbeat: 1s, dead: 5s, probe: 1s, handshake: 4s, write_idle: 4s, confirm_limit: 20s, drain: 5s, detached_limit: 40s}
nodes: [%s]
routes: [%s]
`, w.version, w.forNodes, w.http, w.admin, strings.Join(nodes, ", "), strings.Join(routes, ", "))
	fresh := w.path("edge.yaml.new")
	if err := os.WriteFile(fresh, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, w.path("edge.yaml"))
}

func (w *world) startAll(ctx context.Context) error {
	for _, m := range w.machines() {
		if _, err := m.start(ctx); err != nil {
			w.stop()
			return err
		}
	}
	return w.ready(ctx, 30*time.Second)
}

func (w *world) machines() []*machine {
	all := append([]*machine{}, w.providers...)
	return append(append(all, w.edge), w.nodes...)
}

// stop ends everything at once: what had to be seen was seen.
func (w *world) stop() {
	for _, m := range w.machines() {
		if p := m.process(); p != nil {
			p.Kill()
		}
	}
	for _, l := range w.links {
		l.close()
	}
}

// keepLogs writes what the programs said beside the other files.
func (w *world) keepLogs() error {
	var errs []error
	for _, m := range w.machines() {
		for i, p := range m.processes() {
			errs = append(errs, os.WriteFile(w.path(fmt.Sprintf("%s.%d.log", m.name, i)), []byte(p.Log()), 0o600))
		}
	}
	return errors.Join(errs...)
}

// executions are the rows of a node's record that have a status.
func (w *world) executions(ctx context.Context, node *machine, status string) (int, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(w.bin, "iop-node"), "runs", "-c", filepath.Join(w.path(node.name), "node.yaml"),
		"--status", status, "--limit", "10000", "--json").Output()
	return strings.Count(string(out), `"run_id"`), err
}

// freeAddresses finds ports that are free now.
func freeAddresses(n int) (found []string, err error) {
	for range n {
		l, e := net.Listen("tcp", procs.OwnHost()+":0")
		if e != nil {
			return nil, e
		}
		found = append(found, l.Addr().String())
		defer func() { err = cmp.Or(err, l.Close()) }()
	}
	return found, nil
}
