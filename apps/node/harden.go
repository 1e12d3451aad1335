package node

import (
	"os"
	"strings"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/page"
	"iop/packages/go/credentiallease"
)

// DebugVariable is the environment variable that keeps [Harden] from closing the process, when it is "1": for a debugger,
// and for tests that look through a node's memory.
const DebugVariable = "IOP_NODE_DEBUGGABLE"

// Harden closes this process to what would find a provider's key in it while it is in use: other programs of the same
// user (debuggers, /proc/PID/mem) and core dumps. It is for programs, not for tests that run a node in their own process,
// and it can't be undone. What isn't to be had on this system is logged and does no harm: a key is in memory for the
// time of a write, in a page of its own.
func Harden(log zerolog.Logger) {
	closed := os.Getenv(DebugVariable) != "1"
	if !closed {
		log.Warn().Str("variable", DebugVariable).Msg("this process can be debugged and dumped, with the provider keys that it is lent")
	} else if err := shut(); err != nil {
		closed = false
		log.Warn().Err(err).Msg("this process can't be closed to debuggers and core dumps; a provider key could be read from it while it is sent")
	}
	if crash := os.Getenv("GOTRACEBACK"); strings.HasPrefix(crash, "crash") || crash == "wer" {
		log.Warn().Str("gotraceback", crash).Msg("GOTRACEBACK asks for a core dump of a crash; unset it")
	}
	var pages page.Pool
	p := pages.Take()
	log.Info().Bool("closed", closed).Stringer("pages", p.Kind()).Bool("shielded", credentiallease.Shielded).
		Msg("where provider keys are in memory")
	p.Free()
	pages.Close()
}
