package credential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	execLimit  = 5 * time.Second
	execOutput = 64 << 10
	execLinger = time.Second // for what a program left behind to let go of its output
)

// errTooMuch ends a program that writes without end.
var errTooMuch = errors.New("wrote more than 64 KiB")

// run starts a program and returns what it wrote. It gets no shell, nothing to read, and of the environment only PATH and
// HOME; it is killed with all that it started.
func (r *resolver) run(ctx context.Context, argv []string) ([]byte, error) {
	if len(argv) == 0 {
		return nil, errors.New("names no program")
	}
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	out, complaints := &output{full: cancel}, &counter{}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = allowed()
	cmd.Stdout, cmd.Stderr = out, complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = execLinger
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("can't be started: %w", startError(err))
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind; its group has this number as long as it has members
	if err = verdict(ctx, err, out, complaints, r.limit); err != nil {
		clear(out.buf)
		return nil, err
	}
	return out.buf, nil
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

// verdict says what is wrong with how a program ended. Of what it wrote to its standard error it says the length: that
// may quote anything.
func verdict(ctx context.Context, err error, out *output, complaints *counter, limit time.Duration) error {
	var exit *exec.ExitError
	switch {
	case out.over:
		return errTooMuch
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("didn't finish within %v and was killed", limit)
	case ctx.Err() != nil:
		return errors.New("was stopped")
	case errors.Is(err, exec.ErrWaitDelay):
		return errors.New("left a process behind that holds its output open")
	case errors.As(err, &exit) && exit.Exited():
		return fmt.Errorf("ended with exit code %d and wrote %d bytes to its standard error", exit.ExitCode(), complaints.n)
	case err != nil:
		return fmt.Errorf("was killed, and wrote %d bytes to its standard error", complaints.n)
	}
	return nil
}

// output takes what a program writes into memory that can be cleared.
type output struct {
	full func() // called when there is too much
	buf  []byte
	over bool
}

// ReadFrom implements io.ReaderFrom, so that there is no buffer in between.
func (o *output) ReadFrom(r io.Reader) (int64, error) {
	buf := make([]byte, execOutput+1)
	n := 0
	for n < len(buf) {
		m, err := r.Read(buf[n:])
		n += m
		if err != nil {
			o.buf = buf[:n]
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return int64(n), err
		}
	}
	clear(buf)
	o.over = true
	o.full()
	return int64(n), errTooMuch
}

// Write implements io.Writer, which a command's output has to be.
func (o *output) Write([]byte) (int, error) { return 0, errTooMuch }

// counter counts what a program writes, and keeps nothing.
type counter struct{ n int }

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}
