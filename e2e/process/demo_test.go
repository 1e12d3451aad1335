//go:build e2e

package process

import (
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// make demo is what a newcomer sees first: it must build, show tokens as they come, say who served them, and stop.
func TestDemo(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make isn't installed")
	}
	ctx, cancel := contextWithin(t, 2*time.Minute) // what the README promises
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "-s", "-C", "../..", "demo", "BIN="+t.TempDir())
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS") })
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	pieces := 0
	for piece := make([]byte, 4096); err == nil; {
		var n int
		n, err = stdout.Read(piece)
		text.Write(piece[:n])
		pieces++
	}
	if err != io.EOF {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("make demo: %v\n%s", err, &text)
	}
	t.Logf("%v in all, %d pieces:\n%s", time.Since(began).Round(10*time.Millisecond), pieces, &text)
	for _, want := range []string{
		`(?m)^edge listens: callers 127\.0\.0\.1:\d+, nodes 127\.0\.0\.1:\d+$`,
		`(?m)^node dialed out, registered and is ready$`,
		`(?m)^served by   box \(run run-\w+, queued \d+ ms\)$`,
		`(?m)^first byte  \d+\.\d ms$`,
		`(?m)^usage       \{.*"completion_tokens": ?\d+.*\}$`,
		`(?m)^node and edge stopped cleanly$`,
	} {
		if !regexp.MustCompile(want).MatchString(text.String()) {
			t.Errorf("the output lacks %s", want)
		}
	}
	if pieces < 8 {
		t.Errorf("the answer came in %d pieces: not as it was made", pieces)
	}
}
