package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/rs/zerolog"

	"iop/packages/go/patience"
)

var (
	from  = flag.Uint64("sim.from", 1, "the first seed")
	count = flag.Int("sim.count", 1, "how many seeds")
	show  = flag.Bool("sim.show", false, "print the history")
	logs  = flag.Bool("sim.log", false, "print the programs' logs")
)

// TestSeeds lives through seeds, one after the other.
func TestSeeds(t *testing.T) {
	runtime.GOMAXPROCS(1)
	log := zerolog.Nop()
	if *logs {
		log = zerolog.New(os.Stderr)
	}
	dir := t.TempDir()
	for seed := *from; seed < *from+uint64(*count); seed++ {
		fmt.Fprint(os.Stderr, "\rseed ", seed)
		var r *Report
		patience.Bubble(t, func(*testing.T) { r = Play(seed, dir, log) })
		if *show {
			r.history.print(os.Stdout)
			fmt.Println(r.Stats)
		}
		for _, b := range r.Breaches {
			t.Errorf("seed %d: %s", seed, b)
		}
		if t.Failed() && os.Getenv("SIM_FIRST") != "" {
			return
		}
		fmt.Println(seed, r.Hash)
	}
}
