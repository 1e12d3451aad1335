// Package doctor is what the two programs' doctor commands share: a list of checks that is gone through in order, each
// within its own limit, what each found, how that is shown, and the checks that are the same for both (certificates,
// directories, limits of the machine).
//
// It only looks: nothing is written, and no check may show a secret. It knows neither program, and exits nothing.
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Level is how bad what a check found is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Skipped Level = "skipped" // it couldn't be looked at, and that by itself is no fault
	Warning Level = "warning" // it works, but not well, or not for long
	Fail    Level = "FAIL"    // it doesn't work
)

// The exit codes of a doctor command.
const (
	ExitOK      = 0 // nothing is wrong
	ExitWarning = 1 // there are warnings
	ExitFail    = 2 // something fails
)

// defaultLimit is what a check may take that names no limit.
const defaultLimit = 5 * time.Second

// maxText bounds what is shown of one finding: part of it may come from a peer.
const maxText = 600

// Finding is what one check found.
type Finding struct {
	// Check is the check's stable name: what it looked at, with the thing after a space where there are several.
	Check string `json:"check"`
	// Level is how bad it is.
	Level Level `json:"level"`
	// Text says what was found, and why that matters where it isn't plain.
	Text string `json:"text"`
	// Remedy says what to do; "" with OK.
	Remedy string `json:"remedy,omitempty"`
}

// Well is a finding that nothing is wrong.
func Well(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Text: fmt.Sprintf(format, args...)}
}

// Skip is the finding that something couldn't be looked at; remedy may be "".
func Skip(check, remedy, format string, args ...any) Finding {
	return Finding{Check: check, Level: Skipped, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Warn is a finding of something that isn't well.
func Warn(check, remedy, format string, args ...any) Finding {
	return Finding{Check: check, Level: Warning, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Failed is a finding of something that doesn't work.
func Failed(check, remedy, format string, args ...any) Finding {
	return Finding{Check: check, Level: Fail, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Check is one thing to look at.
type Check struct {
	// Name is what a finding is called that the check can't make itself, since it took too long.
	Name string
	// Limit is how long it may take; 0 = 5 s.
	Limit time.Duration
	// Run looks. A Run that doesn't return when its context ends is left behind, so that what it shares with later checks
	// must be safe for concurrent use. No finding = there was nothing to say.
	Run func(ctx context.Context) []Finding
}

// Report is what all checks found.
type Report struct {
	Program  string    `json:"program"`
	Version  string    `json:"version"`
	Level    Level     `json:"level"` // the worst one
	Findings []Finding `json:"findings"`
}

// Run goes through the checks in their order, and tells of each finding as it comes. It ends with ctx.
func Run(ctx context.Context, checks []Check, tell func(Finding)) []Finding {
	var all []Finding
	for _, c := range checks {
		for _, f := range c.run(ctx) {
			f.Text, f.Remedy = printable(f.Text), printable(f.Remedy)
			all = append(all, f)
			tell(f)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return all
}

// run looks within the limit, and leaves behind what doesn't come back.
func (c Check) run(ctx context.Context) []Finding {
	limit := c.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	found := make(chan []Finding, 1)
	go func() { found <- c.Run(ctx) }() // ends with Run; what hangs in the kernel ends with the process
	select {
	case f := <-found:
		return f
	case <-ctx.Done():
	}
	// What noticed the end of its time says more than that it was over.
	grace := time.NewTimer(grace)
	defer grace.Stop()
	select {
	case f := <-found:
		return f
	case <-grace.C:
		return []Finding{Failed(c.Name, "look at what it waits for: a file system or a peer that hangs", "no result within %v", limit)}
	}
}

// grace is how long a check may take to say that its time was over.
const grace = 500 * time.Millisecond

// Worst returns the worst level of the findings; what was skipped isn't bad.
func Worst(all []Finding) Level {
	worst := OK
	for _, f := range all {
		switch {
		case f.Level == Fail:
			return Fail
		case f.Level == Warning:
			worst = Warning
		}
	}
	return worst
}

// ExitCode is the exit code that goes with a level.
func (l Level) ExitCode() int {
	switch l {
	case Fail:
		return ExitFail
	case Warning:
		return ExitWarning
	}
	return ExitOK
}

// printable keeps what others said on one line, bounded, and from doing anything to a terminal.
func printable(s string) string {
	n := 0
	return strings.Map(func(r rune) rune {
		switch n++; {
		case n == maxText:
			return '…'
		case n > maxText:
			return -1
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, s)
}
