package program

import (
	"context"
	"maps"
	"time"

	"golang.org/x/sys/unix"
)

// WatchInterval is how often watched files are looked at. A change is told once a file has stood still from one look to
// the next, so that one that is being written isn't read half.
const WatchInterval = 500 * time.Millisecond

// look is what a file is like, as far as a change of its content or of what its name leads to shows in it.
type look struct {
	there   bool
	device  uint64
	inode   uint64
	size    int64
	written time.Time
	changed unix.Timespec // by the kernel's clock: nobody can set it back
}

// lookAt follows symbolic links, so that a mounted configuration that is swapped by its link is another file.
func lookAt(name string) look {
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return look{}
	}
	return look{there: true, device: uint64(st.Dev), inode: st.Ino, size: st.Size,
		written: time.Unix(st.Mtim.Unix()), changed: st.Ctim}
}

// Watch calls changed whenever one of the files isn't what it was when changed was last called, until ctx ends: also once
// at the beginning, and when a file is new to it, since what was read before may have changed before it was looked at.
// Files are asked for at each look: what is watched may change with the content. Editors that write in place, rename, or
// delete and create are all seen, as are links that are swapped; a file that is gone is a change, too.
func Watch(ctx context.Context, files func() []string, changed func()) {
	known, last := map[string]look{}, map[string]look{}
	tick := time.NewTicker(WatchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := looks(files())
		settled := maps.Equal(now, last)
		last = now
		if settled && !maps.Equal(now, known) {
			known = now
			changed()
		}
	}
}

func looks(names []string) map[string]look {
	all := make(map[string]look, len(names))
	for _, name := range names {
		all[name] = lookAt(name)
	}
	return all
}
