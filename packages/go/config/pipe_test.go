package config

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pipe that stands where the file was must not hold up a reload: it would keep every later one waiting, and the
// program from ending. One that somebody writes into is read as ever.
func TestAPipeInTheFilesPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "edge.yaml")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, load := range map[string]func(string) (*Edge, error){"load": LoadEdge, "reload": ReloadEdge} {
		done := make(chan error, 1)
		go func() {
			_, err := load(path)
			done <- err
		}()
		select {
		case err := <-done:
			if err == nil {
				t.Errorf("%s: a pipe without a writer passed for a configuration", name)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s waits for somebody who writes into the pipe", name)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = w.WriteString("routes: [{model: a}]\n")
		_ = w.Close()
	}()
	e, err := LoadEdge("/dev/fd/" + strconv.Itoa(int(r.Fd())))
	if err != nil || len(e.Routes) != 1 {
		t.Errorf("by a pipe: %v", err)
	}
}
