// Soak runs one edge, three nodes and three providers as processes for minutes or hours, under a mixed load of callers
// and random faults, and then looks whether everything is as it was: places, streams, goroutines, descriptors and memory
// back, every run's record final, one terminal for each caller, no prompt executed twice. It prints a report in
// Markdown and fails when a promise was broken.
//
// One seed, which is printed, decides what callers ask for and which faults come when. What the processes and the
// kernel make of it differs from run to run: a seed repeats the load, not the history (e2e/sim does).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory of iop-edge and iop-node")
	flag.Float64Var(&o.minutes, "minutes", 2, "how long the load lasts")
	flag.Uint64Var(&o.seed, "seed", 0, "what decides load and faults; 0 = a new one")
	flag.IntVar(&o.callers, "callers", 24, "how many callers there are at once")
	flag.Float64Var(&o.rate, "rate", 10, "requests that begin within a second, at most")
	flag.DurationVar(&o.calm, "calm", 5*time.Second, "mean time between two faults")
	flag.StringVar(&o.only, "faults", "", "only faults whose name matches this expression")
	flag.StringVar(&o.report, "report", "", "also write the report to this file")
	role := flag.String("role", "", "internal: be a provider")
	listen := flag.String("listen", "", "internal: the provider's address")
	ledger := flag.String("ledger", "", "internal: where the provider notes what it executes")
	flag.Parse()
	if *role == "provider" {
		fail(serveProvider(*listen, *ledger))
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()>>16 | 1
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	fail(soak(ctx, o))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

type options struct {
	bin, report   string
	only          string
	minutes, rate float64
	seed          uint64
	callers       int
	calm          time.Duration
}

// soak does it all: start, measure, load with faults, calm, compare.
func soak(ctx context.Context, o options) (err error) {
	fmt.Fprintf(os.Stderr, "soak: seed %d, %.1f minutes\n", o.seed, o.minutes)
	dir, err := os.MkdirTemp("", "iop-soak-")
	if err != nil {
		return err
	}
	w, err := newWorld(ctx, o, dir)
	if err != nil {
		return err
	}
	b := newBook(o)
	defer func() {
		w.stop()
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = errors.Join(err, w.keepLogs(), fmt.Errorf("files and logs are in %s", dir))
		}
	}()
	before, err := measured(ctx, w, b, o)
	if err != nil {
		return err
	}
	begun := time.Now()
	length := time.Duration(o.minutes * float64(time.Minute))
	loaded, endLoad := context.WithTimeout(ctx, length)
	defer endLoad()
	faults := make(chan struct{})
	go func() { // ends with the load, when every fault is repaired
		defer close(faults)
		w.breakThings(loaded, b, o, length)
	}()
	callers(loaded, w, b, o)
	<-faults
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.settle(ctx, b, before)
	b.countExecutions(filepath.Join(dir, ledgerFile))
	text := b.report(time.Since(begun), before, w.after)
	fmt.Print(text)
	if o.report != "" {
		if err := os.WriteFile(o.report, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return b.verdict()
}

// measured warms everything up with a short load without faults and returns how large the programs then are at rest.
func measured(ctx context.Context, w *world, b *book, o options) (sizes, error) {
	const warm = 8 * time.Second
	loaded, cancel := context.WithTimeout(ctx, warm)
	defer cancel()
	callers(loaded, w, b, o)
	if err := w.rest(ctx, time.Minute); err != nil {
		return nil, fmt.Errorf("after the warming up, without any fault: %w", err)
	}
	return w.sizes(ctx)
}
