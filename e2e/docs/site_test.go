//go:build e2e

package docs

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ollamaVariable makes the test binary play the Ollama of the site, in the network of the document.
const ollamaVariable = "IOP_DOCS_OLLAMA"

// siteFiles and startSite are what documents take for granted: an Edge with edge.yaml and a node gpu-1 with node.yaml, both in the directory
// where commands run, an Ollama with qwen3:8b on the node's machine, and the key of a hosted provider.
const siteFiles = `iop-edge setup --dir site --node gpu-1 --caller alice --no-configs >&2
cp site/edge/alice.key.sha256 .
printf 'sk-no-key-of-anybody\n' > openai.key
chmod 600 openai.key
`

const startSite = `cat > edge.yaml <<'END'
mode: managed
tls: {cert: ./site/edge/cert.pem, key: ./site/edge/key.pem, ca: ./site/edge/ca.pem, trust_domain: iop.internal}
listen: {nodes: "127.0.0.1:7443", http: "127.0.0.1:8080", admin: "127.0.0.1:8081"}
state_dir: ./state
nodes:
  - id: gpu-1
    token_hashes: [{file: ./site/edge/gpu-1.token.sha256}]
    adapters:
      - {name: loopback, kind: loopback, max_concurrency: 4}
      - {name: llama, kind: loopback, targets: [qwen3-8b], max_concurrency: 4}
      - {name: ollama, kind: auto, max_concurrency: 4}
profiles: [{id: openai, origin: "https://api.openai.com", paths: ["POST /v1/chat/completions"]}]
slots: [{id: openai-main, source: "file:./openai.key", profile: openai, nodes: [gpu-1]}]
routes: [{model: "*"}]
END
cat > node.yaml <<'END'
edges: ["127.0.0.1:7443"]
token: file:./site/gpu-1/node.token
tls: {cert: ./site/gpu-1/cert.pem, key: ./site/gpu-1/key.pem, ca: ./site/gpu-1/ca.pem, edge_spiffe_id: spiffe://iop.internal/iop/edge}
admin: {listen: "127.0.0.1:8082"}
END
` + ollamaVariable + `=1 "$DOCS_TEST" >&2 &
until command curl -fs http://127.0.0.1:11434/api/version >/dev/null; do sleep 0.1; done
iop-edge serve -c edge.yaml >&2 &
until iop-edge health >/dev/null 2>&1; do sleep 0.1; done
iop-node serve -c node.yaml >&2 &
until iop-edge ctl nodes 2>&1 | grep -q ' ready '; do sleep 0.1; done
`

// preparation makes what blocks need: a site to run beside, or the files that bases name.
func preparation(all []block) string {
	if slices.ContainsFunc(all, func(b block) bool { return b.info == "sh site" }) {
		return siteFiles + startSite
	}
	if slices.ContainsFunc(all, func(b block) bool { return b.info == "yaml edge" }) {
		return siteFiles
	}
	return ""
}

// bases are what snippets of configurations don't say.
var bases = map[string]string{
	"yaml edge": `mode: managed
tls: {cert: ./site/edge/cert.pem, key: ./site/edge/key.pem, ca: ./site/edge/ca.pem, trust_domain: iop.internal}
listen: {nodes: "127.0.0.1:7443"}
nodes: [{id: gpu-1, token_hashes: [{file: ./site/edge/gpu-1.token.sha256}], adapters: [{name: openai, kind: openai, base_url: "https://api.openai.com/v1"}]}]
routes: [{model: "*"}]
`,
	"yaml node": "edges: [\"127.0.0.1:7443\"]\ntoken: file:./gpu-1/node.token\n", // as docs/managed-mode.md makes it
}

// file is where a snippet is put, as a whole file.
func (b block) file() string { return fmt.Sprintf("block-%d.yaml", b.line) }

// section is the beginning of a top-level key of a configuration.
var section = regexp.MustCompile(`(?m)^([a-z_]+):`)

// overlay is base with the top-level keys of snippet in the place of its own.
func overlay(base, snippet string) string {
	had := map[string]bool{}
	for _, m := range section.FindAllStringSubmatch(snippet, -1) {
		had[m[1]] = true
	}
	var s strings.Builder
	for line := range strings.Lines(base) { // each of its keys is one line
		if key, _, _ := strings.Cut(line, ":"); !had[key] {
			s.WriteString(line)
		}
	}
	return s.String() + snippet
}

// standIn puts what there is here into the place of what only its reader has.
func standIn(name, text string) string {
	text = strings.NewReplacer("http://edge:8080", "http://127.0.0.1:8080", "/run/secrets/openai", "./openai.key").Replace(text)
	if name == "clients.md" {
		text = strings.ReplaceAll(text, "MODEL", "loopback")
	}
	return strings.ReplaceAll(text, "./state/local.token", "./configs/state/local.token") // README.md's are in configs
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(standIn("", text)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// copyTree copies what a clone has, and what is about to be committed.
func copyTree(t *testing.T, dir string) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(dir, "bin"), os.DirFS(bin)); err != nil {
		t.Fatal(err)
	}
	list, err := exec.Command("git", "-C", "../..", "ls-files", "-coz", "--exclude-standard").Output()
	if err != nil {
		t.Skipf("this is no clone: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		from := filepath.Join("../..", name)
		info, err := os.Lstat(from)
		if err != nil || !info.Mode().IsRegular() {
			continue // removed, and not committed yet
		}
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// goEnv has builds use what was built and downloaded already, since there is no network.
func goEnv(t *testing.T) (env []string) {
	t.Helper()
	names := []string{"GOCACHE", "GOMODCACHE"}
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		env = append(env, names[i]+"="+value)
	}
	return append(env, "GOPROXY=off")
}

// playOllama answers what is asked of an Ollama that isn't to run anything.
func playOllama() error {
	answers := map[string]string{
		"GET /api/version": `{"version":"0.17.4"}`,
		"GET /api/tags":    `{"models":[{"name":"qwen3:8b","model":"qwen3:8b","digest":"500a1f067a9f","size":1,"details":{"family":"qwen3"}}]}`,
		"GET /api/ps":      `{"models":[]}`,
		"POST /api/show":   `{"details":{"family":"qwen3"},"model_info":{"general.architecture":"qwen3","qwen3.context_length":40960},"capabilities":["completion"]}`,
	}
	return http.ListenAndServe("127.0.0.1:11434", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text) // who left needs no answer
	}))
}
