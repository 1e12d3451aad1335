package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Mutant is one planted bug.
type Mutant struct {
	Name    string
	Promise string // what it breaks
	File    string // from the module's root
	Old     string // is in the file exactly once
	New     string // stands in its place
	Tests   []Test // which of them catches it; the cheapest layer first
}

// Test is a command that should fail with the mutant: go test PACKAGE -run RUN.
type Test struct {
	Layer   string // unit, state machine, in process, simulation, processes
	Package string // directory from the module's root
	Run     string // as in go test -run
	Args    string // further arguments of the test binary
}

// The layers.
const (
	unit       = "unit"
	machine    = "state machine"
	simulation = "simulation"
)

// Verdict is what became of a mutant.
type Verdict string

// The verdicts.
const (
	caught   Verdict = "caught"
	survived Verdict = "SURVIVED"
	broken   Verdict = "BROKEN"  // can't be planted, built, or its tests aren't there
	skipped  Verdict = "skipped" // no time
)

// Result is a mutant with its verdict.
type Result struct {
	Mutant  Mutant
	Verdict Verdict
	By      Test          // whose tests caught it
	Failed  []string      // the names of the tests that failed
	Took    time.Duration // of the test run that caught it
	Total   time.Duration // with the builds, and what didn't catch it
	Text    string        // of what went wrong
}

func (r *Result) caughtBy() string {
	if r.Verdict != caught {
		return ""
	}
	if len(r.Failed) == 0 {
		return r.By.Package + " " + r.By.Run
	}
	more := ""
	if len(r.Failed) > 1 {
		more = fmt.Sprintf(" +%d", len(r.Failed)-1)
	}
	return r.By.Package + " " + r.Failed[0] + more
}

const (
	// testLimit bounds one run of tests. A mutant may make them hang: that is noticed, too.
	testLimit = 25 * time.Second
	// simulationLimit is the same for some seeds of the simulation.
	simulationLimit = 3 * time.Minute
	// buildLimit bounds one build.
	buildLimit = 5 * time.Minute
)

// gate tries mutants.
type gate struct {
	dir   string    // scratch
	until time.Time // no mutant is begun after it; zero = no limit
}

// one plants a mutant and runs its tests until one fails.
func (g *gate) one(ctx context.Context, m Mutant) (r Result) {
	r = Result{Mutant: m, Verdict: skipped}
	begun := time.Now()
	defer func() { r.Total = time.Since(begun) }()
	if !g.until.IsZero() && begun.After(g.until) {
		return r
	}
	dir := filepath.Join(g.dir, m.Name)
	files, err := plant(m, dir)
	if err != nil {
		r.Verdict, r.Text = broken, err.Error()
		return r
	}
	r.Verdict = survived
	tests := m.Tests
	for _, t := range m.Tests { // a race that a test meets most of the time it meets in one of five
		if t.Layer != simulation {
			t.Args += " -test.count=5"
			tests = append(tests[:len(tests):len(tests)], t)
		}
	}
	for i, t := range tests {
		binary := filepath.Join(dir, fmt.Sprintf("test%d", i))
		if text, err := build(ctx, t.Package, binary, "-overlay", files); err != nil {
			r.Verdict, r.Text = broken, fmt.Sprintf("build: %v\n%s", err, text)
			return r
		}
		start := time.Now()
		out, err := runTests(ctx, t, binary)
		r.By, r.Took = t, time.Since(start)
		switch failed := failures(out); {
		case strings.Contains(out, "no tests to run"):
			r.Verdict, r.Text = broken, fmt.Sprintf("%s has no test %s", t.Package, t.Run)
			return r
		case err != nil && ctx.Err() != nil:
			r.Verdict, r.Text = broken, ctx.Err().Error()
			return r
		case err != nil:
			r.Verdict, r.Failed, r.Text = caught, failed, ""
			return r
		}
		r.Text += fmt.Sprintf("passed with it: go test ./%s -run '%s'\n", t.Package, t.Run)
	}
	return r
}

// plant writes the changed file and the description of the overlay, whose name it returns.
func plant(m Mutant, dir string) (string, error) {
	changed, err := m.changed()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	copied := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(copied, changed, 0o600); err != nil {
		return "", err
	}
	return overlay(dir, map[string]string{m.File: copied})
}

// overlay describes to the go command which files stand in the place of which. Beside what it is given that is always
// the waits of the tests, which are shorter here: a test of which half the events never happen would take minutes.
func overlay(dir string, replace map[string]string) (string, error) {
	hasty := Mutant{Name: "hasty", File: "packages/go/patience/patience.go", Old: "const Limit = 30 *", New: "const Limit = 5 *"}
	changed, err := hasty.changed()
	if err != nil {
		return "", err
	}
	replace[hasty.File] = filepath.Join(dir, "patience.go")
	if err := os.WriteFile(replace[hasty.File], changed, 0o600); err != nil {
		return "", err
	}
	absolute := map[string]string{}
	for name, by := range replace {
		if name, err = filepath.Abs(name); err != nil {
			return "", err
		}
		absolute[name] = by
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": absolute})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// changed returns the file with the bug in it.
func (m Mutant) changed() ([]byte, error) {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return nil, err
	}
	if n := bytes.Count(text, []byte(m.Old)); n != 1 {
		return nil, fmt.Errorf("%s: what mutant %s replaces is there %d times, not once; the table of mutants has to follow the code", m.File, m.Name, n)
	}
	return bytes.Replace(text, []byte(m.Old), []byte(m.New), 1), nil
}

// build makes a package's test binary.
func build(ctx context.Context, dir, binary string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildLimit)
	defer cancel()
	args = append([]string{"test", "-c", "-o", binary}, args...)
	out, err := exec.CommandContext(ctx, "go", append(args, "./"+dir)...).CombinedOutput()
	return string(out), err
}

// runTests runs what t names. An error says that it failed, or didn't end.
func runTests(ctx context.Context, t Test, binary string) (string, error) {
	limit := testLimit
	if t.Layer == simulation {
		limit = simulationLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit+15*time.Second)
	defer cancel()
	args := append([]string{"-test.run", t.Run, "-test.timeout", limit.String(), "-test.failfast"}, strings.Fields(t.Args)...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = t.Package
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it started itself and left behind; mostly there is nothing
	return out.String(), err
}

// failures are the names of the tests that failed; a test that panicked or hung is the one that was running.
func failures(out string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^--- FAIL: (\S+)|^\s+(Test[A-Za-z0-9_]+)\S* \([0-9.ms]+\)$`).FindAllStringSubmatch(out, -1) {
		names = append(names, m[1]+m[2])
	}
	return names
}

// sound runs every test that the mutants name without any mutant. One that fails then proves nothing.
func (g *gate) sound(ctx context.Context, all []Mutant) error {
	files, err := overlay(g.dir, map[string]string{})
	if err != nil {
		return err
	}
	var errs []error
	binaries, done := map[string]string{}, map[Test]bool{}
	for _, m := range all {
		for _, t := range m.Tests {
			if done[t] {
				continue
			}
			done[t] = true
			binary, ok := binaries[t.Package]
			if !ok {
				binary = filepath.Join(g.dir, strings.ReplaceAll(t.Package, "/", "-"))
				if text, err := build(ctx, t.Package, binary, "-overlay", files); err != nil {
					return fmt.Errorf("build %s: %w\n%s", t.Package, err, text)
				}
				binaries[t.Package] = binary
			}
			if out, err := runTests(ctx, t, binary); err != nil {
				errs = append(errs, fmt.Errorf("%s %s fails without a mutant: %w\n%s", t.Package, t.Run, err, out))
			}
		}
	}
	return errors.Join(errs...)
}
