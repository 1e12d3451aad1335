package store

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// helpWrite DIR COUNT FIRST records COUNT executions one after the other, says after each commit what is in the file,
// and ends without closing anything. COUNT 0 is for ever.
func helpWrite(args []string) error {
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	first, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	j, err := Open(context.Background(), Config{Dir: args[0]})
	if err != nil {
		return err
	}
	fmt.Println("opened")
	w := &writer{j: j}
	for i := first; count == 0 || i < first+count; i++ {
		e := j.Begin(tunnel(runName(i)))
		if err := w.drain(); err != nil {
			return err
		}
		fmt.Println("began", i)
		e.End(complete())
		if err := w.drain(); err != nil {
			return err
		}
		fmt.Println("ended", i)
	}
	return nil // TestMain calls os.Exit: the log stays as it is
}

// helpHold PATH keeps the file locked for writing until its input ends.
func helpHold(args []string) error {
	db := connect(fileURI(args[0], url.Values{"_busy_timeout": {"5000"}, "_txlock": {"exclusive"}}))
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	fmt.Println("held")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return tx.Rollback()
}

// helpRead PATH keeps reading the file until its input ends: each reader stays in it for 50 ms, and the next is there
// before the last one leaves.
func helpRead(args []string) error {
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	leave := func() error { return nil }
	for said := false; ; said = true {
		r, err := OpenReader(context.Background(), args[0])
		if err != nil {
			return err
		}
		rows, err := r.db.Query(`SELECT id FROM executions`)
		if err != nil {
			return err
		}
		rows.Next()
		if err := leave(); err != nil {
			return err
		}
		leave = func() error { _ = rows.Close(); return r.Close() }
		if !said {
			fmt.Println("reading")
		}
		select {
		case <-tick.C:
		case <-ended:
			return leave()
		}
	}
}

// helpLimited DIR is a node whose files may not grow for a while: writes fail with EFBIG, which SQLite calls an I/O
// error. It ends well if the journal goes on and has everything in the end.
func helpLimited(args []string) error {
	signal.Ignore(syscall.SIGXFSZ)
	states := make(chan string, 100)
	j, err := Open(context.Background(), Config{Dir: args[0], OnState: func(_ bool, reason string) { states <- reason }})
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- j.Run(context.Background()) }()
	before := j.Begin(tunnel("before"))
	if err := j.Flush(context.Background()); err != nil {
		return err
	}
	if err := limitFiles(100); err != nil {
		return err
	}
	before.End(complete())
	j.Begin(tunnel("while")).End(complete())
	fmt.Println("failing:", <-states)
	if err := limitFiles(1 << 40); err != nil {
		return err
	}
	fmt.Println("then:", <-states)
	j.Begin(tunnel("after")).End(complete())
	if err := j.Flush(context.Background()); err != nil {
		return err
	}
	rows, err := j.List(context.Background(), Query{Status: StatusComplete})
	if err != nil || len(rows) != 3 {
		return fmt.Errorf("%d rows, want 3 (%v)", len(rows), err)
	}
	return j.Close()
}

func limitFiles(size uint64) error {
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: 1 << 40})
}
