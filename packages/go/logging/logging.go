// Package logging makes the programs' logger: zerolog lines as JSON, or readable ones on a terminal, through a buffer
// that saves a system call a line. It owns the format of a line and when lines are written; what is logged is the
// business of those who log. It keeps no package state, and it never blocks those who log.
package logging

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
)

// Config says what is logged and how.
type Config struct {
	Level  string    // trace, debug, info, warn or error; "" is info
	Format string    // json, console, or auto ("" too): console if Out is a terminal
	Out    io.Writer // nil is standard error
}

// New returns the logger and the buffer that it writes into. The caller closes the buffer as its last act.
func New(cfg Config) (zerolog.Logger, *Writer, error) {
	level, err := parseLevel(cfg.Level)
	if err != nil {
		return zerolog.Nop(), nil, err
	}
	if cfg.Out == nil {
		cfg.Out = os.Stderr
	}
	w := NewWriter(cfg.Out)
	var lines zerolog.LevelWriter = w
	switch cfg.Format {
	case "json":
	case "console":
		lines = newConsole(w)
	case "auto", "":
		if isTerminal(cfg.Out) {
			lines = newConsole(w)
		}
	default:
		return zerolog.Nop(), nil, fmt.Errorf("%q isn't a log format; use json, console or auto", cfg.Format)
	}
	return zerolog.New(lines).Level(level).Hook(zerolog.HookFunc(stamp)), w, nil
}

func parseLevel(s string) (zerolog.Level, error) {
	switch s {
	case "":
		return zerolog.InfoLevel, nil
	case "trace", "debug", "info", "warn", "error":
		return zerolog.ParseLevel(s)
	}
	return zerolog.NoLevel, fmt.Errorf("%q isn't a log level; use trace, debug, info, warn or error", s)
}

// stamp adds the time with milliseconds. zerolog's own way to do that is a package variable, which tests and the two
// programs in one process would share.
func stamp(e *zerolog.Event, _ zerolog.Level, _ string) {
	var b [32]byte
	e.RawJSON(zerolog.TimestampFieldName, time.Now().UTC().AppendFormat(b[:0], `"2006-01-02T15:04:05.000Z"`))
}

// console turns JSON lines into readable ones. It is a LevelWriter, so that the buffer still learns a line's level.
type console struct {
	zerolog.ConsoleWriter
	out *Writer
}

func newConsole(w *Writer) *console {
	return &console{out: w, ConsoleWriter: zerolog.NewConsoleWriter(func(c *zerolog.ConsoleWriter) {
		c.Out = w
		c.TimeFormat = "15:04:05.000"
		c.TimeLocation = time.Local
		c.NoColor = os.Getenv("NO_COLOR") != "" || !isTerminal(w.out)
	})}
}

// WriteLevel implements zerolog.LevelWriter.
func (c *console) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	n, err := c.Write(line)
	c.out.hurry(level)
	return n, err
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
