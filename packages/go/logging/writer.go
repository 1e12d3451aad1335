package logging

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	delay     = 50 * time.Millisecond
	fullAt    = 32 << 10        // written without waiting for the delay
	limit     = 1 << 20         // lines beyond it are lost, and counted
	closeWait = 2 * time.Second // for an output that doesn't take the last lines
)

// Writer collects lines and writes them 50 ms later in one piece, at once from level warn up. Those who log wait for
// nothing: when the output stalls (a stopped terminal, a full pipe), up to 1 MiB is kept and the rest is lost and
// counted. All methods may be called concurrently.
type Writer struct {
	out io.Writer
	// turn holds one empty buffer: whoever takes it out may write to out, and so pieces keep their order.
	turn chan []byte

	mu      sync.Mutex
	pending []byte
	lost    int
	armed   bool // the timer will run, or a flush waits for its turn
	hurried bool // the same, without the delay
	closed  bool
	timer   *time.Timer
}

// NewWriter returns a buffer in front of out. Nothing runs while there is nothing to write.
func NewWriter(out io.Writer) *Writer {
	w := &Writer{out: out, turn: make(chan []byte, 1)}
	w.turn <- nil
	w.timer = time.AfterFunc(time.Hour, w.Flush)
	w.timer.Stop()
	return w
}

// Write takes one line. It never fails.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	if len(w.pending)+len(line) > limit {
		w.lost++
		w.mu.Unlock()
		return len(line), nil
	}
	w.pending = append(w.pending, line...)
	closed := w.closed
	switch {
	case closed:
	case len(w.pending) >= fullAt:
		w.hurryLocked()
	case !w.armed:
		w.armed = true
		w.timer.Reset(delay)
	}
	w.mu.Unlock()
	if closed {
		w.Flush()
	}
	return len(line), nil
}

// WriteLevel implements zerolog.LevelWriter.
func (w *Writer) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	n, err := w.Write(line)
	w.hurry(level)
	return n, err
}

// hurry has what is pending written now if the level is worth it; a line that announces the end of the program is
// waited for.
func (w *Writer) hurry(level zerolog.Level) {
	switch level {
	case zerolog.WarnLevel, zerolog.ErrorLevel:
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.closed {
			w.hurryLocked()
		}
	case zerolog.FatalLevel, zerolog.PanicLevel:
		w.Flush()
	}
}

// hurryLocked has what is pending written now. Each run of the timer is a goroutine, which waits while the output stalls:
// one that waits already is enough.
func (w *Writer) hurryLocked() {
	if !w.hurried {
		w.armed, w.hurried = true, true
		w.timer.Reset(0)
	}
}

// Flush writes what is pending and waits until it is written.
func (w *Writer) Flush() {
	empty := <-w.turn
	w.mu.Lock()
	piece, lost := w.pending, w.lost
	w.pending, w.lost, w.armed, w.hurried = empty, 0, false, false
	w.mu.Unlock()
	if lost > 0 {
		piece = fmt.Appendf(piece, `{"level":"warn","lost":%d,"message":"log lines lost, the reader of the log is too slow"}`+"\n", lost)
	}
	if len(piece) > 0 {
		// There is nobody to tell that the log can't be written.
		_, _ = w.out.Write(piece)
	}
	if cap(piece) > 4*fullAt {
		piece = nil
	}
	w.turn <- piece[:0]
}

// Close writes what is pending; it waits 2 seconds at most. Lines that come later are written one by one.
func (w *Writer) Close() {
	w.mu.Lock()
	w.closed = true
	w.timer.Stop()
	w.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the write, or with the program
		w.Flush()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeWait):
	}
}
