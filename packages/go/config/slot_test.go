package config

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// leasing is the start of an Edge's file in mode managed with a node for a hosted API and a profile for it; it ends where
// slots may follow, on line 17.
const leasing = "mode: managed\ntls: {cert: c, key: k, ca: a, trust_domain: t.example}\n" + oneNode +
	"  - name: hosted\n    kind: openai\n    base_url: https://api.example.com/v1\n" +
	"profiles:\n- id: p\n  origin: https://api.example.com\n  paths: [POST /v1/chat/completions]\n"

const (
	noSource   = "must say where the key is, not what it is: give " + sourceForms
	noExecList = "exec: must be followed by a list: [PROGRAM, ARGUMENT, ...]"
	oneSlot    = "slots:\n- {id: s, source: env:X, profile: p, nodes: [n]}\n"
)

// sourceOf is a file with one slot whose source stands on line 18.
func sourceOf(source string) string {
	return leasing + "slots:\n- source: " + source + "\n  id: s\n  profile: p\n"
}

// E45: whatever stands where a source should, what is said of it holds no part of it.
var sourceCases = []refusal{
	{"inline", sourceOf("sk-proj-1234567890"), []string{"18: slots[0].source: " + noSource}},
	{"inline with a colon", sourceOf("sk:proj-1234567890"), []string{"18: slots[0].source: " + noSource}},
	{"inline number", sourceOf("1234567890"), []string{"18: slots[0].source: " + noSource}},
	{"inline in quotes", sourceOf("\" sk-proj-1234567890\""), []string{"18: slots[0].source: " + noSource}},
	{"unknown scheme", sourceOf("vault:secret/openai"), []string{"18: slots[0].source: " + noSource}},
	{"scheme in capitals", sourceOf("FILE:/x"), []string{"18: slots[0].source: " + noSource}},
	{"unknown key", sourceOf("{value: sk-proj-1234567890}"), []string{"18: slots[0].source: " + noSource}},
	{"secret as a key", sourceOf("{sk-proj-1234567890: x}"), []string{"18: slots[0].source: " + noSource}},
	{"several lines", sourceOf("|\n    sk-proj-1234567890\n    x"), []string{
		"18: slots[0].source: holds a line break or another control character"}},
	{"long", sourceOf(strings.Repeat("k", 5000)), []string{"18: slots[0].source: is longer than 4096 bytes"}},
	{"missing", leasing + "slots: [{id: s, profile: p}]\n", []string{"17: slots[0].source: is missing; give " + sourceForms}},
	{"null", sourceOf("~"), []string{"18: slots[0].source: has no value; give " + sourceForms}},
	{"empty", sourceOf("''"), []string{"18: slots[0].source: " + noSource}},
	{"a list", sourceOf("[a]"), []string{"18: slots[0].source: must be one of " + sourceForms}},
	{"two kinds", sourceOf("{env: X, file: y}"), []string{"18: slots[0].source: must have exactly one of file, cred, env and exec"}},
	{"no kind", sourceOf("{}"), []string{"18: slots[0].source: must have exactly one of file, cred, env and exec"}},
	{"a value beside the source", leasing + "slots:\n- id: s\n  source: env:X\n  profile: p\n  value: sk-proj-1234567890\n", []string{
		"21: slots[0].value: unknown key; known here: id, source, profile, nodes, refresh, stale_max"}},
	{"env beside the source", leasing + "slots:\n- id: s\n  source: file:x\n  profile: p\n  env: sk-proj-1234567890\n", []string{
		"21: slots[0].env: unknown key; known here: id, source, profile, nodes, refresh, stale_max"}},
	{"a source twice", leasing + "slots:\n- id: s\n  source: file:x\n  profile: p\n  source: env:X\n", []string{
		"21: slots[0].source: appears twice, first on line 19; remove one"}},
	{"file without a path", sourceOf("'file:'"), []string{"18: slots[0].source: file: must be followed by a path; ~ isn't expanded here"}},
	{"home directory", sourceOf("file:~/key"), []string{"18: slots[0].source: file: must be followed by a path; ~ isn't expanded here"}},
	{"cred that is a path", sourceOf("cred:../key"), []string{"18: slots[0].source: cred: must be followed by the name of a systemd credential"}},
	{"env that is no name", sourceOf("env:sk-proj-1234567890"), []string{
		"18: slots[0].source: env: must be followed by the name of an environment variable"}},
	{"env with a list", sourceOf("{env: [X]}"), []string{"18: slots[0].source: env: must be followed by one name"}},
	{"exec without a list", sourceOf("exec:vault kv get"), []string{"18: slots[0].source: " + noExecList}},
	{"exec with half a list", sourceOf("'exec:[vault'"), []string{"18: slots[0].source: " + noExecList}},
	{"exec with two lists", sourceOf("'exec:[vault][x]'"), []string{"18: slots[0].source: " + noExecList}},
	{"exec with an alias", sourceOf("'exec:[*sk-proj-1234567890]'"), []string{"18: slots[0].source: " + noExecList}},
	{"exec with a list inside", sourceOf("exec:[vault, [kv]]"), []string{"18: slots[0].source: exec: each argument must be one value; put it in quotes"}},
	{"exec with nothing", sourceOf("exec:[]"), []string{"18: slots[0].source: exec: must be followed by a list of a program and at most 63 arguments"}},
	{"exec with a lot", sourceOf("exec:[" + strings.Repeat("x, ", 64) + "x]"), []string{
		"18: slots[0].source: exec: must be followed by a list of a program and at most 63 arguments"}},
	{"exec without a program", sourceOf("exec:['', kv]"), []string{"18: slots[0].source: exec: must name a program; ~ isn't expanded here"}},
	{"exec as a text", sourceOf("{exec: vault}"), []string{"18: slots[0].source: exec: must be followed by a list of a program and at most 63 arguments"}},
}

var profileCases = []refusal{
	{"nothing", "profiles: [{}, {id: 'a b', origin: https://h, paths: [GET /]}]\n", []string{
		"1: profiles[0].id: is missing",
		"1: profiles[0].origin: is missing; write it like https://api.example.com or https://api.example.com:8443, without a path",
		`1: profiles[0].paths: is missing; list the requests that the key may go with, like ["POST /v1/chat/completions"]`,
		`1: profiles[1].id: "a b" can't be a name: 1 to 64 characters of A-Z a-z 0-9 . _ -`}},
	{"twice", "profiles: [{id: a, origin: https://h, paths: [GET /]}, {id: a, origin: https://h, paths: [GET /, GET /]}]\n", []string{
		`1: profiles[1].id: "a" is the same profile id as profiles[0].id (line 1); each must differ`,
		`1: profiles[1].paths[1]: "GET /" is the same path in this list as profiles[1].paths[0] (line 1); each must differ`}},
	{"header and scheme", "profiles:\n- {id: a, origin: https://h, paths: [GET /], header: Cookie}\n" +
		"- {id: b, origin: https://h, paths: [GET /], header: x-api_key, scheme: sk-proj-1234567890}\n" +
		"- {id: c, origin: https://h, paths: [GET /], scheme: bearer}\n", []string{
		`2: profiles[0].header: "Cookie" isn't a header that may carry a key; use Authorization, X-Api-Key, Api-Key, X-Goog-Api-Key`,
		`3: profiles[1].header: "x-api_key" isn't a header that may carry a key; did you mean "X-Api-Key"?`,
		`3: profiles[1].scheme: must be Bearer, or "" for none`,
		`4: profiles[2].scheme: must be Bearer, or "" for none`}},
	{"paths", "profiles:\n- id: a\n  origin: https://h\n  paths: [/v1/x, post /v1/x, POST v1/x, 'POST  /v1/x', CONNECT /x, GET /v1/*, POST /v1/../x, " +
		"'POST /v1/x?key=y', POST //x, POST https://h/x]\n", []string{
		`4: profiles[0].paths[0]: "/v1/x" must be a method and a path, like "POST /v1/chat/completions"`,
		`4: profiles[0].paths[1]: "post /v1/x" must be a method and a path, like "POST /v1/chat/completions"`,
		`4: profiles[0].paths[2]: "POST v1/x" must be a method and a path, like "POST /v1/chat/completions"`,
		`4: profiles[0].paths[3]: "POST  /v1/x" must be a method and a path, like "POST /v1/chat/completions"`,
		`4: profiles[0].paths[4]: "CONNECT /x" must be a method and a path, like "POST /v1/chat/completions"`,
		`4: profiles[0].paths[5]: "GET /v1/*" has a star; each path is listed as a whole`,
		`4: profiles[0].paths[6]: "POST /v1/../x": path holds an empty or a dot segment`,
		`4: profiles[0].paths[7]: "POST /v1/x?key=y": path holds a character that is not allowed in a path`,
		`4: profiles[0].paths[8]: "POST //x": path holds an empty or a dot segment`,
		`4: profiles[0].paths[9]: "POST https://h/x" must be a method and a path, like "POST /v1/chat/completions"`}},
}

var slotCases = []refusal{
	{"mode dev", "profiles: [{id: p, origin: https://h, paths: [GET /]}]\nslots: [{id: s, source: env:X, profile: p}]\nroutes: [{model: m, slot: s}]\n", []string{
		"2: slots: need mode: managed: a key is lent only to a node that proved who it is",
		"3: routes[0].slot: needs mode: managed: a key is lent only to a node that proved who it is"}},
	{"references", leasing + "slots:\n- {id: s, source: env:X, nodes: [n, n, m]}\n- {id: s, source: env:X, profile: q}\n- {source: env:X, profile: px}\n", []string{
		"18: slots[0].profile: is missing; name the profile by which the key is used",
		`18: slots[0].nodes[1]: "n" is the same node in this list as slots[0].nodes[0] (line 18); each must differ`,
		`18: slots[0].nodes[2]: there is no node "m"`,
		`19: slots[1].id: "s" is the same slot id as slots[0].id (line 18); each must differ`,
		`19: slots[1].profile: there is no profile "q"`,
		"20: slots[2].id: is missing",
		`20: slots[2].profile: there is no profile "px"`}},
	{"times", leasing + "slots:\n- {id: a, source: env:X, profile: p, refresh: 500ms}\n- {id: b, source: env:X, profile: p, refresh: 25h, stale_max: 26h}\n" +
		"- {id: c, source: env:X, profile: p, refresh: 1m, stale_max: 59s}\nlease: {ttl: 121s}\n", []string{
		"18: slots[0].refresh: must be 1s to 24h",
		"19: slots[1].refresh: must be 1s to 24h",
		"20: slots[2].stale_max: 59s is less than refresh (1m0s), so that one failure to read the source would disable the slot",
		"21: lease.ttl: must be 1s to 2m"}},
	{"no time at all", "lease: {ttl: 0s}\n", []string{"1: lease.ttl: must be 1s to 2m"}},
	{"routes", leasing + oneSlot + "routes:\n- {model: a, slot: x}\n- {model: b, slot: s}\n- {model: c, slot: s, adapter: a}\n- {model: d, slot: s, adapter: hosted}\n", []string{
		`20: routes[0].slot: there is no slot "x"`,
		"21: routes[1].adapter: is missing; a route with a slot names its adapter, so that it is known where the key goes",
		`22: routes[2].slot: the key of slot "s" can't go to adapter "a" of node "n": its base_url is a plaintext_origin; a key is never sent without TLS`}},
	{"nodes that may not have it", leasing + "slots: [{id: s, source: env:X, profile: p}]\nroutes:\n- {model: d, slot: s, adapter: hosted}\n", []string{
		`19: routes[0].slot: no node of slot "s" may serve this route with an adapter "hosted"; list the nodes that may be given the key in the slot's nodes`}},
	{"another origin", strings.Replace(leasing, "https://api.example.com\n", "https://api.example.com:8443\n", 1) + oneSlot + "routes: [{model: d, slot: s, adapter: hosted}]\n", []string{
		`19: routes[0].slot: the key of slot "s" can't go to adapter "hosted" of node "n": its base_url is at "https://api.example.com:443", and profile "p" sends the key to "https://api.example.com:8443" only`}},
	{"a kind without a provider", strings.Replace(leasing, "kind: openai\n    base_url: https://api.example.com/v1\n", "kind: auto\n", 1) + oneSlot +
		"routes: [{model: d, slot: s, adapter: hosted}]\n", []string{
		`18: routes[0].slot: the key of slot "s" can't go to adapter "hosted" of node "n": its kind "auto" names no provider; use openai, anthropic or ollama with a base_url`}},
}

// Only the nodes that both the route and the slot name are looked at: others are never given the key of this route.
func TestNodesOfASlotAndARoute(t *testing.T) {
	const more = "- {id: m, token_hashes: [{sha256: " + hashB + "}], labels: {site: x}, adapters: [{name: hosted, kind: openai, base_url: 'https://other'}]}\n"
	file := func(nodes, route string) string {
		return strings.Replace(leasing, "profiles:", more+"profiles:", 1) + "slots: [{id: s, source: env:X, profile: p, nodes: " + nodes + "}]\n" +
			"routes: [{model: d, slot: s, adapter: hosted, " + route + "}]\n"
	}
	const wrong, none = "can't go to adapter \"hosted\" of node \"m\"", "no node of slot \"s\" may serve this route"
	for _, c := range []struct{ nodes, route, want string }{
		{"[n]", "", ""}, {"[n, m]", "nodes: [n]", ""}, {"[n]", "nodes: [n, m]", ""},
		{"[n, m]", "", wrong}, {"[n, m]", "nodes: [n, m]", wrong}, {"[n, m]", "labels: {site: x}", wrong},
		{"[n]", "nodes: [m]", none}, {"[n]", "labels: {site: x}", none}, {"[]", "", none},
	} {
		text := ""
		if _, err := ParseEdge("f", []byte(file(c.nodes, c.route))); err != nil {
			text = err.Error()
		}
		if (c.want == "") != (text == "") || !strings.Contains(text, c.want) || strings.Contains(text, "\n") {
			t.Errorf("slot for %s, route for %s: %q, want %q", c.nodes, c.route, text, c.want)
		}
	}
}

// E45
func TestOriginsOfKeys(t *testing.T) {
	const notAnOrigin, plain, port = "isn't an origin", "plaintext_origin", "no valid port"
	for origin, want := range map[string]string{
		"https://api.openai.com": "https://api.openai.com:443", "https://api.openai.com:443": "https://api.openai.com:443",
		"HTTPS://API.openai.com:8443": "https://api.openai.com:8443", "https://[2001:DB8::1]": "https://[2001:db8::1]:443",
		"https://10.0.0.1:1": "https://10.0.0.1:1",
		"http://h":           plain, "HTTP://h:443": plain,
		"https://": notAnOrigin, "https://h/": notAnOrigin, "https://h/v1": notAnOrigin, "https://user:s3cr3t@h": port, "https://s3cr3t@h": notAnOrigin,
		"https://h?k=s3cr3t": notAnOrigin, "https://h#s3cr3t": notAnOrigin, "h:443": notAnOrigin, "ftp://h": notAnOrigin, "//h": notAnOrigin,
		"https://h h": notAnOrigin, "https://h%41": notAnOrigin, "https://\u0430pi": notAnOrigin, "https://[]": notAnOrigin, "https://[::1": notAnOrigin,
		"https://h\\x": notAnOrigin,
		"https://h:":   port, "https://h:0": port, "https://h:65536": port, "https://h:0443": port, "https://h:+443": port, "https://h:s3cr3t": port,
	} {
		d := &decoder{problems: newProblems("f")}
		got := d.origin("origin", origin)
		text := ""
		if err := d.err(); err != nil {
			text = err.Error()
		}
		if strings.HasPrefix(want, "https://") && (got != want || text != "") || !strings.HasPrefix(want, "https://") && !strings.Contains(text, want) {
			t.Errorf("%s: %q, %q; want %q", origin, got, text, want)
		}
		if strings.Contains(text, "s3cr3t") {
			t.Errorf("%s: quoted in %q", origin, text)
		}
	}
}

func TestSlotValues(t *testing.T) {
	e := parse(t, "state_dir: /s\n"+leasing+`slots:
- {id: a, source: file:x/key, profile: p, nodes: [n]}
- {id: b, source: cred:open.ai, profile: p, refresh: 1s, stale_max: 1s}
- {id: c, source: {env: KEY}, profile: p}
- id: d
  source: exec:[vault, kv, get, -field=key, "a b", 5, secret/openai]
  profile: p
- {id: e, source: {exec: [./get, x]}, profile: p}
- {id: f, source: "exec:[/bin/get]", profile: p}
- {id: g, source: {file: /key}, profile: p}
routes: [{model: m, slot: a, adapter: hosted}, {model: x, adapter: a}]
`)
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	want := []SecretSource{
		{Kind: SourceFile, Name: dir + "/x/key"}, {Kind: SourceCred, Name: "open.ai"}, {Kind: SourceEnv, Name: "KEY"},
		{Kind: SourceExec, Argv: []string{"vault", "kv", "get", "-field=key", "a b", "5", "secret/openai"}},
		{Kind: SourceExec, Argv: []string{dir + "/get", "x"}}, {Kind: SourceExec, Argv: []string{"/bin/get"}}, {Kind: SourceFile, Name: "/key"},
	}
	shown := []string{"file:" + dir + "/x/key", "cred:open.ai", "env:KEY", "exec:vault", "exec:" + dir + "/get", "exec:/bin/get", "file:/key"}
	for i := range want {
		if d := cmp.Diff(want[i], e.Slots[i].Source); d != "" || e.Slots[i].Source.String() != shown[i] {
			t.Errorf("%s is shown as %s; %s", e.Slots[i].ID, e.Slots[i].Source, d)
		}
	}
	if s := e.Slots[0]; s.Refresh != 30*time.Second || s.StaleMax != 5*time.Minute || s.Nodes[0] != "n" || e.Routes[0].Slot != "a" {
		t.Errorf("%+v", s)
	}
	if p := e.Profiles[0]; p.Header != "Authorization" || p.Scheme != "Bearer" || p.Origin != "https://api.example.com:443" {
		t.Errorf("%+v", p)
	}
	if e.Lease.SigningKey != "/s/lease.key" || e.Lease.TTL != time.Minute {
		t.Errorf("%+v", e.Lease)
	}
}

// An empty scheme says that there is none; only an absent one is Bearer.
func TestSchemeOfAProfile(t *testing.T) {
	for keys, want := range map[string]string{
		"": "Bearer", "scheme: ''": "", "scheme: Bearer": "Bearer", "header: api-key": "", "header: X-GOOG-API-KEY, scheme: Bearer": "Bearer",
	} {
		e := parse(t, "profiles: [{id: p, origin: https://h, paths: [GET /], "+keys+"}]\n")
		if e.Profiles[0].Scheme != want {
			t.Errorf("%s: scheme %q, want %q", keys, e.Profiles[0].Scheme, want)
		}
	}
}
