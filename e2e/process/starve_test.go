//go:build e2e

package process

import (
	"io"
	"os"
	"runtime"
)

const roleBusy = "busy"

// playBusy keeps every processor busy until standard input ends.
func playBusy() int {
	for range 2 * runtime.NumCPU() {
		go func() {
			for {
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}
