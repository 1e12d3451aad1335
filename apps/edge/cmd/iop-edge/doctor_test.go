package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/packages/go/doctor"
)

// The exit code says what the worst finding is; a model may follow --request with "=" or without.
func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	good := "listen: {nodes: '127.0.0.1:0', http: '127.0.0.1:0', admin: '127.0.0.1:0'}\n" +
		"nodes: [{id: a, token_hashes: [{sha256: " + strings.Repeat("ab", 32) + "}], adapters: [{name: l, kind: loopback}]}]\nroutes: [{model: m}]\n"
	for name, text := range map[string]string{"good.yaml": good, "bad.yaml": "nods: []\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	var report doctor.Report
	code, stdout, _ := run(t, command(dir, "doctor", "-c", at("good.yaml"), "--json"))
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || report.Program != "iop-edge" || report.Level == doctor.Fail || code != report.Level.ExitCode() {
		t.Errorf("%v: exit code %d, %+v", err, code, report)
	}
	if code, stdout, _ := run(t, command(dir, "doctor", "-c", at("bad.yaml"))); code != doctor.ExitFail || !strings.Contains(stdout, "nods: unknown key") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
	for _, args := range [][]string{{"--request", "model-a"}, {"--request=model-a"}} {
		if code, stdout, _ := run(t, command(dir, append([]string{"doctor", "-c", at("good.yaml")}, args...)...)); code != doctor.ExitFail || !strings.Contains(stdout, "model-a couldn't be asked for") {
			t.Errorf("%v: exit code %d: %s", args, code, stdout)
		}
	}
	for _, args := range [][]string{{}, {"-c", at("good.yaml"), "more"}, {"-c", at("good.yaml"), "--request", "m", "more"}, {"-c", at("good.yaml"), "--deadline", "1ms"}} {
		if code, _, stderr := run(t, command(dir, append([]string{"doctor"}, args...)...)); code != 2 || !strings.Contains(stderr, "See: iop-edge doctor --help") {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
}
