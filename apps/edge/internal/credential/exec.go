package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	execLimit  = 5 * time.Second
	execOutput = 64 << 10
)

// errTooMuch ends a program that writes without end.
var errTooMuch = errors.New("wrote more than 64 KiB")

// run starts a program and returns what it wrote. It gets no shell, nothing to read, and of the environment only PATH and
// HOME; it is killed with all that it started. What left its process group is out of reach, but isn't waited for.
func (r *resolver) run(ctx context.Context, argv []string) ([]byte, error) {
	if len(argv) == 0 {
		return nil, errors.New("names no program")
	}
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = allowed()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, complaints, err := start(ctx, cmd)
	if errors.Is(err, context.DeadlineExceeded) { // before it could be started
		return nil, late(r.limit)
	}
	if err != nil {
		return nil, fmt.Errorf("can't be started: %w", startError(err))
	}
	var written, counted result
	var reads sync.WaitGroup
	reads.Go(func() { // both end with the program and all that it started, or with ctx
		if written = readOutput(out); errors.Is(written.err, errTooMuch) {
			cancel()
		}
	})
	reads.Go(func() { counted.n, counted.err = io.Copy(io.Discard, complaints) })
	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind; its group has this number as long as it has members
	reads.Wait()
	if err = verdict(ctx, err, written, counted.n, r.limit); err != nil {
		clear(written.buf)
		return nil, err
	}
	return written.buf, nil
}

// start starts a program and returns the ends from which its output and its complaints are read, until ctx ends.
func start(ctx context.Context, cmd *exec.Cmd) (out, complaints *os.File, err error) {
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer stdout.Close()
	complaints, stderr, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	defer stderr.Close()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		_, _ = out.Close(), complaints.Close()
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { _, _ = out.Close(), complaints.Close() })
	return out, complaints, nil
}

// result is what was read of a program.
type result struct {
	buf []byte
	n   int64
	err error
}

// readOutput reads into memory that can be cleared.
func readOutput(from io.Reader) result {
	buf := make([]byte, execOutput+1)
	n, err := io.ReadFull(from, buf)
	switch {
	case err == nil:
		clear(buf)
		return result{err: errTooMuch}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = nil
	}
	return result{buf: buf[:n], err: err}
}

// allowed is the environment of a program.
func allowed() []string {
	env := []string{}
	for _, name := range []string{"PATH", "HOME"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// startError is why a program didn't start, without its name.
func startError(err error) error {
	var e *exec.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return plain(err)
}

// late is what is wrong with a program that had too little time.
func late(limit time.Duration) error {
	return fmt.Errorf("didn't finish within %v and was killed", limit)
}

// verdict says what is wrong with how a program ended. Of what it wrote to its standard error it says the length: that
// may quote anything.
func verdict(ctx context.Context, err error, written result, complaints int64, limit time.Duration) error {
	var exit *exec.ExitError
	switch {
	case errors.Is(written.err, errTooMuch):
		return errTooMuch
	case err == nil && written.err == nil:
		return nil
	case errors.As(err, &exit) && exit.Exited():
		return fmt.Errorf("ended with exit code %d and wrote %d bytes to its standard error", exit.ExitCode(), complaints)
	case err == nil:
		return errors.New("left a process behind that holds its output open")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return late(limit)
	case ctx.Err() != nil:
		return errors.New("was stopped")
	}
	return fmt.Errorf("was killed, and wrote %d bytes to its standard error", complaints)
}
