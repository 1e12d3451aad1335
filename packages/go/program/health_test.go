package program

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// runTestProgram runs the commands that tests are about in this process.
func runTestProgram(args ...string) (code int, stdout, stderr string) {
	root := &cobra.Command{Use: "prog", Short: "A program", Long: "Long."}
	root.AddCommand(HealthCommand("prog", "http://127.0.0.1:1", "it's ready"), DescribeCommand(), VersionCommand(),
		Group("group", "Holds one", &cobra.Command{Use: "one", Short: "One", Run: func(*cobra.Command, []string) {}}))
	root.PersistentFlags().StringP("everywhere", "e", "x", "said of `EVERY` command")
	var out, errors bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errors)
	root.SetArgs(args)
	code = Main(root)
	return code, out.String(), errors.String()
}

func TestHealth(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			_, _ = w.Write([]byte("ok\n"))
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("draining\n"))
	}))
	defer server.Close()
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	if code, stdout, stderr := runTestProgram("health", "--admin", server.URL); code != 0 || stdout != "ok\n" || stderr != "" {
		t.Error(code, stdout, stderr)
	}
	if code, _, stderr := runTestProgram("health", "--ready", "--admin", server.URL+"/"); code != 1 || stderr != "prog: /readyz: 503 Service Unavailable: draining\n" {
		t.Error(code, stderr)
	}
	// The port of a server that was closed may be somebody else's already; this one is given to no one.
	if code, _, stderr := runTestProgram("health", "--admin", "http://127.0.0.1:1"); code != 1 || !strings.Contains(stderr, "does it run, and is its admin listener on?") {
		t.Error(code, stderr)
	}
	for _, bad := range []string{"127.0.0.1:8081", "ftp://x", "http://", ""} {
		if code, _, stderr := runTestProgram("health", "--admin", bad); code != 2 {
			t.Error(bad, code, stderr)
		}
	}
}

func TestDescribe(t *testing.T) {
	code, stdout, stderr := runTestProgram("describe")
	var d Described
	if err := json.Unmarshal([]byte(stdout), &d); code != 0 || stderr != "" || err != nil {
		t.Fatal(code, stderr, err)
	}
	var names []string
	for _, c := range d.Commands {
		names = append(names, c.Use)
	}
	if got := strings.Join(names, " "); got != "group health version" {
		t.Errorf("the commands are %s", got)
	}
	health := d.Commands[1]
	if len(d.Persistent) != 1 || d.Persistent[0] != (DescribedFlag{"everywhere", "e", "string", "x", "", "said of `EVERY` command"}) ||
		len(health.Flags) != 2 || health.Flags[1] != (DescribedFlag{"ready", "", "bool", "false", "true", "ask whether it takes work, too"}) {
		t.Errorf("%+v\n%+v", d.Persistent, health.Flags)
	}
}
