package config

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNodeValues(t *testing.T) {
	t.Setenv("IOP_TEST_TOKEN", "0123456789abcdef")
	n, err := ParseNode("dir/node.yaml", []byte(`
edges: ["edge.example.com:7443", "[::1]:7443"]
token: env:IOP_TEST_TOKEN
data_dir: /var/lib/iop
proxy: ""
admin: {listen: "localhost:0"}
timers: {idle: 1m}
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(n.Edges) != 2 || n.Token.Reveal() != "0123456789abcdef" || n.DataDir != "/var/lib/iop" ||
		n.Admin.Listen != "localhost:0" || n.Timers.Idle != time.Minute || n.Timers.FirstByte != 10*time.Minute {
		t.Errorf("%+v", n)
	}
}

const goodNode = "edges: [e:1]\ntoken: env:IOP_TEST_TOKEN\n"

func TestNodeRefusals(t *testing.T) {
	t.Setenv("IOP_TEST_TOKEN", "0123456789abcdef")
	for _, c := range []refusal{
		{"nothing", "{}\n", []string{
			`-: edges: is missing; list the addresses of the Edges to dial: ["edge.example.com:7443"]`,
			"-: token: is missing; give file:PATH, env:NAME or cred:NAME"}},
		// CF-05
		{"misspelt key", goodNode + "timers: {idel: 5s}\nmax_concurency: 4\nedge: x\n", []string{
			`3: timers.idel: unknown key; did you mean "idle"?`,
			"4: max_concurency: unknown key; known here: edges, token, tls, data_dir, admin, proxy, proxy_credentials, timers, log",
			`5: edge: unknown key; did you mean "edges"?`}},
		{"children at column 0", goodNode + "providers:\nname: a\n", []string{
			"3: providers: unknown key; known here: edges, token, tls, data_dir, admin, proxy, proxy_credentials, timers, log",
			"4: name: unknown key; known here: edges, token, tls, data_dir, admin, proxy, proxy_credentials, timers, log"}},
		{"key of an Edge's file", goodNode + "nodes: []\n", []string{
			"3: nodes: unknown key here; it belongs into an Edge's file"}},
		{"an Edge's file", "log: {}\nmode: dev\n", []string{"1: is an Edge's file, not a node's; use iop-edge"}},
		{"duplicate key", goodNode + "edges: [x:1]\n", []string{
			"3: edges: appears twice, first on line 1; remove one"}},
		// E29
		{"edges", "token: env:IOP_TEST_TOKEN\nedges: [e, 'e:0', ':1', 'Edge:7443', 'edge:7443']\n", []string{
			`2: edges[0]: "e" isn't an address; write host:port, and an IPv6 host in [ ]`,
			`2: edges[1]: "e:0" has no valid port; ports are 1 to 65535`,
			`2: edges[2]: ":1" names no host`,
			`2: edges[4]: "edge:7443" is the same edge as edges[3] (line 2); each must differ`}},
		{"proxy", goodNode + "proxy: http://user:S3CR3T@p:3128\n", []string{
			"3: proxy: must be http://HOST:PORT, without a user or a password, which stand in proxy_credentials"}},
		{"proxy without a port", goodNode + "proxy: http://p\n", []string{`3: proxy: "p" isn't an address; write host:port, and an IPv6 host in [ ]`}},
		{"credentials alone", goodNode + "proxy_credentials: env:IOP_TEST_TOKEN\n", []string{
			"3: proxy_credentials: there is no proxy; name it, or remove this"}},
		{"values", goodNode + "admin: {listen: ':8082'}\ntimers: {backoff_start: 1m, connect: 0s}\ndata_dir: ''\n", []string{
			`3: admin.listen: ":8082" isn't on loopback, and this listener has no keys; listen on 127.0.0.1`,
			"4: timers.connect: must be more than 0",
			"4: timers.backoff_start: 1m0s is more than timers.backoff_max (30s)",
			"5: data_dir: is empty; name a directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseNode("f", []byte(c.file))
			compare(t, err, c.want)
		})
	}
}

// What the proxy is shown is what the source has, never the source itself; and none of it is ever said.
func TestProxyCredentials(t *testing.T) {
	const secret = "node:S3CR3T-Zk81xQwPo0"
	dir := t.TempDir()
	writeFile(t, dir, "good", secret+"\n", 0o600)
	writeFile(t, dir, "open", secret, 0o644)
	writeFile(t, dir, "bare", "S3CR3T-Zk81xQwPo0\n", 0o600)
	t.Setenv("IOP_TEST_TOKEN", "0123456789abcdef")
	t.Setenv("IOP_TEST_PROXY", secret)
	for source, want := range map[string]string{
		"file:" + dir + "/good": "",
		"env:IOP_TEST_PROXY":    "",
		"file:" + dir + "/none": "/none doesn't exist",
		"file:" + dir + "/open": "/open is open to every user",
		"file:" + dir + "/bare": "/bare must hold USER:PASSWORD",
		secret:                  "must say where the secret is, not what it is",
	} {
		n, err := ParseNode("f", []byte(goodNode+"proxy: http://p:3128\nproxy_credentials: '"+source+"'\n"))
		switch {
		case want == "" && (err != nil || n.ProxyCredentials.Reveal() != secret):
			t.Errorf("%s: %v, or other credentials", source, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), "f:4: proxy_credentials: ") || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", source, err, want)
		case err != nil:
			leaks(t, err.Error(), "S3CR3T-Zk81xQwPo0")
		}
	}
}

// E45, and nothing of what is in a source is ever said.
func TestTokenSources(t *testing.T) {
	dir := t.TempDir()
	const secret = "s3cr3t-Zk81xQwPo0"
	file := func(name, content string, mode os.FileMode) string {
		return "file:" + writeFile(t, dir, name, content, mode)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	t.Setenv("IOP_TEST_TOKEN", secret)
	t.Setenv("IOP_TEST_TWO", secret+"\n"+secret)
	t.Setenv("IOP_TEST_EMPTY", "")
	writeFile(t, dir, "credential", secret, 0o400)
	for _, link := range []struct{ to, name string }{{"/dev/zero", "zero"}, {"good", "link"}, {"nowhere", "broken"}} {
		if err := os.Symlink(link.to, filepath.Join(dir, link.name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]string{
		file("good", secret+"\n", 0o600):  "",
		file("dos", secret+"\r\n", 0o600): "",
		file("group", secret, 0o640):      "",
		"file:" + dir + "/link":           "",
		"env:IOP_TEST_TOKEN":              "",
		"cred:credential":                 "",
		file("join", joinPrefix+base64.RawURLEncoding.EncodeToString([]byte(`{"token":"`+secret+`"}`)), 0o600): "",

		file("open", secret, 0o644):                     "/open is open to every user of this machine (mode 0644); chmod 600 it",
		file("empty", "", 0o600):                        "/empty is empty; make a token with: iop-edge token new NODE",
		file("blank", "\n", 0o600):                      "/blank is empty",
		file("two", secret+"\n"+secret+"\n", 0o600):     "/two has more than one line",
		file("big", strings.Repeat(secret, 300), 0o600): "/big is longer than 4096 bytes",
		file("short", secret[:9], 0o600):                "/short is shorter than 16 characters",
		"file:" + dir + "/zero":                         "/zero isn't a regular file",
		"file:" + dir + "/fifo":                         "/fifo isn't a regular file",
		"file:" + dir + "/broken":                       "/broken doesn't exist",
		"file:" + dir:                                   " isn't a regular file",
		"file:":                                         "file: must be followed by a path",
		"env:IOP_TEST_UNSET":                            "environment variable IOP_TEST_UNSET isn't set",
		"env:IOP_TEST_EMPTY":                            "environment variable IOP_TEST_EMPTY isn't set",
		"env:IOP_TEST_TWO":                              "environment variable IOP_TEST_TWO has more than one line",
		"env:" + secret:                                 "env: must be followed by the name of an environment variable",
		"cred:nothing":                                  "credential nothing doesn't exist",
		"cred:../x":                                     "cred: must be followed by the name of a systemd credential",
		"exec:cat x":                                    "exec: isn't supported by this version; use file:, env: or cred:",
		secret:                                          "must say where the secret is, not what it is",
		joinPrefix + secret:                             "must say where the secret is, not what it is",
	} {
		n, err := ParseNode("f", []byte("edges: [e:1]\ntoken: '"+source+"'\n"))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", source, err)
		case want == "" && n.Token.Reveal() != secret:
			t.Errorf("%s: another token", source)
		case want == "":
		case err == nil || !strings.HasPrefix(err.Error(), "f:2: token: ") || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %s", source, err, want)
		default:
			leaks(t, err.Error(), secret)
		}
	}
}

func TestCredentialNeedsSystemd(t *testing.T) {
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	_, err := ParseNode("f", []byte("edges: [e:1]\ntoken: cred:token\n"))
	compare(t, err, []string{"2: token: credential token can't be read: CREDENTIALS_DIRECTORY isn't set; systemd sets it for LoadCredential="})
}

// CR-07, CR-08: whatever place of a file a secret strays into, the errors don't show it.
func TestErrorsQuoteNoSecret(t *testing.T) {
	for _, secret := range []string{
		"sk-ant-api03-Zk81xQwPo0ZZyx", "iop1.eyJ0b2tlbiI6IlprODF4UXdQbzAifQ", "Zk81xQwPo0ZZyxWq93kLmN4b7Vc2TgHj",
	} {
		for _, file := range []string{
			"mode: KEY\n", "KEY: x\n", "KEY\n", "log: {level: KEY, KEY: 1}\n", "listen: {http: KEY}\n", "mode: *KEY\n",
			"nodes: [{id: KEY!, token_hashes: [{sha256: KEY, not_after: KEY, file: [KEY]}], labels: {KEY: {}}}]\n",
			"nodes: [{id: a, adapters: [{name: KEY/, kind: KEY, base_url: 'http://KEY@h', options: {api_key: KEY, KEY: [x]}}]}]\n",
			"nodes: [{id: a, adapters: [{name: b, kind: openai, base_url: 'http://h?KEY', allow_paths: [KEY], targets: [KEY, KEY]}]}]\n",
			"principals: [{id: p, key_hashes: [KEY], routes: [KEY]}]\n", "admin_key_hashes: [KEY]\n",
			"routes: [{model: m, adapter: KEY, nodes: [KEY], queue: {wait: KEY}}, {model: KEY}, {model: KEY}]\n",
			"cors: {origins: [KEY]}\nlimits: {body: KEY}\ntimers: {dead: KEY}\ninsecure_plaintext: KEY\n",
			"token: KEY\nedges: [KEY, 'KEY:1', 'KEY:1']\n",
		} {
			data := []byte(strings.ReplaceAll(file, "KEY", secret))
			for _, parse := range []func() error{
				func() error { _, err := ParseEdge("f", data); return err },
				func() error { _, err := ParseNode("f", data); return err },
			} {
				err := parse()
				if err == nil {
					t.Errorf("%s: accepted", file)
					continue
				}
				leaks(t, err.Error(), secret)
			}
		}
	}
}
