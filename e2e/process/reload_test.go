//go:build e2e

package process

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"iop/e2e/procs"
)

// settings is a site whose edge.yaml is changed in several ways.
type settings struct {
	*site
	t *testing.T
}

func newSettings(t *testing.T) *settings {
	return &settings{t: t, site: newSite(t, procs.SiteConfig{Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]",
		Routes: "[{model: old, adapter: loopback, target: loopback}]"})}
}

func (s *settings) text() string {
	s.t.Helper()
	text, err := os.ReadFile(s.Path("edge.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// replace returns the file with one thing changed, which must be there.
func (s *settings) replace(from, to string) string {
	s.t.Helper()
	text := s.text()
	if !strings.Contains(text, from) {
		s.t.Fatalf("%q isn't in the configuration", from)
	}
	return strings.ReplaceAll(text, from, to)
}

// rename puts text in the file's place as editors do.
func (s *settings) rename(text string) {
	s.t.Helper()
	write(s.t, s.Dir, "new.yaml", text)
	if err := os.Rename(s.Path("new.yaml"), s.Path("edge.yaml")); err != nil {
		s.t.Fatal(err)
	}
}

func (s *settings) models() string { return string(get(s.t, nil, s.HTTP, "/v1/models")) }

// offers waits until the edge offers exactly that model.
func (s *settings) offers(model string) {
	s.t.Helper()
	eventually(s.t, limit, "the edge offers "+model, func() bool {
		text := s.models()
		return strings.Contains(text, `"id":"`+model+`"`) && strings.Count(text, `"id"`) == 1
	})
}

// works asks for a model and wants its answer.
func (s *settings) works(model string) {
	s.t.Helper()
	if c := s.say(model, "hi"); c.status != http.StatusOK || c.err != nil {
		s.t.Errorf("%s: %s", model, c)
	}
}

// say asks a model for one whole answer.
func (s *settings) say(model, text string) *call {
	s.t.Helper()
	return s.ask(chatBody(`{"model":"`+model+`","messages":[{"role":"user","content":"`+text+`"}]}`)).await(s.t, callLimit)
}

// CF-01: in place, by rename, by deletion, by SIGHUP; what is new is live without a restart.
func TestReload(t *testing.T) {
	s := newSettings(t)
	ways := []func(text string){
		func(text string) { write(t, s.Dir, "edge.yaml", text) },
		s.rename,
		func(text string) {
			if err := os.Remove(s.Path("edge.yaml")); err != nil {
				t.Fatal(err)
			}
			write(t, s.Dir, "edge.yaml", text)
		},
		func(text string) {
			s.rename(text)
			if err := s.Edge.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		},
	}
	last := "old"
	for i, way := range ways {
		next := "model-" + string(rune('a'+i))
		way(s.replace("model: "+last, "model: "+next))
		s.offers(next)
		s.works(next)
		last = next
	}
}

// CF-02: the file is a link into a directory that is swapped, as a mounted configuration is.
func TestReloadOfASwappedLink(t *testing.T) {
	s := newSettings(t)
	swap := func(version, text string) {
		t.Helper()
		if err := os.Mkdir(s.Path(version), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, s.Path(version), "edge.yaml", strings.ReplaceAll(text, "./node.token", s.Path("node.token")))
		if err := os.Symlink(version, s.Path("..new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(s.Path("..new"), s.Path("..data")); err != nil {
			t.Fatal(err)
		}
	}
	text := s.text()
	swap("v0", text)
	if err := os.Remove(s.Path("edge.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join("..data", "edge.yaml"), s.Path("edge.yaml")); err != nil {
		t.Fatal(err)
	}
	for i, next := range []string{"x", "y", "z"} {
		swap("v"+string(rune('1'+i)), strings.ReplaceAll(text, "model: old", "model: "+next))
		if err := os.RemoveAll(s.Path("v" + string(rune('0'+i)))); err != nil {
			t.Fatal(err)
		}
		s.offers(next)
	}
}

// CF-03: a bad file changes nothing of it, and says why once; the next good one applies whole.
func TestBadReload(t *testing.T) {
	s := newSettings(t)
	bad := map[string]struct{ from, to, say string }{
		"no YAML":            {"mode: dev", "mode: [", "edge.yaml:"},
		"no such adapter":    {"model: old, adapter: loopback", "model: new, adapter: nobody", "routes[0].adapter"},
		"node twice":         {"nodes: [", "nodes: [{id: box, token_hashes: [{file: ./node.token.sha256}]}, ", "nodes[1].id"},
		"needs a restart":    {"state_dir: ./state", "state_dir: ./other", "state_dir changed, which takes a restart"},
		"and half of it not": {"model: old, adapter: loopback, target: loopback}]", "model: new, adapter: loopback, target: loopback}]\nmod: dev", "unknown key"},
	}
	good := s.text()
	n := 0
	for name, k := range bad {
		s.rename(strings.ReplaceAll(good, k.from, k.to))
		n++
		entry := said(t, s.Edge, "configuration not reloaded: everything stays as it was", n)
		if !strings.Contains(entry.Str("error"), k.say) {
			t.Errorf("%s: the edge says %s", name, entry.Str("error"))
		}
		s.offers("old")
		s.works("old")
	}
	s.rename(strings.ReplaceAll(good, "model: old", "model: new"))
	s.offers("new")
	s.works("new")
	s.rename(strings.ReplaceAll(good, "adapter: loopback, target", "adapter: nobody, target"))
	said(t, s.Edge, "configuration not reloaded: everything stays as it was", n+1)
	if r := run(t, s.Dir, "iop-edge", "serve", "-c", "edge.yaml"); r.code != 1 || !strings.HasPrefix(r.stderr, "edge.yaml:5: routes[0].adapter:") {
		t.Errorf("a start with it: %+v", r)
	}
}

// An adapter that is added, changed and removed: the node applies it, what runs on an unchanged one isn't touched.
func TestReloadOfAdapters(t *testing.T) {
	s := newSettings(t)
	good := s.text()
	long := begin(t, nil, s.HTTP, "a long stream", chatBody(`{"model":"old","stream":true,"messages":[{"role":"user","content":"loopback: tokens=200 delay=50ms"}]}`))
	long.awaitText(t, "data: ")
	with := func(adapters, routes string) {
		t.Helper()
		text := strings.ReplaceAll(good, "{name: loopback, kind: loopback, max_concurrency: 4}", adapters)
		s.rename(strings.ReplaceAll(text, "[{model: old, adapter: loopback, target: loopback}]", routes))
	}
	const two = "{name: loopback, kind: loopback, max_concurrency: 4}, {name: second, kind: loopback, targets: [%]}"
	with(strings.ReplaceAll(two, "%", "m1"), "[{model: old, adapter: loopback, target: loopback}, {model: m1}]")
	eventually(t, limit, "the new adapter is ready", func() bool { return s.adapter("second") == "m1" })
	s.works("m1")
	with(strings.ReplaceAll(two, "%", "m2"), "[{model: old, adapter: loopback, target: loopback}, {model: m2}]")
	eventually(t, limit, "the changed adapter is ready", func() bool { return s.adapter("second") == "m2" })
	s.works("m2")
	with("{name: loopback, kind: loopback, max_concurrency: 4}", "[{model: old, adapter: loopback, target: loopback}]")
	eventually(t, limit, "the adapter is gone", func() bool { return s.adapter("second") == "" })
	if long.over() {
		t.Fatal("the stream was over before anything was tried")
	}
	if long.await(t, callLimit); long.err != nil || !strings.HasSuffix(long.text(), "data: [DONE]\n\n") {
		t.Errorf("a stream on an adapter that nobody changed: %s", long)
	}
	if n := s.Edge.Count("node ready"); n != 1 {
		t.Errorf("the node became ready %d times", n)
	}
}

// adapter returns the first model of an adapter that is available, "" when it isn't.
func (s *settings) adapter(name string) string {
	var list struct {
		Nodes []struct {
			Adapters []struct {
				Name      string
				Available bool
				Models    []struct{ Name string }
			}
		}
	}
	if err := json.Unmarshal(get(s.t, nil, s.Admin, "/admin/v1/nodes"), &list); err != nil {
		s.t.Fatal(err)
	}
	for _, a := range list.Nodes[0].Adapters {
		if a.Name == name && a.Available && len(a.Models) > 0 {
			return a.Models[0].Name
		}
	}
	return ""
}

// A node that is taken out of the file loses its connection, and comes back when it is put in again.
func TestReloadOfNodes(t *testing.T) {
	s := newSettings(t)
	good := s.text()
	s.rename(strings.ReplaceAll(good, "{id: box,", "{id: box, enabled: false,"))
	if entry := said(t, s.Edge, "node fenced", 1); entry.Str("code") != "node_disabled" {
		t.Errorf("fenced as %s", entry.Str("code"))
	}
	s.awaitNode("disabled", limit)
	s.rename(good)
	said(t, s.Edge, "configuration reloaded", 2)
	// It would come back by itself, but only after half a minute.
	if err := s.Node.Stop(limit); err != nil {
		t.Fatal(err)
	}
	s.restartNode()
	s.works("old")
}

// protocol §8: a hundred reloads under load, ten a second where the machine can, cause no caller error, and the node is
// ready all the time.
func TestReloadsUnderLoad(t *testing.T) {
	s := newSettings(t)
	good := s.text()
	var (
		group    sync.WaitGroup
		stopped  atomic.Bool
		answered atomic.Int64
	)
	for range 6 {
		group.Go(func() {
			for !stopped.Load() {
				if c := s.say("old", "loopback: tokens=5"); c.status != http.StatusOK || c.err != nil {
					t.Errorf("an answer: %s", c)
					return
				}
				answered.Add(1)
			}
		})
	}
	variants := []string{
		good,
		strings.ReplaceAll(good, "max_concurrency: 4}", "max_concurrency: 5}"),
		strings.ReplaceAll(good, "max_concurrency: 4}", "max_concurrency: 4}, {name: more, kind: loopback, targets: [x]}"),
		strings.ReplaceAll(good, "target: loopback}]", "target: loopback}, {model: another, adapter: loopback}]"),
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	defer group.Wait()
	defer stopped.Store(true)
	for i := 1; (i <= 100 || answered.Load() < 100) && !t.Failed(); i++ { // as long as both take on this machine
		<-tick.C
		s.rename(variants[i%len(variants)]) // the first of them is in force
		if err := s.Edge.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		said(t, s.Edge, "configuration reloaded", i)
	}
	stopped.Store(true)
	group.Wait()
	if n := s.Edge.Count("node ready"); n != 1 {
		t.Errorf("the node became ready %d times", n)
	}
	eventually(t, limit, "the adapter is available at the end", func() bool { return s.adapter("loopback") != "" })
	t.Logf("%d answers, %d reloads", answered.Load(), s.Edge.Count("configuration reloaded"))
}
