package program

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// ErrKilled is what Serve returns after a second signal.
var ErrKilled = errors.New("ended at once by a second signal")

// killWait is how long a program may take to end at once before it is left to the operating system.
const killWait = 3 * time.Second

// Signals is what a program is told while it runs.
type Signals struct {
	// Kill is closed by a second SIGTERM or SIGINT: return now.
	Kill <-chan struct{}
	// Reload gets a value for SIGHUP; while one is there, further ones add nothing.
	Reload <-chan struct{}
}

// Ready tells the service manager, where there is one, that the program does its work, or what else there is to say of it:
// text is for people (systemctl status).
func Ready(log zerolog.Logger, text string) { tell(log, "READY=1\nSTATUS="+text) }

func tell(log zerolog.Logger, state string) {
	if err := Notify(state); err != nil {
		log.Warn().Err(err).Msg("the service manager doesn't hear")
	}
}

// Serve calls run and returns its error. The first SIGTERM or SIGINT cancels run's context: finish what runs, then
// return. The others are in the signals that run gets.
func Serve(log zerolog.Logger, run func(ctx context.Context, signals Signals) error) error {
	// A log or a terminal whose reader is gone must not end the program, as SIGPIPE would.
	signal.Ignore(unix.SIGPIPE)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer signal.Stop(signals)

	ctx, drain := context.WithCancel(context.Background())
	defer drain()
	kill, reload, ended := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- run(ctx, Signals{kill, reload}) }() // ends when run returns; after a kill that it ignores, with the process

	stopping := false
	for {
		select {
		case err := <-ended:
			return err
		case s := <-signals:
			switch {
			case s == unix.SIGHUP:
				select {
				case reload <- struct{}{}:
				default:
				}
			case !stopping:
				stopping = true
				log.Info().Stringer("signal", s).Msg("stopping: running requests may finish; a second signal ends them")
				tell(log, "STOPPING=1")
				drain()
			default:
				log.Warn().Stringer("signal", s).Msg("ending at once")
				close(kill)
				select {
				case <-ended:
				case <-time.After(killWait):
				}
				return ErrKilled
			}
		}
	}
}

// RaiseFileLimit lets this process open as many files as it may, and warns if that is less than it needs: every caller,
// node and provider connection is one.
func RaiseFileLimit(log zerolog.Logger, need uint64) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn().Err(err).Msg("the limit of open files is unknown")
		return
	}
	if limit.Cur < limit.Max {
		limit.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			log.Warn().Err(err).Msg("the limit of open files can't be raised")
			return
		}
	}
	if limit.Cur < need {
		log.Warn().Uint64("limit", limit.Cur).Uint64("need", need).
			Msg("fewer files may be open than the configuration needs; raise the limit (ulimit -n, systemd: LimitNOFILE=)")
	}
}
