package diagnose_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/apps/edge/internal/diagnose"
	"iop/packages/go/doctor"
	"iop/packages/go/execution"
	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
	"iop/packages/go/patience"
)

type certificate = x509.Certificate

// What a running Edge says of its nodes, places and routes.
func TestRunningEdge(t *testing.T) {
	nodes := func(list string) answers { return ready(answers{"/admin/v1/nodes": `{"nodes":[` + list + `]}`}) }
	for name, c := range map[string]struct {
		says  answers
		more  string
		check string
		level doctor.Level
		words []string
	}{
		"all well":   {ready(nil), allModel, "node a", doctor.OK, []string{"ready"}},
		"draining":   {ready(answers{"/readyz": `{"ready":false,"reasons":["the edge is draining"]}`}), allModel, "admin", doctor.Warning, []string{"draining"}},
		"offline":    {nodes(`{"id":"a","state":"offline","reason":"it isn't connected"}`), allModel, "node a", doctor.Fail, []string{"isn't connected", "iop-node doctor"}},
		"disabled":   {nodes(`{"id":"a","state":"disabled"}`), allModel, "node a", doctor.Warning, []string{"enabled: true"}},
		"drained":    {nodes(`{"id":"a","state":"draining","drained":true}`), allModel, "node a", doctor.Warning, []string{"ctl drain a --undo"}},
		"not ready":  {nodes(`{"id":"a","state":"unresponsive","reason":"it doesn't accept work"}`), allModel, "node a", doctor.Fail, []string{"unresponsive", "doesn't accept work"}},
		"older node": {nodes(`{"id":"a","state":"ready","version":"v0"}`), allModel, "node a", doctor.Warning, []string{"v0", "same version"}},
		"provider down": {nodes(`{"id":"a","state":"ready","version":"v1","adapters":[{"name":"l","available":false,"reason":"connection refused"}]}`), allModel,
			"adapter a/l", doctor.Fail, []string{"connection refused", "start its provider"}},
		"unconfirmed": {ready(answers{"/admin/v1/queue": `{"places":[{"node":"a","adapter":"l","unconfirmed":2}]}`}), allModel,
			"place a/l", doctor.Warning, []string{"2 runs", "ctl place release"}},
		"broken": {ready(answers{"/admin/v1/queue": `{"places":[{"node":"a","adapter":"l","broken":{"why":"upstream_error"}}]}`}), allModel,
			"place a/l", doctor.Warning, []string{"upstream_error"}},
		"clock jumped": {ready(answers{"/admin/v1/events": "event: clock_skew\ndata: {\"kind\":\"clock_skew\",\"node\":\"a\",\"text\":\"the clock jumped by 10m\"}\n\n"}), allModel,
			"clock a", doctor.Warning, []string{"10m", "timedatectl"}},
		"nobody serves": {ready(answers{"/admin/v1/why?model=m": `{"candidates":[{"node":"a","adapter":"l","on_route":true,"reasons":[{"code":"not_offered","text":"its provider has x, not m"}]}]}`}),
			"routes: [{model: m}]\n", "route m", doctor.Fail, []string{"a/l: its provider has x", "ctl why m"}},
		"only full": {ready(answers{"/admin/v1/why?model=m": `{"candidates":[{"node":"a","adapter":"l","on_route":true,"reasons":[{"code":"full","text":"4 of 4"}]}]}`}),
			"routes: [{model: m}]\n", "routes", doctor.OK, nil},
		"few files": {ready(answers{"/metrics": "process_max_fds 100\n"}), allModel, "files", doctor.Warning, []string{"the running Edge may have 100", "LimitNOFILE"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := running(t, c.says, http.NotFound)
			want(t, examine(t, diagnose.Options{File: e.file(t, oneNode+c.more)}), c.check, c.level, c.words...)
		})
	}
}

// An admin listener that wants a key.
func TestAdminKey(t *testing.T) {
	e := running(t, ready(answers{"/admin/v1/nodes": "401", "/admin/v1/queue": "401", "/metrics": "401"}), http.NotFound)
	file := e.file(t, oneNode+allModel)
	want(t, examine(t, diagnose.Options{File: file}), "nodes", doctor.Skipped, "--admin-key-file")
	want(t, examine(t, diagnose.Options{File: file, AdminKey: adminKey}), "nodes", doctor.Fail, "doesn't accept the admin key")
}

// An Edge that hangs isn't another program in its place.
func TestHungEdge(t *testing.T) {
	e := running(t, nil, http.NotFound)
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hung.Close()
	e.admin = hung.Listener.Addr().String()
	var all []doctor.Finding
	patience.Widen(t, 100*time.Millisecond, func(limit time.Duration) (keptUp bool) {
		checks := diagnose.Checks(diagnose.Options{File: e.file(t, oneNode+allModel), Version: "v1"})
		for i := range checks {
			if checks[i].Limit = patience.Limit; checks[i].Name == "admin" {
				checks[i].Limit = limit
			}
		}
		all = doctor.Run(t.Context(), checks, func(doctor.Finding) {})
		return !slices.ContainsFunc(all, func(f doctor.Finding) bool { return strings.Contains(f.Text, "no result within") })
	})
	want(t, all, "admin", doctor.Fail, "doesn't answer", "hangs")
	if !slices.ContainsFunc(all, func(f doctor.Finding) bool {
		return f.Check == "listen.http" && f.Level == doctor.Skipped && strings.Contains(f.Text, "is held")
	}) {
		t.Errorf("the listener of an Edge that hangs: %+v", all)
	}
}

// The test request: each of its ends.
func TestRequest(t *testing.T) {
	says := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var asked struct {
				Model  string
				Stream bool
			}
			text, _ := io.ReadAll(r.Body)
			if json.Unmarshal(text, &asked) != nil || asked.Model != "m" || !asked.Stream || r.Header.Get("Authorization") != "Bearer "+apiKey {
				status, body = 400, `{"error":{"code":"bad_request","message":"the request is wrong: `+asked.Model+`"}}`
			}
			w.Header().Set("X-IOP-Node", "a")
			w.Header().Set("X-IOP-Queue-Ms", "12")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: {\"choices\":[]}\n\ndata: {\"error\":{\"code\":\"upstream_truncated\",\"message\":\"it broke off\"}}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		level   doctor.Level
		words   []string
	}{
		"well":   {says(200, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n"), doctor.OK, []string{"node a", "12 ms", "first byte after"}},
		"no one": {says(503, `{"error":{"code":"no_node","message":"no node is ready"}}`), doctor.Fail, []string{"no_node", "no node is ready", "ctl why"}},
		"key":    {says(401, "{\n\"error\":{\n\"code\":\"unauthorized\",\n\"message\":\"no\"}}"), doctor.Fail, []string{"unauthorized", "iop-edge key new"}},
		"theirs": {says(418, `I'm a teapot`), doctor.Fail, []string{"418", "provider's own answer"}},
		"cut":    {cut, doctor.Fail, []string{"upstream_truncated", "cut", "broke its answer off"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := running(t, ready(answers{"/admin/v1/why": `{"candidates":[{"takes_work":true}]}`}), c.handler)
			model := ""
			all := examine(t, diagnose.Options{File: e.file(t, oneNode+"routes: [{model: m}]\n"), Request: &model, APIKey: apiKey, Deadline: time.Minute})
			want(t, all, "request", c.level, c.words...)
		})
	}
}

// Who has no key is told how to give one.
func TestRequestWithoutAKey(t *testing.T) {
	e := running(t, ready(nil), func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a key was sent, and none was given")
		}
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":{"code":"unauthorized","message":"no valid API key"}}`)
	})
	model := "m"
	all := examine(t, diagnose.Options{File: e.file(t, oneNode+allModel), Request: &model, Deadline: time.Minute})
	want(t, all, "request", doctor.Fail, "unauthorized", "--key-file")
}

// Over TLS the key goes only to whoever shows the certificate that the file names.
func TestRequestOverTLS(t *testing.T) {
	ca := identitytest.NewCA(t, "ours")
	ours, theirs := identitytest.Write(t, t.TempDir(), ca.Edge(t), ca), identitytest.Write(t, t.TempDir(), ca.Edge(t), ca)
	pair, err := tls.LoadX509KeyPair(ours.Cert, ours.Key)
	if err != nil {
		t.Fatal(err)
	}
	var keys atomic.Int32
	callers := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer "+apiKey {
			keys.Add(1)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	callers.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	callers.Config.ErrorLog = log.New(io.Discard, "", 0)
	callers.StartTLS()
	defer callers.Close()
	e := running(t, ready(nil), http.NotFound)
	ask := func(files identity.Files) []doctor.Finding {
		file, model := e.file(t, ""), "m"
		overwrite(t, file, fmt.Sprintf("listen: {nodes: %q, http: %q, admin: %q, http_tls: {cert: %q, key: %q}}\n%s", e.nodes, callers.Listener.Addr(), e.admin,
			files.Cert, files.Key, oneNode+allModel))
		return examine(t, diagnose.Options{File: file, Request: &model, APIKey: apiKey, Deadline: time.Minute})
	}
	want(t, ask(ours), "request", doctor.OK, "m answered")
	want(t, ask(theirs), "request", doctor.Fail, "another certificate", "restart")
	if n := keys.Load(); n != 1 {
		t.Errorf("the key was sent %d times", n)
	}
}

// A request that isn't answered is given up by its deadline.
func TestRequestDeadline(t *testing.T) {
	patience.Widen(t, 100*time.Millisecond, func(limit time.Duration) (keptUp bool) {
		came, gone := make(chan struct{}, 1), make(chan struct{})
		e := running(t, ready(nil), func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			came <- struct{}{}
			<-r.Context().Done()
			close(gone)
		})
		model := "m"
		all := examine(t, diagnose.Options{File: e.file(t, oneNode+allModel), Request: &model, Deadline: limit})
		if len(came) == 0 {
			return false
		}
		want(t, all, "request", doctor.Fail, fmt.Sprintf("wasn't answered within %v", limit), "ctl queue")
		patience.Receive(t, "the caller leaves", gone)
		return true
	})
}

// Every failure code has its advice.
func TestEveryCodeHasAdvice(t *testing.T) {
	seen := map[string]execution.Code{}
	for _, code := range execution.Codes() {
		text := diagnose.Advise(code.String())
		if strings.Contains(text, "provider's own answer") {
			t.Errorf("%v has no advice", code)
		}
		if other, twice := seen[text]; twice {
			t.Errorf("%v and %v have the same advice", code, other)
		}
		seen[text] = code
	}
	if !slices.Contains(execution.Codes(), execution.CodeInternal) {
		t.Error("there are no codes")
	}
}
