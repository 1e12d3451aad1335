package config

import (
	"strings"
	"testing"
)

// node is the start of an Edge's file with one node, so that cases show what they are about.
const oneNode = "nodes:\n- id: n\n  token_hashes: [{sha256: " + hashA + "}]\n  adapters:\n  - name: a\n    kind: openai\n" +
	"    base_url: http://h:1\n"

// refusals are files and everything that is said of them; the file's name is left out of the lines.
type refusal struct {
	name, file string
	want       []string
}

func TestEdgeRefusals(t *testing.T) {
	for _, cases := range [][]refusal{typoCases, yamlCases, valueCases, listenCases, recordCases, adapterCases, routeCases, sourceCases, profileCases, slotCases} {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				_, err := ParseEdge("f", []byte(c.file))
				compare(t, err, c.want)
			})
		}
	}
}

func compare(t *testing.T, err error, want []string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	for i := range want {
		want[i] = "f:" + want[i]
		want[i] = strings.Replace(want[i], "f:-:", "f:", 1)
	}
	if got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// CF-05
var typoCases = []refusal{
	{"misspelt key", oneNode + "    max_concurency: 4\n", []string{
		`8: nodes[0].adapters[0].max_concurency: unknown key; did you mean "max_concurrency"?`}},
	{"children at column 0", "providers:\nname: a\nkind: openai\n", []string{
		"1: providers: unknown key; known here: mode, listen, tls, insecure_plaintext, state_dir, nodes, principals, routes, profiles, slots, lease, cors, admin_key_hashes, limits, timers, log",
		"2: name: unknown key here; it belongs under nodes[].adapters[]",
		"3: kind: unknown key here; it belongs under nodes[].adapters[]"}},
	{"adapters at column 0", "nodes:\n- id: n\n  token_hashes: [{sha256: " + hashA + "}]\nadapters:\n- name: a\n", []string{
		"4: adapters: unknown key here; it belongs under nodes[]"}},
	{"top section indented", "listen:\n  http: 127.0.0.1:1\n  routes: []\n", []string{
		"3: listen.routes: unknown key here; it belongs at the top of the file, without indentation"}},
	{"key of a node's file", "token: file:x\nmode: dev\n", []string{
		"1: token: unknown key here; it belongs into a node's file"}},
	{"a node's file", "log: {}\nedges: []\n", []string{
		"1: is a node's file, not an Edge's; use iop-node"}},
	{"duplicate key", "log:\n  level: info\n  level: debug\nlog: {}\n", []string{
		"3: log.level: appears twice, first on line 2; remove one",
		"4: log: appears twice, first on line 1; remove one"}},
	{"all at once", "mod: dev\nlog: {level: inf}\ntimers: {dead: 5, probe: soon}\nlimits: {body: 64MB}\n", []string{
		`1: mod: unknown key; did you mean "mode"?`,
		`2: log.level: "inf" isn't a level; did you mean "info"?`,
		"3: timers.dead: needs a unit: 5s, or ms, m, h",
		`3: timers.probe: "soon" isn't a duration; write it like 500ms, 30s, 10m or 1h30m`,
		`4: limits.body: "MB" isn't a unit; use KiB, MiB or GiB`}},
	{"a caller's share and limits", "principals:\n- id: p\n  key_hashes: [" + hashA + "]\n  weight: 0\n  limits: {concurrency: -1, requests_per_minute: 1000001}\n", []string{
		"4: principals[0].weight: must be 1 to 1000",
		"5: principals[0].limits.concurrency: must be 0 to 1000000",
		"5: principals[0].limits.requests_per_minute: must be 0 to 1000000"}},
}

var yamlCases = []refusal{
	{"empty", "", []string{"-: is empty; see the commented example in configs/"}},
	{"only comments", "# nothing\n", []string{"-: is empty; see the commented example in configs/"}},
	{"not a mapping", "[a]\n", []string{"1: must be lines of key: value; see the commented example in configs/"}},
	{"one word", "token=abc\n", []string{"1: must be lines of key: value; see the commented example in configs/"}},
	{"syntax", "mode: dev\nlisten: {nodes: x\nlog: {}\n", []string{"2: isn't valid YAML: did not find expected ',' or '}'"}},
	{"tab", "log:\n\tlevel: info\n", []string{"2: isn't valid YAML: found character that cannot start any token"}},
	{"two documents", "mode: dev\n---\nmode: dev\n", []string{"2: a second document starts here; put everything into one, without ---"}},
	{"alias", "listen: &l {http: 127.0.0.1:1}\ncors: *l\n", []string{
		"1: listen: has an anchor; anchors and aliases aren't supported, write the values out",
		"2: cors: is an alias; aliases aren't supported, write the value out"}},
	{"alias without anchor", "mode: *sk-secret-secret\n", []string{
		"-: isn't valid YAML: an alias (*name) without its anchor; aliases aren't supported, write the value out"}},
	{"merge key", "log:\n  <<: {level: info}\n", []string{
		"2: log: holds a merge key (<<); merge keys aren't supported, write the values out"}},
	{"tag", "mode: !!binary ZGV2\n", []string{"1: mode: has a YAML tag (!); tags aren't supported, remove it"}},
	{"key that isn't a word", "log:\n  [a]: 1\n", []string{"2: log: holds a key that isn't a plain word"}},
}

var valueCases = []refusal{
	{"types", "mode: [dev]\nlisten: x\nnodes: {}\ninsecure_plaintext: yes\nstate_dir: 5\nlimits: {unregistered: many, handshakes: 1.5}\n", []string{
		"1: mode: must be one value, not a list or a section",
		"2: listen: must be a section with keys (nodes, http, admin, http_tls)",
		"3: nodes: must be a list: [a, b], or lines that start with -",
		"4: insecure_plaintext: must be true or false",
		"5: state_dir: must be a text; put it in quotes",
		"6: limits.unregistered: must be a whole number",
		"6: limits.handshakes: must be a whole number"}},
	{"no value", "mode:\nstate_dir: \"\"\nnodes: [~]\n", []string{
		"1: mode: has no value; give one or remove the line",
		"2: state_dir: is empty; name a directory",
		"3: nodes[0]: is empty; fill it in or remove its line"}},
	{"control characters", "state_dir: \"a\\nb\"\n", []string{"1: state_dir: holds a line break or another control character"}},
	{"home directory", "state_dir: ~/iop\n", []string{"1: state_dir: starts with ~, which isn't expanded here; write the whole path"}},
	{"sizes", "limits:\n  body: -1\n  body_memory: 99999999999GiB\n  header: 64KiB\n  body_in_memory: lots\n", []string{
		`2: limits.body: "-1" isn't a size; write it like 64MiB, 256KiB or a number of bytes`,
		"3: limits.body_memory: is too large",
		"4: limits.header: must be 4096 to 32768",
		`5: limits.body_in_memory: "lots" isn't a size; write it like 64MiB, 256KiB or a number of bytes`}},
	{"limits against each other", "limits:\n  body: 1GiB\n  body_memory: 1MiB\n  body_in_memory: 1GiB\n  handshakes: 9\n  unregistered: 8\n", []string{
		"3: limits.body_memory: is less than limits.body, so that the longest body would never be accepted",
		"5: limits.handshakes: is more than limits.unregistered"}},
	{"timers", "timers:\n  heartbeat: 45s\n  probe: 10s\n  write_idle: 0s\n  header_read: -1s\n  drain: 9000h\n", []string{
		"2: timers.heartbeat: 45s isn't less than timers.dead (45s), so that every quiet link would be cut",
		"3: timers.probe: 10s isn't less than timers.handshake (10s), which includes it",
		"4: timers.write_idle: must be more than 0",
		"5: timers.header_read: must not be negative",
		"6: timers.drain: is longer than 720h"}},
	{"words", "mode: prod\nlog: {level: loud, format: jsn}\n", []string{
		`1: mode: "prod" isn't a mode; use dev, managed`,
		`2: log.level: "loud" isn't a level; use trace, debug, info, warn, error`,
		`2: log.format: "jsn" isn't a format; did you mean "json"?`}},
	{"origins", "cors: {origins: ['*', https://a.example, https://a.example/x, a.example]}\n", []string{
		`1: cors.origins[2]: "https://a.example/x" isn't an origin; write scheme://host[:port] without a path, or "*"`,
		`1: cors.origins[3]: "a.example" isn't an origin; write scheme://host[:port] without a path, or "*"`}},
}

var listenCases = []refusal{
	{"addresses", "listen:\n  nodes: 127.0.0.1\n  http: 127.0.0.1:99999\n  admin: 'a b:1'\n", []string{
		`2: listen.nodes: "127.0.0.1" isn't an address; write host:port, and an IPv6 host in [ ]`,
		`3: listen.http: "127.0.0.1:99999" has no valid port; ports are 1 to 65535`,
		`4: listen.admin: "a b:1" has no valid host`}},
	{"empty", "listen: {nodes: '', http: '', admin: ''}\n", []string{
		"1: listen.nodes: is empty; write host:port", "1: listen.http: is empty; write host:port"}},
	{"same address", "listen: {http: '127.0.0.1:7443', admin: '127.0.0.1:7443', nodes: '127.0.0.1:7443'}\n", []string{
		`1: listen.http: "127.0.0.1:7443" is the address of listen.nodes already; each listener needs its own`,
		`1: listen.admin: "127.0.0.1:7443" is the address of listen.http already; each listener needs its own`}},
	// E26
	// E26: without TLS only loopback, unless the file says in words what that means
	{"not on loopback", "listen:\n  nodes: 0.0.0.0:7443\n  http: :8080\n  admin: edge.lan:8081\n", []string{
		`2: listen.nodes: "0.0.0.0:7443" isn't on loopback, and without TLS tokens and prompts cross the network unencrypted; use mode: managed, listen on 127.0.0.1 behind a tunnel, or accept it with insecure_plaintext: true`,
		`3: listen.http: ":8080" isn't on loopback and no principals are configured, so anyone could use it; add a principal (iop-edge key new NAME makes its key), or listen on 127.0.0.1`,
		`4: listen.admin: "edge.lan:8081" isn't on loopback and there are no admin_key_hashes, so anyone could administer this Edge; add one, or listen on 127.0.0.1`}},
	{"half of TLS", "listen:\n  http_tls: {cert: a.pem}\n", []string{
		"2: listen.http_tls.key: is missing; TLS needs both cert and key"}},
}

var recordCases = []refusal{
	{"nodes", "nodes:\n- id: 'a b'\n- {id: b, token_hashes: []}\n- id: b\n  token_hashes: [{}]\n- enabled: false\n", []string{
		`2: nodes[0].id: "a b" can't be a name: 1 to 64 characters of A-Z a-z 0-9 . _ -`,
		"2: nodes[0].token_hashes: is missing, so this node can't register; iop-edge token new NODE makes a token",
		"3: nodes[1].token_hashes: is missing, so this node can't register; iop-edge token new b makes a token",
		`4: nodes[2].id: "b" is the same node id as nodes[1].id (line 3); each must differ`,
		"5: nodes[2].token_hashes[0].sha256: is missing; iop-edge token new NODE prints it",
		"6: nodes[3].id: is missing"}},
	{"hashes", "nodes:\n- {id: a, token_hashes: [{sha256: " + hashA + "}]}\n- {id: b, token_hashes: [{sha256: " + hashA + "}]}\n" +
		"principals:\n- {id: p, key_hashes: [" + hashB + "]}\n- {id: q, key_hashes: [" + hashB + "]}\n- {id: r}\n- {id: anonymous, key_hashes: [x]}\n" +
		"admin_key_hashes: [" + hashB + "]\n", []string{
		"3: nodes[1].token_hashes[0]: this token is the same token hash as nodes[0].token_hashes[0] (line 2); each must differ",
		"5: principals[0].key_hashes[0]: this key is the same key hash as admin_key_hashes[0] (line 9); each must differ",
		"6: principals[1].key_hashes[0]: this key is the same key hash as admin_key_hashes[0] (line 9); each must differ",
		"7: principals[2].key_hashes: is missing, so this caller can't get in; iop-edge key new r makes a key",
		"8: principals[3].key_hashes[0]: must be a SHA-256 in hex, 64 digits, as iop-edge token new and iop-edge key new print it; never the secret itself",
		`8: principals[3].id: "anonymous" stands for callers without a key; choose another`}},
	{"hash files", "nodes:\n- {id: a, token_hashes: [{file: /no/such}, {file: /dev/zero}, {sha256: " + hashA + ", file: x}]}\n", []string{
		"2: nodes[0].token_hashes[0].file: /no/such doesn't exist; iop-edge token new NODE --hash-file writes such a file",
		"2: nodes[0].token_hashes[1].file: /dev/zero isn't a regular file; iop-edge token new NODE --hash-file writes such a file",
		"2: nodes[0].token_hashes[2]: has both sha256 and file; keep one"}},
	{"expiry", "nodes: [{id: a, token_hashes: [{sha256: " + hashA + ", not_after: tomorrow}]}]\n", []string{
		`1: nodes[0].token_hashes[0].not_after: "tomorrow" isn't a time; write it like 2027-01-31T18:00:00Z`}},
	{"labels", "nodes: [{id: a, token_hashes: [{sha256: " + hashA + "}], labels: {'a b': x, site: [y]}}]\n", []string{
		"1: nodes[0].labels.site: must be one value",
		"1: nodes[0].labels.?: must be a name and a value of 1 to 64 characters A-Z a-z 0-9 . _ - (/ too in the value)"}},
}

var adapterCases = []refusal{
	{"adapters", "nodes:\n- id: n\n  token_hashes: [{sha256: " + hashA + "}]\n  adapters:\n  - {name: a, kind: opanai}\n  - {name: a, kind: ollama}\n" +
		"  - {name: b, kind: loopback, base_url: http://h, max_concurrency: 0}\n  - {}\n  - {name: c, kind: openai}\n  - {name: d, kind: auto, base_url: http://h}\n", []string{
		`5: nodes[0].adapters[0].kind: "opanai" isn't a kind; did you mean "openai"?`,
		`6: nodes[0].adapters[1].name: "a" is the same adapter name on this node as nodes[0].adapters[0].name (line 5); each must differ`,
		"6: nodes[0].adapters[1].base_url: is missing; write it like http://127.0.0.1:8000 or https://api.example.com/v1",
		"7: nodes[0].adapters[2].base_url: has no meaning for kind loopback, which answers by itself; remove it",
		"7: nodes[0].adapters[2].max_concurrency: must be 1 to 10000",
		"8: nodes[0].adapters[3].name: is missing",
		"8: nodes[0].adapters[3].kind: is missing; use auto, ollama, openai, anthropic or loopback",
		"9: nodes[0].adapters[4].base_url: is missing; write it like http://127.0.0.1:8000 or https://api.example.com/v1",
		"10: nodes[0].adapters[5].base_url: has no meaning for kind auto, which looks for an Ollama on its default port; remove it, or use kind ollama"}},
	{"lists", oneNode + "    targets: [m, m, '']\n    allow_paths: [/v1/x, /v1/*, v1, /v1/../x, '/v1?x', '/v1*', /*, '']\n    options: {probe: 'on', api_key: sk-1234567890abcdef}\n", []string{
		`8: nodes[0].adapters[0].targets[1]: "m" is the same target in this list as nodes[0].adapters[0].targets[0] (line 8); each must differ`,
		`8: nodes[0].adapters[0].targets[2]: "" can't be a model's name: at most 256 characters, no blanks`,
		`9: nodes[0].adapters[0].allow_paths[2]: "v1" isn't a path; write it like /v1/chat/completions, or /v1/* for all below it`,
		`9: nodes[0].adapters[0].allow_paths[3]: "/v1/../x" isn't a path; write it like /v1/chat/completions, or /v1/* for all below it`,
		`9: nodes[0].adapters[0].allow_paths[4]: "/v1?x" isn't a path; write it like /v1/chat/completions, or /v1/* for all below it`,
		`9: nodes[0].adapters[0].allow_paths[5]: "/v1*" isn't a path; write it like /v1/chat/completions, or /v1/* for all below it`,
		`9: nodes[0].adapters[0].allow_paths[7]: "" isn't a path; write it like /v1/chat/completions, or /v1/* for all below it`,
		"10: nodes[0].adapters[0].options.api_key: looks like a secret, and options are sent to the node and shown; give a provider's key to a slot"}},
}

var routeCases = []refusal{
	{"names", oneNode + "routes:\n- {}\n- {model: 'a b'}\n- {model: m}\n- {model: m}\n- {model: '*', target: t}\n", []string{
		`9: routes[0].model: is missing; name what callers ask for, or "*" for every model that a node has`,
		`10: routes[1].model: "a b" can't be a model's name: at most 256 characters, no blanks`,
		`12: routes[3].model: "m" is the same model as routes[2].model (line 11); each must differ`,
		`13: routes[4].target: a route for "*" passes the name on that was asked for; remove target`}},
	{"references", oneNode + "  labels: {site: x}\nroutes:\n- {model: a, adapter: b}\n- {model: b, nodes: [m, n, n]}\n- {model: c, nodes: [n], adapter: z}\n" +
		"- {model: d, labels: {site: y}}\n- {model: e, labels: {site: x}, adapter: zzz}\n- {model: f, nodes: [n], labels: {site: x}}\n" +
		"principals: [{id: p, key_hashes: [" + hashB + "], routes: [a, aa, nothing]}]\n", []string{
		`10: routes[0].adapter: no node that may serve this route has an adapter "b"`,
		`11: routes[1].nodes[0]: there is no node "m"`,
		`11: routes[1].nodes[2]: "n" is the same node in this list as routes[1].nodes[1] (line 11); each must differ`,
		`12: routes[2].nodes[0]: node "n" has no adapter "z"; it has: a`,
		"13: routes[3].labels: no node has these labels",
		`14: routes[4].adapter: no node that may serve this route has an adapter "zzz"`,
		"15: routes[5].labels: stands beside nodes; keep one of them",
		`16: principals[0].routes[1]: there is no route "aa"`,
		`16: principals[0].routes[2]: there is no route "nothing"`}},
}

// HT-16 leaves /v1 to the adapter; what can't be an address of a provider is refused here.
func TestBaseURL(t *testing.T) {
	for base, part := range map[string]string{
		"http://127.0.0.1:8000": "", "http://h/": "", "https://api.example.com/v1": "", "http://h:1/v1/": "",
		"https://h/openai/v1": "", "http://[::1]:8000": "",
		"http://user:s3cr3tpassw0rd@h/": "holds a user or password",
		"http://s3cr3tpassw0rd@h/":      "holds a user or password",
		"ftp://h":                       "must start with http:// or https://",
		"127.0.0.1:8000":                "isn't a URL",
		"localhost:8000":                "must start with http:// or https://",
		"http://":                       "names no host",
		"http://:80":                    "names no host",
		"http://h?key=s3cr3tpassw0rd":   "has a query or fragment",
		"http://h?":                     "has a query or fragment",
		"http://h#x":                    "has a query or fragment",
		"http://h:0":                    "has no valid port",
		"http://h:99999":                "has no valid port",
		"http://h:":                     "has no valid port",
		"http://h/a/../b":               "has a path with",
		"http://h//b":                   "has a path with",
		"http://h/a%2fb":                "has a path with",
		"http://h\\x":                   "isn't a URL",
	} {
		d := &decoder{problems: newProblems("f")}
		d.checkBaseURL("base_url", base)
		got := ""
		if err := d.err(); err != nil {
			got = err.Error()
		}
		if (part == "") != (got == "") || !strings.Contains(got, part) {
			t.Errorf("%s: %q, want %q", base, got, part)
		}
		if strings.Contains(got, "s3cr3t") {
			t.Errorf("%s: quoted in %q", base, got)
		}
	}
}

func TestLongListsOfProblemsAreCut(t *testing.T) {
	_, err := ParseEdge("f", []byte("mode: dev\n"+strings.Repeat("x: 1\n", 200)))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxShown+1 || lines[maxShown] != "… and 150 more" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
}
