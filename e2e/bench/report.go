package main

import (
	"fmt"
	"strings"
	"time"
)

// report collects Markdown tables and the goals that the figures are held against.
type report struct {
	text   strings.Builder
	notes  []string
	reach  []string
	missed int
}

func (r *report) String() string { return r.text.String() }

func (r *report) title(text string) { fmt.Fprintf(&r.text, "# %s\n", text) }

// head begins a table.
func (r *report) head(title string, columns ...string) {
	r.flushNotes()
	fmt.Fprintf(&r.text, "\n## %s\n\n| %s |\n|%s\n", title, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

func (r *report) row(cells ...string) { fmt.Fprintf(&r.text, "| %s |\n", strings.Join(cells, " | ")) }

// note is printed below the table that is being written; the same text once.
func (r *report) note(text string) {
	for _, note := range r.notes {
		if note == text {
			return
		}
	}
	r.notes = append(r.notes, text)
}

func (r *report) flushNotes() {
	for _, note := range r.notes {
		fmt.Fprintf(&r.text, "\n%s\n", note)
	}
	r.notes = nil
}

// goal holds a figure against its limit: at least (atLeast) or at most.
func (r *report) goal(what string, figure, limit float64, atLeast bool) {
	ok, sign := figure <= limit, "≤"
	if atLeast {
		ok, sign = figure >= limit, "≥"
	}
	verdict := "yes"
	if !ok {
		verdict = "**no**"
		r.missed++
	}
	r.reach = append(r.reach, fmt.Sprintf("| %s | %.2f | %s %g | %s |", what, figure, sign, limit, verdict))
}

func (r *report) goals() {
	r.head("Against the numbers to reach", "what", "figure", "goal", "reached")
	r.text.WriteString(strings.Join(r.reach, "\n") + "\n")
	r.flushNotes()
}

func f0(v float64) string        { return fmt.Sprintf("%.0f", v) }
func f1(v float64) string        { return fmt.Sprintf("%.1f", v) }
func f2(v float64) string        { return fmt.Sprintf("%.2f", v) }
func us(d time.Duration) string  { return fmt.Sprint(d.Microseconds()) }
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
func mib(bytes int64) float64    { return float64(bytes) / (1 << 20) }
