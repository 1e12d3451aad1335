package program

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// watching starts a watch of one file and returns how to wait for the next change.
func watching(t *testing.T, name string) (changed func(what string), still func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	told, looked, done := make(chan struct{}, 16), make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, func() []string {
			select {
			case looked <- struct{}{}:
			default:
			}
			return []string{name}
		}, func() { told <- struct{}{} })
	}()
	t.Cleanup(func() { cancel(); <-done })
	<-looked
	select {
	case <-told: // the beginning
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was told at the beginning")
	}
	changed = func(what string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: not seen", what)
		}
	}
	still = func() { // three looks, and nothing is told
		t.Helper()
		for range 3 {
			<-looked
		}
		select {
		case <-told:
			t.Fatal("a change was told that wasn't one")
		default:
		}
	}
	return changed, still
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// CF-01: in place, by rename, deleted and made anew; each one time after the other, since each changes what is watched.
func TestWatchSeesEveryWayToWrite(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "edge.yaml")
	write(t, name, "a")
	changed, still := watching(t, name)
	for range 2 {
		write(t, name, "in place, longer")
		changed("a write in place")
		still()
		write(t, name+".tmp", "renamed")
		if err := os.Rename(name+".tmp", name); err != nil {
			t.Fatal(err)
		}
		changed("a rename")
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
		changed("a removal")
		write(t, name, "again")
		changed("a file made anew")
		still()
	}
	// The same size and the same time of writing, as a coarse clock or a careful tool may leave it.
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	write(t, name, "niaga")
	if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	changed("a write that set the time back")
}

// CF-02: a mounted configuration is a link to a directory that is swapped as a whole.
func TestWatchFollowsLinks(t *testing.T) {
	dir := t.TempDir()
	version := func(v string) {
		t.Helper()
		sub := filepath.Join(dir, v)
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(sub, "edge.yaml"), "same content")
		if err := os.Symlink(v, filepath.Join(dir, "..new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("v1")
	name := filepath.Join(dir, "edge.yaml")
	if err := os.Symlink("..data/edge.yaml", name); err != nil {
		t.Fatal(err)
	}
	changed, still := watching(t, name)
	for old, next := range map[string]string{"v1": "v2"} {
		version(next)
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			t.Fatal(err)
		}
		changed("a swapped link")
		still()
	}
}
