package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	hashA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// fullEdge uses every key that this version supports.
const fullEdge = `
mode: dev
listen:
  nodes: 0.0.0.0:7443
  http: ":8080"
  admin: "[::1]:0"
insecure_plaintext: true
state_dir: /var/lib/iop
nodes:
  - id: gpu-1
    token_hashes:
      - {sha256: ` + hashA + `, not_after: 2030-01-31T01:00:00+01:00}
      - sha256: BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB
    labels: {site: berlin, gpu: 4090}
    adapters:
      - name: vllm
        kind: openai
        base_url: http://127.0.0.1:8000/v1/
        max_concurrency: 64
        targets: [qwen3-8b]
        allow_paths: [/v1/chat/completions]
        options: {probe: "off", pacing_ms: 5}
  - {id: spare, enabled: false}
principals:
  - id: alice
    key_hashes: [cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc]
    routes: [fast]
profiles:
  - {id: openai, origin: "HTTPS://API.example.com", paths: ["POST /v1/chat/completions"], header: x-api-key}
slots: []
lease: {ttl: 30s}
routes:
  - model: fast
    adapter: vllm
    target: qwen3-8b
    labels: {site: berlin}
    queue: {depth: 0, wait: 5s}
    first_byte: 2m
    idle: 1m
    deadline: 1h30m
    fail_fast: true
  - {model: other, nodes: [gpu-1]}
  - model: "*"
cors: {origins: ["https://chat.example.com"]}
admin_key_hashes: []
limits: {body: 1GiB, body_memory: 2GiB, body_in_memory: 0, header: 16384}
timers: {heartbeat: 300ms, dead: 450ms, drain: 0s}
log: {level: debug, format: json}
`

func TestEdgeValues(t *testing.T) {
	e, err := ParseEdge("dir/edge.yaml", []byte(fullEdge))
	if err != nil {
		t.Fatal(err)
	}
	gpu, r := e.Nodes[0], e.Routes[0]
	for what, ok := range map[string]bool{
		"listen":        e.Listen.Nodes == "0.0.0.0:7443" && e.Listen.HTTP == ":8080" && e.Listen.Admin == "[::1]:0",
		"state dir":     e.StateDir == "/var/lib/iop",
		"hash":          gpu.TokenHashes[0].SHA256 == hashA && gpu.TokenHashes[1].SHA256 == hashB,
		"not_after":     gpu.TokenHashes[0].NotAfter.Equal(time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC)),
		"enabled":       gpu.Enabled && !e.Nodes[1].Enabled,
		"labels":        gpu.Labels["gpu"] == "4090",
		"adapter":       gpu.Adapters[0].BaseURL == "http://127.0.0.1:8000/v1/" && gpu.Adapters[0].MaxConcurrency == 64,
		"options":       gpu.Adapters[0].Options["pacing_ms"] == "5",
		"route":         r.Target == "qwen3-8b" && r.FirstByte == 2*time.Minute && r.Deadline == 90*time.Minute && r.FailFast,
		"queue":         r.Queue == Queue{Depth: 0, Wait: 5 * time.Second},
		"default queue": e.Routes[1].Queue == Queue{Depth: 64, Wait: time.Minute},
		"limits":        e.Limits.Body == 1<<30 && e.Limits.Header == 16384 && e.Limits.Unregistered == 128,
		"timers":        e.Timers.Dead == 450*time.Millisecond && e.Timers.Drain == 0 && e.Timers.Probe == 3*time.Second,
		"lease":         e.Lease == Lease{TTL: 30 * time.Second, SigningKey: "/var/lib/iop/lease.key"},
		"profile":       e.Profiles[0].Origin == "https://api.example.com:443" && e.Profiles[0].Header == "X-Api-Key" && e.Profiles[0].Scheme == "",
		"log":           e.Log == Log{Level: "debug", Format: "json"},
	} {
		if !ok {
			t.Errorf("%s isn't what the file says: %+v", what, e)
		}
	}
}

func TestRelativePathsStartAtTheFile(t *testing.T) {
	dir := t.TempDir()
	token := writeFile(t, dir, "node.token", "0123456789abcdef-token\n", 0o600)
	writeFile(t, dir, "hash", hashA+"\n", 0o644)
	file := writeFile(t, dir, "node.yaml", "edges: [e:1]\ntoken: file:./node.token\n", 0o644)
	n, err := LoadNode(file)
	if err != nil {
		t.Fatal(err)
	}
	if n.Token.Reveal() != "0123456789abcdef-token" || n.DataDir != filepath.Join(dir, "data") {
		t.Errorf("token from %s, data in %s", token, n.DataDir)
	}
	e, err := ParseEdge(filepath.Join(dir, "edge.yaml"), []byte(
		"nodes: [{id: a, token_hashes: [{file: hash}]}]\nprincipals: [{id: p, key_hashes: ['file:./hash']}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if e.Nodes[0].TokenHashes[0].SHA256 != hashA || e.Principals[0].KeyHashes[0] != hashA ||
		e.StateDir != filepath.Join(dir, "state") {
		t.Errorf("%+v", e)
	}
}

func TestLoadRefusesFiles(t *testing.T) {
	dir := t.TempDir()
	big := writeFile(t, dir, "big.yaml", strings.Repeat("# comment\n", maxFile/10+1), 0o644)
	for file, want := range map[string]string{
		"":                            "no configuration file named; give one with -c FILE",
		filepath.Join(dir, "no.yaml"): filepath.Join(dir, "no.yaml") + ": doesn't exist; give the file with -c FILE",
		dir:                           dir + ": can't be read: is a directory",
		big:                           big + ": is longer than 4 MiB, so it isn't a configuration",
	} {
		_, edgeErr := LoadEdge(file)
		_, nodeErr := LoadNode(file)
		for _, err := range []error{edgeErr, nodeErr} {
			if errs := new(Errors); !errors.As(err, &errs) || err.Error() != want {
				t.Errorf("%q: %v, want %s", file, err, want)
			}
		}
	}
}

func TestMemoryBound(t *testing.T) {
	e, err := ParseEdge("edge.yaml", []byte(fullEdge))
	if err != nil {
		t.Fatal(err)
	}
	b := e.MemoryBound()
	if b.Places != 64 || b.Waiting != 128+RunQueueDepth || b.Open != 4096*(24+16)<<10 || b.Streams != (64+256)*2<<20 || b.Bodies != 2<<30 {
		t.Errorf("%+v", b)
	}
	want := "memory bound: 2864 MiB\n     640 MiB  streams: 64 places and 256 slow answers x 2 MiB\n"
	if got := b.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got %q", got)
	}
}

func TestTLSFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := writeCertificate(t, dir, "a.crt", "a.key")
	_, otherKey := writeCertificate(t, dir, "b.crt", "b.key")
	open := writeFile(t, dir, "open.key", "", 0o644)
	for _, c := range []struct{ cert, key, want string }{
		{cert, key, ""},
		{"a.crt", "./a.key", ""},
		{cert, otherKey, "listen.http_tls: certificate and key can't be used: tls: private key does not match public key"},
		{cert, "no.key", "listen.http_tls: certificate and key can't be used: open " + dir + "/no.key: no such file or directory"},
		{cert, open, "listen.http_tls.key: " + open + " is open to every user of this machine (mode 0644); chmod 600 it"},
	} {
		file := fmt.Sprintf("listen: {http_tls: {cert: %s, key: %s}}\n", c.cert, c.key)
		e, err := ParseEdge(dir+"/f", []byte(file))
		switch {
		case c.want == "" && (err != nil || e.Listen.HTTPTLS.Cert != cert):
			t.Errorf("%s: %v", file, err)
		case c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), dir+"/f:1: "+c.want)):
			t.Errorf("%s: %v, want %s", file, err, c.want)
		}
	}
}

// writeCertificate makes a certificate with its key.
func writeCertificate(t *testing.T, dir, certName, keyName string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certDER, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return writeFile(t, dir, certName, encode("CERTIFICATE", certDER), 0o644),
		writeFile(t, dir, keyName, encode("PRIVATE KEY", keyDER), 0o600)
}

func writeFile(t *testing.T, dir, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
	return path
}
