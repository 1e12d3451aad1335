// Package e2e tests what a caller gets over the whole path: caller, edge, link, node, adapter, provider. Edge and node
// run in this process, the caller and the provider speak raw bytes, and every test ends with all places free and no
// goroutine left. Tests of real processes stand beside it under the build tag e2e.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// These tests wait more than they work. Whoever sets -parallel gets what they set.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		if err := f.Value.Set(fmt.Sprint(3 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// long skips a test that takes real minutes unless it was asked for.
func long(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("IOP_LONG") == "" {
		t.Skipf("%s in real time; set IOP_LONG=1 (make test-long). The scaled test runs always", what)
	}
	t.Parallel()
}
