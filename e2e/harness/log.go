package harness

import (
	"bytes"
	"encoding/json"
	"sync"
	"testing"

	"iop/packages/go/patience"
)

// Log collects a program's log lines. It is an io.Writer for zerolog.
type Log struct {
	mu    sync.Mutex
	lines [][]byte
}

// Write takes one line.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, bytes.Clone(p))
	return len(p), nil
}

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.Join(l.lines[max(0, len(l.lines)-n):], nil))
}

// Contains reports whether text stands anywhere in the log.
func (l *Log) Contains(text string) bool { return bytes.Contains([]byte(l.Tail(1<<30)), []byte(text)) }

// Entries returns the lines with the given message, decoded.
func (l *Log) Entries(message string) []map[string]any {
	l.mu.Lock()
	lines := l.lines // lines are never changed, only added
	l.mu.Unlock()
	var found []map[string]any
	for _, line := range lines {
		entry := map[string]any{}
		if json.Unmarshal(line, &entry) == nil && entry["message"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// Ended waits for the edge's line about the end of a run and returns it. A caller may have its answer a moment before
// the line is written. There must be exactly one.
func (l *Log) Ended(t testing.TB, runID string) map[string]any {
	t.Helper()
	if runID == "" {
		t.Fatal("no run id to look for")
	}
	var found []map[string]any
	Until(t, patience.Limit, "the log has the end of "+runID, func() bool {
		found = nil
		for _, entry := range l.Entries("run ended") {
			if entry["run_id"] == runID {
				found = append(found, entry)
			}
		}
		return len(found) > 0
	})
	if len(found) != 1 {
		t.Fatalf("the log has %d ends of %s", len(found), runID)
	}
	return found[0]
}
