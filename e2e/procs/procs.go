// Package procs starts the built programs as processes, reads their JSON logs, and stops them. The demo, the
// benchmark and the end-to-end tests share it; it owns nothing but the processes that it started.
package procs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one running program whose log (standard error, one JSON object a line) is kept and can be waited for.
type Process struct {
	Name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process was reaped
	err  error         // of Wait; read after done

	mu      sync.Mutex
	entries []Entry
	more    chan struct{} // closed and replaced at each new entry
}

// Entry is one line of a log. A line that isn't a JSON object has its text as "message".
type Entry map[string]any

// Str returns a field as text, "" when it is absent.
func (e Entry) Str(field string) string {
	value, ok := e[field]
	if !ok {
		return ""
	}
	return fmt.Sprint(value)
}

// Start runs path with args. The process is ended when ctx is: SIGTERM, then SIGKILL after five seconds.
func Start(ctx context.Context, name, path string, args ...string) (*Process, error) {
	return StartCmd(ctx, name, exec.CommandContext(ctx, path, args...))
}

// StartCmd is Start for a command that the caller prepared (environment, directory, namespace).
func StartCmd(_ context.Context, name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, cmd: cmd, done: make(chan struct{}), more: make(chan struct{})}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = writer
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), reader.Close(), writer.Close())
	}
	writer.Close()
	read := make(chan struct{})
	go func() { // ends at the end of the pipe, which the process holds
		defer close(read)
		defer reader.Close()
		lines := bufio.NewScanner(reader)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.add(lines.Text())
		}
	}()
	go func() { // ends with the process
		p.err = cmd.Wait()
		<-read
		close(p.done)
	}()
	return p, nil
}

func (p *Process) add(line string) {
	entry := Entry{}
	if json.Unmarshal([]byte(line), &entry) != nil {
		entry = Entry{"message": line}
	}
	entry["line"] = line
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries = append(p.entries, entry)
	close(p.more)
	p.more = make(chan struct{})
}

// Pid returns the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns the code that the process ended with, -1 if a signal ended it. It waits for the end.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Descriptors returns how many files the process has open now.
func (p *Process) Descriptors() (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	return len(entries), err
}

// Entries returns every log entry so far with the given message.
func (p *Process) Entries(message string) []Entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []Entry
	for _, entry := range p.entries {
		if entry["message"] == message {
			found = append(found, entry)
		}
	}
	return found
}

// Log returns every line so far.
func (p *Process) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := make([]string, len(p.entries))
	for i, entry := range p.entries {
		lines[i] = entry.Str("line")
	}
	return strings.Join(lines, "\n")
}

// Count returns how many log entries have the given message.
func (p *Process) Count(message string) int { return len(p.Entries(message)) }

// Wait returns the nth (from 1) log entry with the given message, waiting for it until ctx ends or the process does.
func (p *Process) Wait(ctx context.Context, message string, nth int) (Entry, error) {
	for {
		entry, more := p.find(message, nth)
		if entry != nil {
			return entry, nil
		}
		select {
		case <-more:
		case <-p.done:
			if entry, _ := p.find(message, nth); entry != nil {
				return entry, nil
			}
			return nil, fmt.Errorf("%s ended (%v) before it said %q:\n%s", p.Name, p.err, message, p.Log())
		case <-ctx.Done():
			return nil, fmt.Errorf("%s didn't say %q in time:\n%s", p.Name, message, p.Log())
		}
	}
}

func (p *Process) find(message string, nth int) (Entry, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, entry := range p.entries {
		if entry["message"] == message {
			if nth--; nth == 0 {
				return entry, nil
			}
		}
	}
	return nil, p.more
}

// Signal sends sig to the process.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Stop sends SIGTERM, SIGKILL after the limit, and returns how the process ended: nil for exit code 0.
func (p *Process) Stop(limit time.Duration) error {
	_ = p.Signal(syscall.SIGTERM) // it may have ended already
	select {
	case <-p.done:
	case <-time.After(limit):
		_ = p.Signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s didn't end within %v of SIGTERM", p.Name, limit)
	}
	return p.err
}

// Kill ends the process at once with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}
