package diagnose_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/apps/edge/internal/diagnose"
	"iop/packages/go/doctor"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
)

const (
	hash     = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
	adminKey = "0123456789-admin-key"
	apiKey   = "0123456789-api-key"
)

// answers are what a running Edge's admin listener says, by path; the path with its query is looked for first.
type answers map[string]string

// ready is the least of a running Edge.
func ready(more answers) answers {
	a := answers{"/readyz": `{"ready":true,"reasons":[]}`, "/admin/v1/nodes": `{"nodes":[{"id":"a","state":"ready","version":"v1"}]}`,
		"/admin/v1/queue": `{"places":[]}`, "/admin/v1/events": "", "/metrics": "process_max_fds 1e6\n"}
	for path, text := range more {
		a[path] = text
	}
	return a
}

// edge starts what answers as a running Edge: its admin listener and its callers'.
type edge struct{ admin, http, nodes string }

func running(t *testing.T, a answers, callers http.HandlerFunc) edge {
	t.Helper()
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := a[r.URL.RequestURI()]
		if !ok {
			text, ok = a[r.URL.Path]
		}
		switch {
		case text == "401":
			w.WriteHeader(http.StatusUnauthorized)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(admin.Close)
	http := httptest.NewServer(callers)
	t.Cleanup(http.Close)
	nodes := httptest.NewServer(callers)
	t.Cleanup(nodes.Close)
	return edge{admin.Listener.Addr().String(), http.Listener.Addr().String(), nodes.Listener.Addr().String()}
}

// none are addresses that are free, and stay so: of this test's own on loopback, which is more than 127.0.0.1.
func none(t *testing.T) edge {
	t.Helper()
	var e edge
	own := fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	for _, addr := range []*string{&e.admin, &e.http, &e.nodes} {
		ln, err := net.Listen("tcp", own)
		if err != nil {
			t.Fatal(err)
		}
		*addr = ln.Addr().String()
		defer ln.Close() // all are taken before one is free, so that they differ
	}
	return e
}

const (
	oneNode  = "nodes: [{id: a, token_hashes: [{sha256: " + hash + "}], adapters: [{name: l, kind: loopback}]}]\n"
	allModel = "routes: [{model: \"*\"}]\n"
)

func (e edge) file(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edge.yaml")
	text := fmt.Sprintf("listen: {nodes: %q, http: %q, admin: %q}\n%s", e.nodes, e.http, e.admin, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func examine(t *testing.T, opts diagnose.Options) []doctor.Finding {
	t.Helper()
	opts.Version, opts.Events = "v1", patience.Limit // the Edge of these tests ends its stream
	checks := diagnose.Checks(opts)
	for i := range checks {
		checks[i].Limit = patience.Limit
	}
	return doctor.Run(t.Context(), checks, func(f doctor.Finding) {
		for _, secret := range []string{adminKey, apiKey, hash} {
			if strings.Contains(f.Text+f.Remedy, secret) {
				t.Errorf("a secret is shown: %+v", f)
			}
		}
		if (f.Level == doctor.Fail || f.Level == doctor.Warning) && f.Remedy == "" {
			t.Errorf("no remedy: %+v", f)
		}
	})
}

// want fails the test unless a check found this, and nothing is as bad anywhere else.
func want(t *testing.T, all []doctor.Finding, check string, level doctor.Level, words ...string) {
	t.Helper()
	i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Check == check && f.Level == level })
	if i < 0 {
		t.Fatalf("no %s of %s in %+v", level, check, all)
	}
	for _, w := range words {
		if !strings.Contains(all[i].Text+" TO DO "+all[i].Remedy, w) {
			t.Errorf("%q isn't in %+v", w, all[i])
		}
	}
	machine := []string{"files", "memory", "state_dir"} // of the one that runs the test
	for j, f := range all {
		if j != i && (f.Level == doctor.Fail || f.Level == doctor.Warning && level == doctor.Warning) && !slices.Contains(machine, f.Check) {
			t.Errorf("beside it: %+v", f)
		}
	}
}

func TestBeforeTheFirstStart(t *testing.T) {
	e := none(t)
	file := e.file(t, oneNode+allModel)
	all := examine(t, diagnose.Options{File: file})
	for _, check := range []string{"config", "access", "listen.nodes", "listen.http", "tokens", "routes"} {
		want(t, all, check, doctor.OK)
	}
	want(t, all, "admin", doctor.Skipped, "no Edge runs here")
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "state")); err == nil {
		t.Error("the state directory was made")
	}
}

func TestConfigFaults(t *testing.T) {
	for name, c := range map[string]struct{ text, word string }{
		"unknown key":       {"nods: []\n", "nods: unknown key"},
		"admin key missing": {"listen: {admin: '0.0.0.0:8081'}\n", "admin_key_hashes"},
		"open to all":       {"listen: {http: '0.0.0.0:8080'}\n", "add a principal"},
		"plaintext":         {"listen: {nodes: '0.0.0.0:7443'}\n", "insecure_plaintext"},
	} {
		path := filepath.Join(t.TempDir(), "edge.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		all := examine(t, diagnose.Options{File: path})
		if doctor.Worst(all) != doctor.Fail || !strings.Contains(fmt.Sprint(all), c.word) {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// One fault each, planted in the file or in what it names.
func TestFaultsOfTheFile(t *testing.T) {
	node := func(more string) string {
		return "nodes: [{id: a, token_hashes: [{sha256: " + hash + "}], " + more + "}]\n"
	}
	for name, c := range map[string]struct {
		text, check string
		level       doctor.Level
		words       []string
	}{
		"no target": {node("adapters: [{name: l, kind: loopback, targets: [x]}]") + "routes: [{model: m}]\n",
			"route m", doctor.Fail, []string{"no configured node", "targets"}},
		"only disabled ones": {node("enabled: false, adapters: [{name: l, kind: loopback}]") + "routes: [{model: m}]\n",
			"route m", doctor.Fail, []string{"disabled"}},
		"no route": {oneNode, "routes", doctor.Warning, []string{"no route"}},
		"expired token": {"nodes: [{id: a, token_hashes: [{sha256: " + hash + ", not_after: 2020-01-01T00:00:00Z}], adapters: [{name: l, kind: loopback}]}]\n" + allModel,
			"tokens", doctor.Fail, []string{"a has expired", "iop-edge token new a"}},
		"token ends": {"nodes: [{id: a, token_hashes: [{sha256: " + hash + ", not_after: " + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + "}], adapters: [{name: l, kind: loopback}]}]\n" + allModel,
			"tokens", doctor.Warning, []string{"last token of a ends"}},
		"plaintext": {"insecure_plaintext: true\n" + oneNode + allModel, "access", doctor.Warning, []string{"in the clear", "managed"}},
		"well":      {oneNode + "routes: [{model: m, target: l}, {model: \"*\"}]\n", "routes", doctor.OK, []string{"2 routes"}},
	} {
		t.Run(name, func(t *testing.T) {
			want(t, examine(t, diagnose.Options{File: none(t).file(t, c.text)}), c.check, c.level, c.words...)
		})
	}
}

// Ports that somebody else has, and addresses that aren't this machine's.
func TestListenerFaults(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	taken := other.Listener.Addr().String()
	e := none(t)
	e.http = taken
	want(t, examine(t, diagnose.Options{File: e.file(t, oneNode+allModel)}), "listen.http", doctor.Fail, "is taken", "ss -ltnp")
	e = none(t)
	e.admin = taken
	want(t, examine(t, diagnose.Options{File: e.file(t, oneNode+allModel)}), "admin", doctor.Fail, "something else than an Edge")
	e = none(t)
	e.nodes = "192.0.2.1:7443" // no machine has it
	want(t, examine(t, diagnose.Options{File: e.file(t, "insecure_plaintext: true\n"+oneNode+allModel)}), "listen.nodes", doctor.Fail, "address of this machine")
	e = running(t, ready(nil), http.NotFound)
	e.http = none(t).http
	want(t, examine(t, diagnose.Options{File: e.file(t, oneNode+allModel)}), "listen.http", doctor.Fail, "an Edge runs, and nothing answers")
}

func TestCertificateFaults(t *testing.T) {
	ca := identitytest.NewCA(t, "ours")
	expired := identitytest.Write(t, t.TempDir(), ca.Edge(t, func(c *certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}), ca)
	file := none(t).file(t, fmt.Sprintf("mode: managed\ntls: {cert: %q, key: %q, ca: %q, trust_domain: %s}\n%s", expired.Cert, expired.Key, expired.CA,
		identitytest.TrustDomain, oneNode+allModel))
	want(t, examine(t, diagnose.Options{File: file}), "tls.cert", doctor.Fail, "expired at", "iop-edge ca issue")
	ending := identitytest.Write(t, t.TempDir(), ca.Edge(t, func(c *certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-20*time.Hour), time.Now().Add(time.Hour)
	}), ca)
	e := none(t)
	file = e.file(t, oneNode+allModel)
	overwrite(t, file, fmt.Sprintf("listen: {nodes: %q, http: %q, admin: %q, http_tls: {cert: %q, key: %q}}\n%s", e.nodes, e.http, e.admin, ending.Cert, ending.Key, oneNode+allModel))
	want(t, examine(t, diagnose.Options{File: file}), "listen.http_tls", doctor.Warning, "ends in", "restart")
}

func TestStateFaults(t *testing.T) {
	e := none(t)
	file := e.file(t, oneNode+allModel)
	state := filepath.Join(filepath.Dir(file), "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	overwrite(t, filepath.Join(state, "generation.json"), `{"edge_id":"e","reserved`)
	all := examine(t, diagnose.Options{File: file})
	if i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Level == doctor.Fail }); i < 0 || all[i].Check != "state_dir" ||
		!strings.Contains(all[i].Text+all[i].Remedy, "backup") {
		t.Errorf("%+v", all)
	}
	overwrite(t, filepath.Join(state, "generation.json"), `{"edge_id":"e","reserved_generation":2048}`)
	want(t, examine(t, diagnose.Options{File: file}), "routes", doctor.OK)
}

// A slot's source is read as at the start, and its key never shown.
func TestSlotFaults(t *testing.T) {
	ca := identitytest.NewCA(t, "ours")
	id := identitytest.Write(t, t.TempDir(), ca.Edge(t), ca)
	file := none(t).file(t, fmt.Sprintf(`mode: managed
tls: {cert: %q, key: %q, ca: %q, trust_domain: %s}
profiles: [{id: p, origin: "https://api.example", paths: ["POST /v1/chat/completions"]}]
slots: [{id: main, source: "file:./provider.key", profile: p, nodes: [a]}]
routes: [{model: m, adapter: h, slot: main}]
nodes: [{id: a, token_hashes: [{sha256: %s}], adapters: [{name: h, kind: openai, base_url: "https://api.example"}]}]
`, id.Cert, id.Key, id.CA, identitytest.TrustDomain, hash))
	want(t, examine(t, diagnose.Options{File: file}), "slot main", doctor.Fail, "doesn't exist", "mode 600")
	overwrite(t, filepath.Join(filepath.Dir(file), "provider.key"), apiKey+"\n") // examine looks for it in what is shown
	want(t, examine(t, diagnose.Options{File: file}), "slot main", doctor.OK, fmt.Sprintf("%d bytes", len(apiKey)), "https://api.example")
}

func overwrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
