package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"iop/packages/go/program"
)

const mib = 1 << 20

// How much room a directory of small files needs: below the first it is about to fail, below the second it will.
const (
	noRoom     = 16 * mib
	littleRoom = 256 * mib
)

// Directory looks at a directory that a program keeps its state in: that it is there or can be made, may be written, and
// has room. key names it in the configuration.
func Directory(check, key, dir string) []Finding {
	info, err := os.Stat(dir)
	at := dir
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for at = filepath.Dir(dir); ; at = filepath.Dir(at) {
			if info, err = os.Stat(at); err == nil || at == filepath.Dir(at) {
				break
			}
		}
	case errors.Is(err, unix.ENOTDIR):
		return []Finding{Failed(check, "name another directory as "+key+", or move the file away", "%s: a part of its path is a file", dir)}
	}
	switch {
	case err != nil:
		return []Finding{Failed(check, "let this program's user reach it", "%s can't be looked at: %v", at, plain(err))}
	case !info.IsDir():
		return []Finding{Failed(check, "name another directory as "+key+", or move the file away", "%s is a file where a directory is due", at)}
	}
	if err := unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return []Finding{Failed(check, writeRemedy(err, at, key), "%s can't be written by %s: %v", at, whoami(), err)}
	}
	if f, bad := room(check, key, at); bad {
		return []Finding{f}
	}
	if at != dir {
		return []Finding{Well(check, "%s isn't there yet; %s can be written, so it will be made", dir, at)}
	}
	return []Finding{Well(check, "%s can be written by %s", dir, whoami())}
}

func writeRemedy(err error, dir, key string) string {
	if errors.Is(err, unix.EROFS) {
		return "its file system is mounted read-only: mount it writable (systemd: StateDirectory=, ReadWritePaths=), or name another directory as " + key
	}
	return fmt.Sprintf("give it to the program's user (chown, chmod u+rwx %s), or name another directory as %s", dir, key)
}

// whoami says as whom it was looked: root may write where the program's own user may not.
func whoami() string {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Sprintf("this user (uid %d)", uid)
	}
	return "root (run doctor as the program's user to see what that may)"
}

// room looks at the space that is left in the file system of a directory.
func room(check, key, dir string) (f Finding, bad bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return Warn(check, "look at the file system", "how much room %s has isn't known: %v", dir, err), true
	}
	free := s.Bavail * uint64(s.Bsize)
	remedy := "make room there, or name a directory on another file system as " + key
	switch {
	case free < noRoom:
		return Failed(check, remedy, "the disk of %s is full: %d KiB free, and what must be remembered can't be written", dir, free>>10), true
	case s.Files > 0 && s.Ffree == 0:
		return Failed(check, "delete files there, or name a directory on another file system as "+key,
			"the disk of %s has no inode left, so that no file can be made", dir), true
	case free < littleRoom:
		return Warn(check, remedy, "the disk of %s is nearly full: %d MiB free", dir, free/mib), true
	}
	return Finding{}, false
}

// Files looks at how many files a program may have open. whose says which one, why what needs so many.
func Files(whose string, limit, need uint64, why string) Finding {
	const check = "files"
	if limit < need {
		return Warn(check, fmt.Sprintf("raise the limit to %d at least (ulimit -n, systemd: LimitNOFILE=), or lower what needs them", need),
			"%s may have %d files open, and %s can need %d: beyond that connections are refused", whose, limit, why, need)
	}
	return Well(check, "%s may have %d files open; %s can need %d", whose, limit, why, need)
}

// OwnFiles is Files by the limit of this process: a program that is started otherwise may have another.
func OwnFiles(need uint64, why string) Finding {
	limit, err := program.FileLimit()
	if err != nil {
		return Warn("files", "look at ulimit -n", "how many files may be open isn't known: %v", err)
	}
	return Files("what is started from here", limit, need, why)
}

// Memory compares what may be used with what a configuration permits itself, in bytes.
func Memory(m program.Memory, permits int64, why string) Finding {
	const check = "memory"
	switch {
	case m.Limit == 0:
		return Skip(check, "", "how much memory there is isn't known")
	case m.Limit < permits:
		return Warn(check, "lower them, or raise the limit (systemd: MemoryMax=)",
			"what is started from here may use %d MiB (%s), and %s permit %d MiB: beyond the limit the kernel ends the program", m.Limit/mib, m.Source, why, (permits+mib-1)/mib)
	}
	return Well(check, "what is started from here may use %d MiB (%s); %s permit %d MiB", m.Limit/mib, m.Source, why, (permits+mib-1)/mib)
}

// plain is an error without the path that the caller names itself.
func plain(err error) error {
	if pe := new(fs.PathError); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
