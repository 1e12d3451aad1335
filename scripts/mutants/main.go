// Command mutants plants bugs, one at a time, and fails unless the tests notice each of them: it tests the tests.
//
// The working tree is never changed. A bug is an exact replacement in one file; the changed file lies in a scratch
// directory, and the go command is told to build it in the place of the real one (-overlay). A bug that can't be
// planted any more, because its file was changed, fails the gate, too: then the table has to follow the code.
//
// usage: mutants [-run REGEXP] [-budget DURATION] [-j N] [-layer NAME] [-sound] [-list]
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var (
		only   = flag.String("run", "", "only mutants whose name matches this expression")
		budget = flag.Duration("budget", 0, "begin no mutant after this time, and begin with another one each day; 0 = all")
		side   = flag.Int("j", runtime.NumCPU(), "how many mutants are tried side by side")
		sound  = flag.Bool("sound", false, "first run the named tests without a mutant: they must pass")
		layer  = flag.String("layer", "", "only tests of this layer: unit, state machine, simulation")
		list   = flag.Bool("list", false, "print the table and run nothing")
	)
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	all := slices.DeleteFunc(mutants(), func(m Mutant) bool { return !wanted.MatchString(m.Name) })
	if *layer != "" {
		for i := range all {
			all[i].Tests = slices.DeleteFunc(all[i].Tests, func(t Test) bool { return t.Layer != *layer })
		}
		all = slices.DeleteFunc(all, func(m Mutant) bool { return len(m.Tests) == 0 })
	}
	if *list {
		return show(all)
	}
	scratch, err := os.MkdirTemp("", "iop-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	g := &gate{dir: scratch}
	if *budget > 0 {
		all = rotate(all, time.Now())
		g.until = time.Now().Add(*budget)
	}
	if *sound {
		if err := g.sound(ctx, all); err != nil {
			return err
		}
	}
	return report(g.try(ctx, all, max(1, *side)))
}

// rotate begins the list with another mutant each day, a third of it further on, so that a part that changes with the
// date is run when there isn't time for all.
func rotate(all []Mutant, now time.Time) []Mutant {
	if len(all) == 0 {
		return all
	}
	day := int(now.Unix() / (24 * 60 * 60))
	from := day * (len(all)/3 + 1) % len(all)
	return slices.Concat(all[from:], all[:from])
}

// try runs the mutants, some side by side, and returns the results in the order in which they ended.
func (g *gate) try(ctx context.Context, all []Mutant, side int) []Result {
	var (
		mu      sync.Mutex
		results []Result
		work    sync.WaitGroup
		next    = make(chan Mutant)
	)
	for range side {
		work.Go(func() {
			for m := range next {
				r := g.one(ctx, m)
				mu.Lock()
				results = append(results, r)
				fmt.Fprintf(os.Stderr, "%-10s %s\n", r.Verdict, m.Name)
				mu.Unlock()
			}
		})
	}
	for _, m := range all {
		next <- m
	}
	close(next)
	work.Wait()
	return results
}

// report prints the table. An error says that the gate is not passed.
func report(results []Result) error {
	slices.SortFunc(results, func(a, b Result) int { return cmp.Compare(a.Mutant.Name, b.Mutant.Name) })
	count := map[Verdict]int{}
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "mutant\tverdict\tlayer\tcaught by\ttest took\twith build")
	for _, r := range results {
		count[r.Verdict]++
		if r.Verdict == skipped {
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1fs\t%.1fs\n", r.Mutant.Name, r.Verdict, r.By.Layer, r.caughtBy(), r.Took.Seconds(), r.Total.Seconds())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d mutants: %d caught, %d survived, %d couldn't be tried; %d left to another day (make mutants runs all)\n", len(results), count[caught], count[survived],
		count[broken], count[skipped])
	for _, r := range results {
		if r.Verdict == survived || r.Verdict == broken {
			fmt.Printf("\n%s (%s): %s\n%s\n", r.Mutant.Name, r.Verdict, r.Mutant.Promise, r.Text)
		}
	}
	if bad := count[survived] + count[broken]; bad > 0 {
		return fmt.Errorf("%d mutants were not caught", bad)
	}
	return nil
}

func show(all []Mutant) error {
	w := tabwriter.NewWriter(os.Stdout, 2, 8, 2, ' ', 0)
	for _, m := range all {
		for _, t := range m.Tests {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s -run %s\n", m.Name, m.File, t.Layer, t.Package, t.Run)
		}
	}
	return w.Flush()
}
