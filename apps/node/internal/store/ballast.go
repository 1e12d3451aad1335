package store

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
)

// ballast is a file that does nothing but take up space. When the disk is full it is deleted, and the rows of what
// was running can still be written; the journal counts as healthy only once it is back.
type ballast struct {
	path string
	size int64
}

// ballastSize is room for some sixty commits: all that runs ends in a few.
const ballastSize = 512 << 10

// fill makes the ballast if it isn't there. Its bytes are random, so that a file system that compresses can't cheat.
func (b ballast) fill() error {
	if info, err := os.Stat(b.path); err == nil && info.Size() >= b.size {
		return nil
	}
	f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.Reader, b.size)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(b.path)
	}
	return err
}

// free deletes the ballast and reports whether that gave any space back.
func (b ballast) free() bool {
	info, err := os.Stat(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return err == nil && os.Remove(b.path) == nil && info.Size() > 0
}
