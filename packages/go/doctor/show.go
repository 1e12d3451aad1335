package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// nameWidth is how wide the column of names is; longer ones push their line.
const nameWidth = 18

// Line writes a finding as one line for people: level, check, what and why, and what to do.
func Line(w io.Writer, f Finding) error {
	text := fmt.Sprintf("%-8s %-*s %s", f.Level, nameWidth, f.Check, f.Text)
	if f.Remedy != "" {
		text += ". To do: " + f.Remedy
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// Summary writes how many findings there are of each kind.
func Summary(w io.Writer, all []Finding) error {
	count := map[Level]int{}
	for _, f := range all {
		count[f.Level]++
	}
	var parts []string
	for _, l := range []Level{Fail, Warning, OK, Skipped} {
		if n := count[l]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, l))
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(parts, ", "))
	return err
}

// JSON writes a report for programs.
func JSON(w io.Writer, r Report) error {
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(r)
}
