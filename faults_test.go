package iop

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// tableRows reads the tables of a Markdown file: each row by the names of its columns, with its section as "section".
func tableRows(t *testing.T, file string) (rows []map[string]string) {
	t.Helper()
	var header []string
	section := ""
	for line := range strings.Lines(source(t, file)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		if !strings.HasPrefix(line, "|") {
			header = nil
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case header == nil:
			header = cells
		case strings.HasPrefix(cells[0], "---"):
		case len(cells) != len(header):
			t.Errorf("%s: %d cells under %q: %s", file, len(cells), header, line)
		default:
			row := map[string]string{"section": section}
			for i, name := range header {
				row[name] = cells[i]
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// FAULTS.md has the nine promises and all 56 rows of the fault catalogue, and every test that it names exists.
func TestFaultsNameTestsThatExist(t *testing.T) {
	const file = "agent-contract/FAULTS.md"
	tests := testFunctions(t)
	seen := map[string][]string{}
	for _, row := range tableRows(t, file) {
		held, is := row["held by"]
		if !is {
			continue
		}
		seen[row["section"]] = append(seen[row["section"]], row["#"]+row["row"]+row["commit"])
		for _, name := range namedTests(t, held) {
			if !tests[name] {
				t.Errorf("%s: %s names %s, which doesn't exist", file, row["section"], name)
			}
		}
		if commit := row["commit"]; commit != "" && !regexp.MustCompile(`^[0-9a-f]{7,}$`).MatchString(commit) {
			t.Errorf("%s: %q is no commit", file, commit)
		}
	}
	for section, last := range map[string]int{"The contract": 9, "Fault catalogue": 56} {
		for n := 1; n <= last; n++ {
			if !slices.Contains(seen[section], strconv.Itoa(n)) {
				t.Errorf("%s: %s has no row %d", file, section, n)
			}
		}
	}
	if len(seen["Found on the way"]) == 0 {
		t.Errorf("%s: nothing was found on the way, which deserves suspicion", file)
	}
}

// CELLS.md speaks, in each table, for every event in every state exactly once; what it names exists, and each cell has a
// test, also one that is impossible.
func TestCellsAreReached(t *testing.T) {
	const file = "agent-contract/CELLS.md"
	states := map[string][]string{}
	section := ""
	for line := range strings.Lines(source(t, file)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			section = strings.TrimSpace(title)
		}
		if list, ok := strings.CutPrefix(line, "States: "); ok {
			list, _, _ = strings.Cut(list, ".")
			states[section] = strings.Split(list, ", ")
		}
	}
	tests := testFunctions(t)
	type event struct{ table, name string }
	spoken := map[event][]string{}
	for _, row := range tableRows(t, file) {
		cell := event{row["section"], row["event"]}
		spoken[cell] = append(spoken[cell], strings.Split(row["states"], ", ")...)
		if row["then"] == "" || row["then"] == "impossible:" {
			t.Errorf("%s: %v in %s: nothing is said", file, cell, row["states"])
		}
		for _, name := range namedTests(t, row["held by"]) {
			if !tests[name] {
				t.Errorf("%s: %v names %s, which doesn't exist", file, cell, name)
			}
		}
	}
	for cell, got := range spoken {
		want := slices.Clone(states[cell.table])
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v speaks for %v, the states are %v", file, cell, got, want)
		}
	}
	for _, table := range []string{"2.A", "2.B", "2.C", "2.D", "2.E", "2.F"} {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(states)), func(title string) bool { return strings.HasPrefix(title, table) }) {
			t.Errorf("%s: no table %s", file, table)
		}
	}
}
