package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
)

// resolver reads keys from where they are. Its errors say which rule is broken: never a byte of what was read, and neither
// a path nor an argument, in whose place somebody may have written the key.
type resolver struct {
	limit   time.Duration // of a program, and of a file system that hangs
	private func(path string, most int, mounted bool) ([]byte, error)

	mu    sync.Mutex
	stuck map[string]int                    // how many reads of a file nobody waits for any more
	env   map[string]credentiallease.Secret // variables that were read; they aren't in the environment any more
}

func newResolver() *resolver {
	return &resolver{limit: execLimit, private: readPrivate, stuck: map[string]int{}, env: map[string]credentiallease.Secret{}}
}

// read returns the key of a source, in memory that is the caller's. peek leaves the environment as it is.
func (r *resolver) read(ctx context.Context, src config.SecretSource, peek bool) (value []byte, err error) {
	var raw []byte
	switch src.Kind {
	case config.SourceFile:
		raw, err = r.file(ctx, src.Name)
	case config.SourceCred:
		raw, err = r.credential(ctx, src.Name)
	case config.SourceEnv:
		raw, err = r.variable(src.Name, peek)
	case config.SourceExec:
		raw, err = r.run(ctx, src.Argv)
	default:
		err = errors.New("is of a kind that this version doesn't know")
	}
	defer clear(raw)
	if err != nil {
		return nil, err
	}
	return checked(raw)
}

// checked is what was read, without the one line end that may stand behind it, if it can be a key.
func checked(raw []byte) ([]byte, error) {
	line := raw
	if cut, ok := bytes.CutSuffix(line, []byte("\n")); ok {
		line = bytes.TrimSuffix(cut, []byte("\r"))
	}
	switch {
	case len(line) == 0:
		return nil, errors.New("is empty")
	case len(line) < credentiallease.MinSecret:
		return nil, fmt.Errorf("holds less than %d bytes, which isn't a key", credentiallease.MinSecret)
	case len(line) > credentiallease.MaxSecret:
		return nil, fmt.Errorf("holds more than %d bytes, which isn't a key", credentiallease.MaxSecret)
	}
	for _, c := range line {
		if c < 0x21 || c > 0x7e {
			return nil, errors.New("holds a blank, a second line or a character outside visible ASCII; it must hold the key and nothing else")
		}
	}
	return bytes.Clone(line), nil
}

// file reads a key's file within the limit: on a file system that hangs a read takes for ever, and neither the start, nor a
// reload, nor the other slots wait for it. Until it comes back the file isn't read again.
func (r *resolver) file(ctx context.Context, path string) ([]byte, error) {
	if r.count(path, 0) > 0 {
		return nil, errStuck
	}
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	got := make(chan result)
	go func() { // ends with the read
		buf, err := r.private(path, credentiallease.MaxSecret+len("\r\n"), true)
		select {
		case got <- result{buf: buf, err: err}:
		case <-ctx.Done():
			clear(buf)
			r.count(path, -1)
		}
	}()
	select {
	case read := <-got:
		return read.buf, read.err
	case <-ctx.Done():
		r.count(path, 1)
		return nil, errStuck
	}
}

var errStuck = errors.New("can't be read: its file system doesn't answer")

// count adds to the number of a file's reads that are stuck. Of one that comes back in the moment in which it is given up the
// end may be counted first.
func (r *resolver) count(path string, more int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stuck[path] += more; r.stuck[path] == 0 {
		delete(r.stuck, path)
	}
	return r.stuck[path]
}

// credential reads a credential that systemd made for this service.
func (r *resolver) credential(ctx context.Context, name string) ([]byte, error) {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	switch {
	case dir == "":
		return nil, errors.New("can't be read: CREDENTIALS_DIRECTORY isn't set; systemd sets it for LoadCredential=")
	case name == "" || name != filepath.Base(name) || name == "." || name == "..":
		return nil, errors.New("isn't the name of a credential: it has a separator in it")
	}
	return r.file(ctx, filepath.Join(dir, name))
}

// readPrivate reads a file that nobody but this program's user and root can have written or read. A device or a pipe is
// never read, whatever takes the file's place meanwhile. mounted permits other modes where the directory protects it.
func readPrivate(path string, most int, mounted bool) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("doesn't exist%w", hidden{fs.ErrNotExist})
	case err != nil:
		return nil, fmt.Errorf("can't be read: %w", plain(err))
	case !info.Mode().IsRegular():
		return nil, errNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("can't be read: %w", plain(err))
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, fmt.Errorf("can't be read: %w", plain(err))
	}
	if err := private(path, info, mounted); err != nil {
		return nil, err
	}
	return readMost(f, most)
}

var errNotRegular = errors.New("isn't a regular file")

// hidden is an error that is found in a chain and shows nothing.
type hidden struct{ error }

func (hidden) Error() string   { return "" }
func (h hidden) Unwrap() error { return h.error }

func readMost(f io.Reader, most int) ([]byte, error) {
	buf := make([]byte, 0, min(most+1, 8<<10))
	for len(buf) <= most {
		if len(buf) == cap(buf) { // of what has no secret in it: files of keys fit at once
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := f.Read(buf[len(buf):min(cap(buf), most+1)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			clear(buf)
			return nil, fmt.Errorf("can't be read: %w", plain(err))
		}
	}
	clear(buf)
	return nil, fmt.Errorf("holds more than %d bytes, which is too much", most)
}

// private checks who else can get at an open file.
func private(path string, info fs.FileInfo, mounted bool) error {
	if !info.Mode().IsRegular() {
		return errNotRegular
	}
	owner, ok := ownerOf(info)
	if !ok || owner != 0 && owner != os.Geteuid() {
		return errors.New("belongs to another user; it must belong to root or to the user of this program")
	}
	if info.Mode().Perm()&0o077 == 0 || mounted && owner == 0 && info.Mode().Perm()&0o022 == 0 && protected(path) {
		return nil
	}
	return fmt.Errorf("is open to other users of this machine (mode %04o); chmod 600 it", info.Mode().Perm())
}

func ownerOf(info fs.FileInfo) (uid int, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// protected reports whether a file lies where a service manager or a container's runtime puts secrets: in memory, in
// directories that only root can write, up to the root of that file system. /tmp and /dev/shm aren't such places.
func protected(path string) bool {
	path, err := filepath.EvalSymlinks(path)
	if err != nil || !inMemory(path) {
		return false
	}
	dir := filepath.Dir(path)
	for {
		info, err := os.Lstat(dir)
		if err != nil {
			return false
		}
		if owner, ok := ownerOf(info); !ok || owner != 0 || info.Mode().Perm()&0o022 != 0 {
			return false
		}
		above := filepath.Dir(dir)
		parent, err := os.Lstat(above)
		switch {
		case err != nil:
			return false
		case above == dir || otherDevice(info, parent):
			return true
		}
		dir = above
	}
}

func otherDevice(a, b fs.FileInfo) bool {
	one, ok1 := a.Sys().(*syscall.Stat_t)
	two, ok2 := b.Sys().(*syscall.Stat_t)
	return ok1 && ok2 && one.Dev != two.Dev
}

// variable reads an environment variable, and takes it out of the environment unless it only peeks: programs that this one
// starts don't get it. The kernel's copy of the environment stays as it was.
func (r *resolver) variable(name string, peek bool) (value []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept, ok := r.env[name]; ok {
		kept.Use(func(v []byte) { value = bytes.Clone(v) })
		return value, nil
	}
	text, ok := os.LookupEnv(name)
	if !ok {
		return nil, errors.New("isn't set")
	}
	value, err = checked([]byte(text))
	if err != nil || peek {
		return value, err
	}
	secret, err := credentiallease.NewSecret(bytes.Clone(value))
	if err != nil {
		return nil, err
	}
	r.env[name] = secret
	return value, os.Unsetenv(name)
}
