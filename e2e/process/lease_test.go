//go:build e2e

package process

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/procs"
)

// keyed is a managed site whose one route needs a provider's key, which only the edge has. The provider speaks TLS and
// says 401 to whoever doesn't show the key.
type keyed struct {
	*managed
	provider *fakeprovider.Provider
	source   string // the file that the key is in
}

// newKey draws a key that looks like one.
func newKey() string { return "sk-test-" + rand.Text() + rand.Text() }

// answers is a provider that wants one of these keys.
func answers(keys func() []string) fakeprovider.Script {
	return func(x *fakeprovider.Exchange) {
		x.Body()
		shown := strings.TrimPrefix(x.Header.Get("Authorization"), "Bearer ")
		if !slices.Contains(keys(), shown) {
			x.Reply(401, "application/json", `{"error":{"message":"wrong key","type":"invalid_request_error"}}`)
			return
		}
		x.Reply(200, "application/json", `{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop",`+
			`"message":{"role":"assistant","content":"paid"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}
}

func newKeyed(t *testing.T, key string, script fakeprovider.Script) *keyed {
	t.Helper()
	return newKeyedAs(t, key, script, func(*procs.SiteConfig) {})
}

// newKeyedAs is newKeyed with something changed about the site.
func newKeyedAs(t *testing.T, key string, script fakeprovider.Script, change func(*procs.SiteConfig)) *keyed {
	t.Helper()
	dir := t.TempDir()
	p := fakeprovider.NewTLS(t, script)
	write(t, dir, "provider.pem", string(p.CertPEM()))
	write(t, dir, "key", key+"\n")
	k := &keyed{provider: p, source: filepath.Join(dir, "key")}
	c := procs.SiteConfig{
		Adapters:   fmt.Sprintf("[{name: hosted, kind: openai, base_url: %q, max_concurrency: 2, targets: [m]}]", p.URL()),
		Routes:     "[{model: keyed, adapter: hosted, target: m, slot: main}]",
		NodePrefix: []string{"env", "SSL_CERT_FILE=" + filepath.Join(dir, "provider.pem")},
		Node:       "log: {level: trace}\nadmin: {listen: '127.0.0.1:0'}",
		Edge: fmt.Sprintf(`log: {level: trace}
profiles: [{id: p, origin: %q, paths: ["POST /v1/chat/completions"]}]
slots: [{id: main, source: "file:%s", profile: p, nodes: [%s], refresh: 1h, stale_max: 1h}]`, p.URL(), k.source, procs.NodeID),
	}
	change(&c)
	k.managed = newManaged(t, "1h", c)
	return k
}

// calls returns the requests that ran something.
func (k *keyed) calls() (list []*fakeprovider.Exchange) {
	for _, x := range k.provider.Exchanges() {
		if x.Method == "POST" {
			list = append(list, x)
		}
	}
	return list
}

// pays asks for an answer that needs the key, and must get it.
func (k *keyed) pays() *call {
	k.t.Helper()
	c := k.ask(chat("keyed", modeJSON))
	if c.status != 200 || c.err != nil || !strings.Contains(c.text(), "paid") {
		k.t.Fatalf("%s", c)
	}
	return c
}

// refused asks and must be refused with the code, while the provider sees nothing.
func (k *keyed) refused(status int, code string) {
	k.t.Helper()
	before := len(k.calls())
	c := k.ask(chat("keyed", modeJSON))
	if c.status != status || c.code() != code {
		k.t.Errorf("%s, want %d %s", c, status, code)
	}
	if n := len(k.calls()); n != before {
		k.t.Errorf("the provider was asked %d times", n-before)
	}
}

// ctl runs a command of an operator and returns what it shows.
func (k *keyed) ctl(args ...string) string {
	k.t.Helper()
	got := run(k.t, k.Dir, "iop-edge", append(append([]string{"ctl"}, args...), "--admin", "http://"+k.Admin)...)
	if got.code != 0 {
		k.t.Fatalf("ctl %v: %+v", args, got)
	}
	return got.stdout
}

// forms are the ways in which a secret may show.
func forms(key string) map[string]string {
	return map[string]string{"plain": key, "base64": base64.StdEncoding.EncodeToString([]byte(key))[:20], "hex": hex.EncodeToString([]byte(key)),
		"url": url.QueryEscape(key), "its middle": key[12:24]}
}

// CR-03, E36, E44, CR-06: the key reaches the provider once and exactly, in a tunnel and in a normalized run; of the caller's own keys
// none does; and the key is in no log at trace level, no store, no metric, no event, no answer.
func TestProviderKeyIsLent(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	var said strings.Builder
	c := k.ask(chat("keyed", modeJSON, "authorization: Bearer client-1", "X-API-KEY: client-2", "Api-key: client-3", "COOKIE: a=client-4",
		"X-Goog-Api-Key: client-5", "Proxy-Authorization: Basic client-6"))
	fmt.Fprint(&said, c.header, c.text())
	if c.status != 200 || !strings.Contains(c.text(), "paid") {
		t.Fatalf("%s", c)
	}
	status, text := k.runs("POST", "/iop/v1/runs", `{"adapter":"hosted","target":"m","messages":[{"role":"user","content":"hi"}],"stream":false}`)
	fmt.Fprint(&said, text)
	if status != 200 || !strings.Contains(text, "paid") {
		t.Errorf("a run: %d %s", status, text)
	}
	calls := k.calls()
	if len(calls) != 2 {
		t.Fatalf("%d calls", len(calls))
	}
	for i, x := range calls {
		if got := x.Header.Values("Authorization"); len(got) != 1 || got[0] != "Bearer "+key {
			t.Errorf("call %d has %d credentials", i, len(got))
		}
		if strings.Contains(string(x.Head), "client-") {
			t.Errorf("call %d has a key of the caller", i)
		}
	}
	k.provider.Use(answers(func() []string { return nil })) // its 401 is the caller's answer, and nothing else is tried
	c = k.ask(chat("keyed", modeJSON))
	fmt.Fprint(&said, c.header, c.text())
	if c.status != 401 || len(k.calls()) != 3 {
		t.Errorf("%s after %d calls", c, len(k.calls()))
	}
	k.provider.Use(func(x *fakeprovider.Exchange) { x.Body(); x.Reset() })
	c = k.ask(chat("keyed", modeJSON))
	fmt.Fprint(&said, c.header, c.text())
	k.provider.Close()
	c = k.ask(chat("keyed", modeJSON))
	fmt.Fprint(&said, c.header, c.text())
	if c.status != 502 || c.code() != "upstream_connect" {
		t.Errorf("%s", c)
	}
	said.WriteString(k.ctl("slot", "list"))
	said.WriteString(k.ctl("slot", "list", "-o", "json"))
	said.Write(get(t, k.edgeSide, k.Admin, "/metrics"))
	k.settled()
	said.WriteString(k.Edge.Log())
	said.WriteString(k.Node.Log())
	said.WriteString(k.files())
	for how, form := range forms(key) {
		if at := strings.Index(said.String(), form); at >= 0 {
			t.Errorf("the key shows (%s) at …%q", how, strings.ReplaceAll(said.String()[max(0, at-80):at], "\n", " "))
		}
	}
}

// files are all that both programs wrote.
func (k *keyed) files() string {
	k.t.Helper()
	var all strings.Builder
	for _, dir := range []string{"state", "data"} {
		if err := filepath.WalkDir(k.Path(dir), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				var b []byte
				b, err = os.ReadFile(path)
				all.Write(b)
			}
			return err
		}); err != nil {
			k.t.Fatal(err)
		}
	}
	return all.String()
}

// CR-10, E10, the issue's own trial: a key that is disabled or revoked serves no request from the next on, also after a restart of the edge;
// a new one in its place does.
func TestKeyIsTakenBack(t *testing.T) {
	first, second := newKey(), newKey()
	k := newKeyed(t, first, answers(func() []string { return []string{first, second} }))
	k.pays()
	k.ctl("slot", "disable", "main")
	k.refused(503, "credential_unavailable")
	k.ctl("slot", "enable", "main")
	k.pays()
	k.ctl("slot", "revoke", "main")
	k.refused(503, "credential_unavailable")
	if err := k.Edge.Stop(limit); err != nil {
		t.Fatal(err)
	}
	k.restartEdge()
	k.refused(503, "credential_unavailable")
	var list struct{ Slots []struct{ State string } }
	if err := json.Unmarshal([]byte(k.ctl("slot", "list", "-o", "json")), &list); err != nil || len(list.Slots) != 1 || list.Slots[0].State != "revoked" {
		t.Errorf("%v, %v", list, err)
	}
	if err := os.WriteFile(k.source, []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	k.ctl("slot", "refresh", "main")
	k.pays()
	last := k.calls()[len(k.calls())-1]
	if last.Header.Get("Authorization") != "Bearer "+second {
		t.Error("the new key isn't used")
	}
}

// CR-10: what waits in the queue while the key is replaced goes with the new one; --cancel-running ends what has the revoked one on the wire.
func TestKeyChangesUnderTheQueue(t *testing.T) {
	first, second := newKey(), newKey()
	release := make(chan struct{})
	ok := answers(func() []string { return []string{first, second} })
	k := newKeyed(t, first, func(x *fakeprovider.Exchange) {
		if x.Method == "POST" && strings.HasSuffix(x.Header.Get("Authorization"), first) {
			x.Body()
			select {
			case <-release:
			case <-x.Gone():
				return
			}
		}
		ok(x)
	})
	var holders []*call
	for range 2 {
		holders = append(holders, k.begin("a holder", "keyed", modeJSON))
	}
	eventually(t, limit, "both places are taken", func() bool { return len(k.calls()) == 2 })
	waiting := k.begin("who waits", "keyed", modeJSON)
	eventually(t, limit, "one waits", func() bool { return k.metric("iop_queue_length") == 1 })
	if err := os.WriteFile(k.source, []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	k.ctl("slot", "refresh", "main")
	close(release)
	for _, c := range append(holders, waiting) {
		if c.await(t, limit); c.status != 200 {
			t.Errorf("%s", c)
		}
	}
	if got := k.calls()[2].Header.Get("Authorization"); got != "Bearer "+second {
		t.Error("who waited went with the old key")
	}

	k.provider.Use(func(x *fakeprovider.Exchange) { x.Body(); <-x.Gone() })
	running := k.begin("a running request", "keyed", modeJSON)
	eventually(t, limit, "it runs", func() bool { return len(k.calls()) == 4 })
	text := k.ctl("slot", "revoke", "main", "--cancel-running")
	if running.await(t, limit); running.status != 503 || running.code() != "credential_refused" {
		t.Errorf("%s", running)
	}
	if id := running.header.Get("X-Iop-Run-Id"); id == "" || !strings.Contains(text, "cancelled: "+id) {
		t.Errorf("run %q isn't listed: %s", id, text)
	}
	k.settled()
}

// sentBack is what the edge says of a provider that sends the key back.
const sentBack = "a provider sent its key back: replace the key, and look at that provider"

// CR-05, E46: a provider that sends the key back doesn't get it to the caller: in a header, in an error's body, in a stream.
func TestReflectedKey(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	for name, script := range map[string]fakeprovider.Script{
		"in a header": func(x *fakeprovider.Exchange) {
			x.Body()
			x.Reply(200, "application/json", `{"choices":[]}`, "X-Echo: "+x.Header.Get("Authorization"))
		},
		"in Location": func(x *fakeprovider.Exchange) {
			x.Body()
			x.Reply(307, "text/plain", "", "Location: https://elsewhere.test/?key="+key)
		},
		"in an error": func(x *fakeprovider.Exchange) {
			x.Body()
			x.Reply(400, "application/json", `{"error":{"message":"bad key `+key+`"}}`)
		},
		"in two pieces of an error": func(x *fakeprovider.Exchange) {
			x.Body()
			x.BeginStream(500, "application/json")
			x.Chunk(`{"error":"` + key[:20])
			x.Chunk(key[20:] + `"}`)
			x.EndChunks()
		},
	} {
		t.Run(name, func(t *testing.T) {
			k.provider.Use(script)
			seen := k.Edge.Count(sentBack)
			c := k.ask(chat("keyed", modeJSON))
			if shown := fmt.Sprint(c.header, c.text()); strings.Contains(shown, key) || strings.Contains(shown, key[20:]) {
				t.Errorf("the caller got the key")
			}
			if c.status < 400 || c.status == 502 && c.code() != "credential_reflected" {
				t.Errorf("%s", c)
			}
			eventually(t, limit, "the operator is told", func() bool { return k.Edge.Count(sentBack) == seen+1 })
		})
	}
	k.provider.Use(answers(func() []string { return []string{key} }))
	k.pays()
}

// What a caller could ask for to get around the search for the key: a compressed answer, also of a
// provider that compresses unasked. (found by attack)
func TestReflectedKeyInDisguise(t *testing.T) {
	key := newKey()
	k := newKeyed(t, key, answers(func() []string { return []string{key} }))
	k.provider.Use(func(x *fakeprovider.Exchange) {
		x.Body()
		var body bytes.Buffer
		z := gzip.NewWriter(&body)
		fmt.Fprintf(z, `{"error":{"message":"bad key %s"}}`, x.Header.Get("Authorization"))
		if err := z.Close(); err != nil {
			t.Error(err)
		}
		x.Reply(401, "application/json", body.String(), "Content-Encoding: gzip")
	})
	c := k.ask(chat("keyed", modeJSON, "Accept-Encoding: gzip"))
	if c.status != 502 || c.code() != "upstream_error" {
		t.Errorf("%s", c)
	}
	if asked := k.calls()[0].Header.Values("Accept-Encoding"); len(asked) != 1 || asked[0] != "identity" {
		t.Errorf("the provider was asked for %q", asked)
	}
	k.provider.Use(answers(func() []string { return []string{key} }))
	k.pays()
}
