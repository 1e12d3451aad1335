package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/packages/go/program"
)

func runHere(args ...string) (code int, stdout, stderr string) {
	root := rootCommand()
	var out, errors bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errors)
	root.SetArgs(args)
	code = program.Main(root)
	return code, out.String(), errors.String()
}

func TestSetup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "site")
	code, stdout, stderr := runHere("setup", "--dir", dir, "--node", "gpu-1")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "made "+dir+"/edge/edge.yaml\n") || !strings.Contains(stdout, "is in "+dir+"/callers/me.key.") {
		t.Fatal(code, stdout, stderr)
	}
	key, err := os.ReadFile(filepath.Join(dir, "callers", "me.key"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stdout, strings.TrimSpace(string(key))) {
		t.Error("the key was shown without being asked for")
	}
	if code, stdout, _ := runHere("setup", "--dir", dir, "--show-key"); code != 0 || stdout != string(key) {
		t.Error("the key isn't shown", code)
	}
	if code, stdout, stderr := runHere("setup", "--dir", dir, "--node", "gpu-1"); code != 0 || !strings.Contains(stdout, "nothing to do") {
		t.Error(code, stdout, stderr)
	}
	if code, stdout, stderr := runHere("check", "-c", filepath.Join(dir, "edge", "edge.yaml")); code != 0 {
		t.Error(stdout, stderr)
	}
	for _, wrong := range [][]string{{"--node", "edge"}, {"--node", "a/b"}, {"--node", ".."}, {"--caller", ""}, {"--caller", ".."}, {"--ttl", "0s"}, {"more"}} {
		if code, _, stderr := runHere(append([]string{"setup", "--dir", dir}, wrong...)...); code != 2 {
			t.Error(wrong, code, stderr)
		}
	}
}
