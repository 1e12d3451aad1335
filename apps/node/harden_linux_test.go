package node

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// hardenMode in the environment makes this test's binary harden itself and say what it is then.
const hardenMode = "IOP_TEST_HARDEN"

// A hardened process can't be traced and leaves no core, unless the variable says otherwise. In a process of its own:
// it can't be undone.
func TestHarden(t *testing.T) {
	if os.Getenv(hardenMode) != "" {
		Harden(zerolog.New(os.Stdout))
		dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
		var core unix.Rlimit
		if err != nil || unix.Getrlimit(unix.RLIMIT_CORE, &core) != nil {
			t.Fatal(err)
		}
		t.Logf("dumpable=%d core=%d", dumpable, core.Max)
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(env ...string) string {
		cmd := exec.Command(self, "-test.run=^TestHarden$", "-test.v")
		cmd.Env = append(append(os.Environ(), hardenMode+"=1"), env...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(bytes.TrimSpace(out))
	}
	if out := run(DebugVariable + "="); !strings.Contains(out, "dumpable=0 core=0") || !strings.Contains(out, `"closed":true`) || !strings.Contains(out, `"pages":"`) {
		t.Errorf("hardened:\n%s", out)
	}
	if out := run(DebugVariable+"=1", "GOTRACEBACK=crash"); strings.Contains(out, "dumpable=0") || !strings.Contains(out, "can be debugged") ||
		!strings.Contains(out, "unset it") {
		t.Errorf("left open:\n%s", out)
	}
}
