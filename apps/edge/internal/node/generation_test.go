package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"iop/apps/edge/internal/node"
)

func open(t *testing.T, dir string) *node.Generations {
	t.Helper()
	g, err := node.OpenGenerations(dir)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func next(t *testing.T, g *node.Generations) uint64 {
	t.Helper()
	n, err := g.Next()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A generation is never used twice, also when the edge ends without a word: design.md §2.
func TestGenerationsOnlyGrowAcrossRestarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "on", "the", "way")
	var last uint64
	var id string
	for restart := range 4 {
		g := open(t, dir)
		if id == "" {
			id = g.EdgeID()
		}
		if g.EdgeID() != id || id == "" {
			t.Fatalf("restart %d: edge id %q, was %q", restart, g.EdgeID(), id)
		}
		for range 1500 { // more than a block
			n := next(t, g)
			if n <= last {
				t.Fatalf("restart %d: generation %d after %d", restart, n, last)
			}
			last = n
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGenerationsAreDistinctUnderConcurrency(t *testing.T) {
	g := open(t, t.TempDir())
	defer g.Close()
	var mu sync.Mutex
	seen := make(map[uint64]bool)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 500 {
				n, err := g.Next()
				mu.Lock()
				if err != nil || seen[n] {
					t.Errorf("generation %d: seen %v, err %v", n, seen[n], err)
				}
				seen[n] = true
				mu.Unlock()
			}
		})
	}
	workers.Wait()
}

// A file that isn't what it should be stops the start and is named; it is not replaced by a fresh count.
func TestGenerationFileThatIsNotOne(t *testing.T) {
	for name, content := range map[string]string{
		"empty":     "",
		"truncated": `{"edge_id":"edge-1","reser`,
		"garbage":   "\x00\x00\x00\x00",
		"no id":     `{"reserved_generation":1024}`,
		"no number": `{"edge_id":"edge-1"}`,
		"negative":  `{"edge_id":"edge-1","reserved_generation":-1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "generation.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			g, err := node.OpenGenerations(dir)
			if err == nil {
				g.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), path) {
				t.Errorf("the error doesn't name %s: %v", path, err)
			}
			if got, _ := os.ReadFile(path); string(got) != content {
				t.Errorf("the file was changed to %q", got)
			}
			// Repaired, it goes on: the failed start left no lock behind.
			repaired := `{"edge_id":"edge-1","reserved_generation":7000}`
			if err := os.WriteFile(path, []byte(repaired), 0o600); err != nil {
				t.Fatal(err)
			}
			g = open(t, dir)
			defer g.Close()
			if n := next(t, g); n != 7001 {
				t.Errorf("generation %d after repair, want 7001", n)
			}
		})
	}
}

func TestGenerationFileThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "generation.json")
	if err := os.Mkdir(path, 0o700); err != nil { // works for root too, unlike permissions
		t.Fatal(err)
	}
	if _, err := node.OpenGenerations(dir); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("err %v, want one that names %s", err, path)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := node.OpenGenerations(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("err %v, want one that names %s", err, file)
	}
}

// Two edges that share a state_dir would hand out the same numbers.
func TestGenerationsOfOneDirectoryHaveOneOwner(t *testing.T) {
	dir := t.TempDir()
	g := open(t, dir)
	if second, err := node.OpenGenerations(dir); err == nil {
		second.Close()
		t.Fatal("a second owner was let in")
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir).Close()
}

// Numbers that can't be put on disk aren't handed out.
func TestGenerationsStopWhenTheDirectoryIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	g := open(t, dir)
	defer g.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for handed := range 2000 {
		if _, err := g.Next(); err != nil {
			if handed != 1024 {
				t.Errorf("%d numbers handed out of a block of 1024", handed)
			}
			if _, err := g.Next(); err == nil {
				t.Error("a number was handed out after the error")
			}
			return
		}
	}
	t.Fatal("numbers were handed out that are on no disk")
}
