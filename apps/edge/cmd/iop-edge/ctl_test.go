package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/packages/go/program"
)

// fakeAdmin answers as the admin API does, and keeps what it was asked.
type fakeAdmin struct {
	*httptest.Server
	answer string
	status int
	asked  string // method, path, body
	query  string
	header http.Header
}

// nobody is where nobody listens: a port that was free a moment ago may be somebody's, this one is given to no one.
const nobody = "http://127.0.0.1:1"

func newFakeAdmin(t *testing.T) *fakeAdmin {
	f := &fakeAdmin{status: 200}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.query = r.URL.RawQuery
		f.asked, f.header = strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+string(body)), r.Header
		if f.status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(f.status)
		_, _ = io.WriteString(w, f.answer)
	}))
	t.Cleanup(f.Close)
	return f
}

// ctl runs the command in this process.
func (f *fakeAdmin) ctl(args ...string) (code int, stdout, stderr string) {
	root := rootCommand()
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append([]string{"ctl", "--admin", f.URL}, args...))
	code = program.Main(root)
	return code, out.String(), errs.String()
}

// want runs a command and compares all that it asked and printed.
func (f *fakeAdmin) want(t *testing.T, args []string, asked, stdout string) {
	t.Helper()
	code, out, errs := f.ctl(args...)
	if code != 0 || errs != "" || f.asked != asked {
		t.Errorf("%v: %d %s; asked %s, want %s", args, code, errs, f.asked, asked)
	}
	if out != strings.TrimPrefix(stdout, "\n") {
		t.Errorf("%v printed\n%s\nwant\n%s", args, out, stdout)
	}
	code, out, errs = f.ctl(append(args, "-o", "json")...)
	if code != 0 || errs != "" || f.asked != asked || out != f.answer {
		t.Errorf("%v -o json: %d %s\n%s", args, code, errs, out)
	}
}

func TestCtlNodes(t *testing.T) {
	f := newFakeAdmin(t)
	since := time.Now().Add(-90 * time.Minute).Format(time.RFC3339Nano)
	f.answer = `{"nodes":[{"id":"gpu-1","state":"ready","generation":12,"instance_id":"ab","version":"v1","since":"` + since + `","last_heartbeat":null,"adapters":[` +
		`{"name":"ollama","available":true,"reason":"","version":"0.13.5","in_flight":1,"capacity":2,"models":[{"name":"m","loaded":true},{"name":"n"}]},` +
		`{"name":"vllm","available":false,"reason":"connection refused","version":"unknown","in_flight":0,"capacity":8,"models":[]}]},` +
		`{"id":"old","state":"offline","reason":"it isn't connected","drained":true,"generation":0,"instance_id":"","version":"","since":null,"last_heartbeat":null,"adapters":[]}]}` + "\n"
	f.want(t, []string{"nodes"}, "GET /admin/v1/nodes", `
NODE   STATE    GENERATION  VERSION  SINCE   ADAPTER  RUNNING  PROVIDER                         MODELS        WHY NO WORK
gpu-1  ready    12          v1       1h ago  ollama   1/2      0.13.5                           2 (1 loaded)  -
                                             vllm     0/8      unavailable: connection refused  0              
old    offline  0           -        -       -        -        -                                -             it isn't connected; an operator keeps new work from it
`)
}

func TestCtlRuns(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"runs":[{"run_id":"r1","kind":"tunnel","state":"running","live":true,"principal":"alice","model":"m","adapter":"a","target":"t","node":"n","created_at":"` +
		time.Now().Add(-5*time.Second).Format(time.RFC3339) + `"},{"run_id":"r2","kind":"run","state":"error","adapter":"a","target":"t","created_at":"2020-01-02T03:04:05Z","ended_at":"2020-01-02T03:04:06Z","duration_ms":1500,"code":"node_lost"}]}` + "\n"
	_, out, _ := f.ctl("runs")
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "RUN  KIND") || strings.Join(strings.Fields(lines[1])[:7], " ") != "r1 tunnel running n a m alice" ||
		!strings.Contains(lines[2], " t ") || !strings.HasSuffix(lines[2], "1.5s  node_lost") {
		t.Errorf("runs:\n%s", out)
	}
	if _, out, _ = f.ctl("runs", "--limit", "1"); strings.Contains(out, "r2") || !strings.HasSuffix(out, "\n1 more; --limit 0 shows them\n") {
		t.Errorf("limited:\n%s", out)
	}
	f.answer = `{"run_id":"r2","kind":"run","state":"complete","adapter":"a","created_at":"2020-01-02T03:04:05Z","duration_ms":1500,"usage":{"input":3,"output":4,"cached":null,"reasoning":null},"code":"ok"}` + "\n"
	_, out, _ = f.ctl("runs", "r2")
	for _, part := range []string{"run                    r2\n", "took                   1.5s\n", "tokens                 3 input, 4 output\n", "code                   ok\n"} {
		if !strings.Contains(out, part) {
			t.Errorf("one run lacks %q:\n%s", part, out)
		}
	}
	f.answer = `{"run_id":"r3","state":"running","live":true,"created_at":"2020-01-02T03:04:05Z"}`
	if _, out, _ := f.ctl("runs", "r3"); strings.Contains(out, "took") || strings.Contains(out, "tokens") {
		t.Errorf("a live run has no counts yet:\n%s", out)
	}
	f.ctl("runs", "r2")
	if f.asked != "GET /admin/v1/runs/r2" {
		t.Errorf("asked %s", f.asked)
	}
}

func TestCtlQueueAndCancel(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"draining":true,"queued":3,"sets":[{"set":"m\u0000a\u0000\u0000/v1/x","queued":3,"candidates":2}],"places":[{"node":"n","adapter":"a","generation":7,"capacity":2,` +
		`"in_flight":2,"unconfirmed":1,"adopted":0,"candidate":true,"saturated":true},{"node":"o","adapter":"a","generation":8,"capacity":0,"in_flight":0,"unconfirmed":0,"adopted":0,"candidate":false,"saturated":false},` +
		`{"node":"p","adapter":"a","generation":9,"capacity":1,"in_flight":0,"unconfirmed":0,"adopted":0,"candidate":true,"saturated":false,"broken":{"failures":5,"trying":true}}]}` + "\n"
	f.want(t, []string{"queue"}, "GET /admin/v1/queue", `
3 waiting; the edge is draining

SET        WAITING  CANDIDATES
m a /v1/x  3        2

NODE  ADAPTER  GENERATION  RUNNING  UNCONFIRMED  ADOPTED  TAKES WORK
n     a        7           2/2      1            0        saturated
o     a        8           0/0      0            0        no
p     a        9           0/1      0            0        broken; one tries it
`)
	f.answer = `{"run_id":"r1","result":"cancelling"}` + "\n"
	f.want(t, []string{"cancel", "r1"}, "POST /admin/v1/runs/r1/cancel", "run r1: cancelling\n")
	f.want(t, []string{"cancel", "../nodes/x"}, "POST /admin/v1/runs/..%2Fnodes%2Fx/cancel", "run r1: cancelling\n")
}

func TestCtlCommand(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"command_id":"c","capabilities":{"adapters":[{"name":"ollama","available":true,"version":"0.13.5","in_flight":1,"capacity":2,"models":[` +
		`{"name":"m","loaded":true,"context":4096},{"name":"n","loaded":false,"context":0}]},{"name":"x","available":false,"reason":"down","models":[]}]}}` + "\n"
	f.want(t, []string{"command", "gpu-1", "capabilities", "--session", "s-1"}, `POST /admin/v1/nodes/gpu-1/commands {"session_id":"s-1","type":"CAPABILITIES"}`, `
ADAPTER  RUNNING  PROVIDER           MODEL  LOADED  CONTEXT
ollama   1/2      0.13.5             m      loaded  4096
                                     n      -       unknown
x        0/0      unavailable: down  -      -       -
`)
	f.answer = `{"command_id":"c","transport_status":{"connection_generation":7,"link_age_ms":61500,"open_streams":2,"in_flight":1}}` + "\n"
	f.want(t, []string{"command", "gpu-1", "transport-status"}, `POST /admin/v1/nodes/gpu-1/commands {"type":"TRANSPORT_STATUS"}`, `
connection generation  7
link age               1m1.5s
open streams           2
in flight              1
`)
	f.answer = `{"command_id":"c","status":200,"body":{"models":[{"name":"m"}]}}` + "\n"
	f.want(t, []string{"command", "gpu-1", "OLLAMA_API", "POST", "/api/show", `{"model":"m"}`, "--adapter", "ollama"},
		`POST /admin/v1/nodes/gpu-1/commands {"adapter":"ollama","body":{"model":"m"},"method":"POST","path":"/api/show","type":"OLLAMA_API"}`, `
{
  "models": [
    {
      "name": "m"
    }
  ]
}
`)
	f.answer = `{"command_id":"c","status":404,"body":"not\tfound"}` + "\n"
	if code, out, errs := f.ctl("command", "gpu-1", "OLLAMA_API", "GET", "/api/ps", "--adapter", "o"); code != 1 || out != "not?found\n" || errs != "iop-edge: the provider answered with status 404\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
}

// What nodes, providers and callers chose can't steer a terminal.
func TestCtlPrintsNothingThatSteersATerminal(t *testing.T) {
	f := newFakeAdmin(t)
	const evil = `\u001b[2J\u009b31m\u202e\r\nx`
	check := func(args ...string) {
		t.Helper()
		_, out, errs := f.ctl(args...)
		if strings.ContainsAny(out+errs, "\x1b\u009b\u202e\r") || !strings.Contains(out+errs, "x") {
			t.Errorf("%v: %q %q", args, out, errs)
		}
	}
	f.answer = `{"nodes":[{"id":"` + evil + `","version":"` + evil + `","adapters":[{"name":"a","reason":"` + evil + `"}]}]}`
	check("nodes")
	f.answer = `{"runs":[{"run_id":"` + evil + `","model":"` + evil + `","created_at":"2020-01-02T03:04:05Z"}]}`
	check("runs")
	f.answer = `{"run_id":"` + evil + `","error":"` + evil + `","created_at":"2020-01-02T03:04:05Z"}`
	check("runs", "r1")
	f.answer = `{"status":200,"body":"` + evil + `"}`
	check("command", "n", "OLLAMA_API", "GET", "/api/ps")
	f.answer = "{\"status\":200,\"body\":{\"\u009b31m\":\"\u202e x\"}}"
	check("command", "n", "OLLAMA_API", "GET", "/api/ps")
	f.status, f.answer = 502, `{"error":{"code":"upstream_error","message":"`+evil+`"}}`
	check("nodes")
}

func TestCtlErrors(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{}`
	for args, part := range map[string]string{
		"nodes x": "unexpected argument", "nodes -o yaml": "-o must be table or json", "cancel": "RUN is missing", "cancel a b": "unexpected argument",
		"command": "NODE is missing", "command n": "TYPE is missing", "command n T GET": "PATH is missing", "command n T GET /p {": "BODY must be JSON",
		"command n T GET /p {} x": "unexpected argument", "runs a b": "unexpected argument", "nonsense": `unknown command "nonsense"`, "nodes --nope": "unknown flag",
		"explain": "RUN is missing", "why": "MODEL is missing", "drain": "NODE is missing", "drain a b": "unexpected argument",
		"place release n a": "RUN is missing", "place nonsense": "unknown command", "events x": "unexpected argument", "events -o yaml": "-o must be table or json",
	} {
		if code, _, errs := f.ctl(strings.Fields(args)...); code != 2 || !strings.Contains(errs, part) || f.asked != "" {
			t.Errorf("%s: %d %s; asked %q", args, code, errs, f.asked)
		}
	}
	for _, c := range []struct {
		status       int
		answer, says string
	}{
		{403, `{"error":{"message":"no","code":"bad_request"}}`, "iop-edge: bad_request: no\n"},
		{503, `<html>`, "iop-edge: the edge answered 503 Service Unavailable\n"},
		{302, ``, "iop-edge: the edge answered 302 Found\n"},
		{200, `<html>`, "is it of another version?"},
	} {
		f.status, f.answer = c.status, c.answer
		if code, out, errs := f.ctl("nodes"); code != 1 || out != "" || !strings.Contains(errs, c.says) || f.asked != "GET /admin/v1/nodes" {
			t.Errorf("%d: %d %s %s; asked %s", c.status, code, out, errs, f.asked)
		}
	}
	if code, _, errs := f.ctl("nodes", "--admin", nobody); code != 1 || !strings.Contains(errs, "is listen.admin on, and is this its address?") {
		t.Errorf("nobody there: %d %s", code, errs)
	}
	for _, address := range []string{"127.0.0.1:8081", "ftp://x", "http://", "://"} {
		if code, _, errs := f.ctl("nodes", "--admin", address); code != 1 || !strings.Contains(errs, "must be an address like") {
			t.Errorf("%s: %d %s", address, code, errs)
		}
	}
}

// CR-07: the key is taken from where it is said, and shown nowhere.
func TestCtlKeys(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"nodes":[]}`
	if f.ctl("nodes"); f.header.Get("Authorization") != "" {
		t.Error("a key out of nowhere")
	}
	t.Setenv("IOP_ADMIN_KEY", "sk-S3CR3T-env")
	if f.ctl("nodes"); f.header.Get("Authorization") != "Bearer sk-S3CR3T-env" {
		t.Errorf("from the environment: %q", f.header.Get("Authorization"))
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("sk-S3CR3T-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f.ctl("nodes", "--key-file", file); f.header.Get("Authorization") != "Bearer sk-S3CR3T-file" {
		t.Errorf("from a file: %q", f.header.Get("Authorization"))
	}
	f.asked = ""
	if code, _, errs := f.ctl("nodes", "--key-file", file+".no"); code != 1 || !strings.Contains(errs, "--key-file: open ") || f.asked != "" {
		t.Errorf("no such file: %d %s", code, errs)
	}
	f.status, f.answer = 401, `{"error":{"message":"no valid admin key","code":"unauthorized"}}`
	if code, out, errs := f.ctl("nodes", "--key-file", file); code != 1 || strings.Contains(out+errs, "S3CR3T") {
		t.Errorf("%d %s %s", code, out, errs)
	}
}
