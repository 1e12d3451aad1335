package patience

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// aloneEnv names the test that a process was started for.
const aloneEnv = "IOP_TEST_ALONE"

// Alone runs test in a process of its own. Tests that have links on fake time need it: the multiplexer keeps timers in a
// package-level pool, where a timer of a bubble kills whoever meets it outside, and its timers of closed streams outlive
// their session by seconds.
func Alone(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	if os.Getenv(aloneEnv) == t.Name() {
		test(t)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var names []string
	for name := range strings.SplitSeq(t.Name(), "/") {
		names = append(names, "^"+regexp.QuoteMeta(name)+"$")
	}
	args := []string{"-test.run=" + strings.Join(names, "/"), "-test.count=1", "-test.timeout=4m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), aloneEnv+"="+t.Name(), "GORACE=atexit_sleep_ms=0")
	if raceDetector {
		// Two threads that look at timers of a bubble which are over already crash the race detector (go1.26, seen).
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// IsAlone reports whether this is a process that Alone has made.
func IsAlone() bool { return os.Getenv(aloneEnv) != "" }

// Bubble runs test on fake time. It may be called again and again in a test that is alone.
func Bubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	for range 3 { // so that the multiplexer's timers of the bubble before are gone
		runtime.GC()
	}
	synctest.Test(t, test)
}
