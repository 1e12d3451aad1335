package store

import (
	"fmt"
	"testing"

	"iop/packages/go/execution"
)

// What the journal adds to a run: a run that ends inside its batch is one insert, a longer one an insert and an update.
func BenchmarkRun(b *testing.B) {
	for _, tt := range []struct {
		name    string
		batch   int
		between bool // the begin is written before the end comes
	}{
		{"one_insert/batch=100", 100, false},
		{"insert_and_update/batch=100", 100, true},
		{"insert_and_update/batch=10", 10, true},
	} {
		b.Run(tt.name, func(b *testing.B) {
			j, err := Open(b.Context(), Config{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer j.Close()
			w := &writer{j: j}
			tokens := int64(123)
			running := make([]*Entry, 0, tt.batch)
			drain := func() {
				if err := w.drain(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				running = append(running, j.Begin(Execution{Edge: "edge", RunID: "run-0123456789abcdef", Attempt: 1, Generation: 7,
					Kind: execution.KindTunnel, Adapter: "ollama", Target: "llama3.2:3b", SessionID: "session"}))
				if len(running) < tt.batch {
					continue
				}
				if tt.between {
					drain()
				}
				for _, e := range running {
					e.End(Outcome{Progress: Progress{Usage: execution.Usage{Input: &tokens, Output: &tokens}, BytesIn: 500, BytesOut: 5000},
						Status: StatusComplete})
				}
				running = running[:0]
				drain()
			}
		})
	}
}

// What a node's start costs, with a fresh journal and with a full one.
func BenchmarkOpen(b *testing.B) {
	for _, rows := range []int{0, DefaultMaxRows} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			dir := b.TempDir()
			for i := -1; b.Loop(); i++ {
				j, err := Open(b.Context(), Config{Dir: dir})
				if err != nil {
					b.Fatal(err)
				}
				for n := 0; i < 0 && n < rows; n++ {
					j.Begin(tunnel(runName(n))).End(complete())
					if n%1000 == 0 {
						_ = (&writer{j: j}).drain()
					}
				}
				if err := j.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
