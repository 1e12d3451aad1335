package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/packages/go/program"
)

func (c *ctl) eventsCommand() *cobra.Command {
	f := &follower{ctl: c, silence: 45 * time.Second, pause: time.Second}
	query := url.Values{}
	var last int
	filters := map[string]*[]string{}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Follow what happens: nodes that come and go, runs step by step",
		Long: `Follow what happens on the Edge, as it happens: nodes that come and go, and each step of each run. When the connection is
lost it is made again, and what happened meanwhile is shown as far as the Edge remembers it; how much is missing is said.
Ctrl-C ends it.

A kind is an event's name (fenced, run_ended, …), or run or node for all of them. Filters may be given more than once, or
with commas; an event must pass each of them.`,
		Example: `  iop-edge ctl events
  iop-edge ctl events --kind node --last 50
  iop-edge ctl events --kind run_ended,run_retried --principal alice -o json`,
		Args: program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.checkOutput(cmd); err != nil {
				return err
			}
			for name, values := range filters {
				if len(*values) > 0 {
					query.Set(name, strings.Join(*values, ","))
				}
			}
			if last > 0 {
				query.Set("last", strconv.Itoa(last))
			}
			f.path = "/admin/v1/events?" + query.Encode()
			f.out, f.err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return f.follow(ctx)
		},
	}
	for name, help := range map[string]string{"kind": "kinds of events", "node": "nodes", "run": "runs", "principal": "principals"} {
		filters[name] = cmd.Flags().StringSlice(name, nil, "only these "+help)
	}
	cmd.Flags().IntVar(&last, "last", 0, "show so many of the events that were before, too")
	return cmd
}

// follower follows events over any number of connections.
type follower struct {
	ctl      *ctl
	path     string
	out, err io.Writer
	silence  time.Duration // after which a connection counts as dead: the Edge says something every 15 s
	pause    time.Duration // before the first new try; it doubles with each

	last      string // id of the last event
	connected bool   // once at least
}

// longestPause bounds the time between two tries.
const longestPause = 10 * time.Second

// finalError is an answer that another try wouldn't change.
type finalError struct{ error }

// follow returns when ctx ends, or when the Edge refuses.
func (f *follower) follow(ctx context.Context) error {
	pause := f.pause
	for {
		was := f.last
		err := f.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case !f.connected || errors.As(err, new(finalError)):
			return err
		}
		if f.last != was {
			pause = f.pause
		}
		fmt.Fprintf(f.err, "iop-edge: %v; trying again\n", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// once follows over one connection until that ends.
func (f *follower) once(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(f.silence, func() { cancel(errors.New("the edge has fallen silent")) })
	defer watch.Stop()
	request, err := f.ctl.request(ctx, http.MethodGet, f.path, nil)
	if err != nil {
		return err
	}
	if f.last != "" {
		request.Header.Set("Last-Event-ID", f.last)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	if err != nil {
		return lostBecause(ctx, fmt.Errorf("ask the edge: %w; is listen.admin on, and is this its address?", err))
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		err := refused(response)
		if response.StatusCode < 500 {
			err = finalError{err}
		}
		return err
	}
	if f.connected {
		fmt.Fprintln(f.err, "iop-edge: connected again")
	}
	f.connected = true
	return lostBecause(ctx, f.read(bufio.NewReaderSize(response.Body, 64<<10), func() { watch.Reset(f.silence) }))
}

// lostBecause prefers the reason for which the connection was given up to what that looks like.
func lostBecause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// read prints events until the connection ends; alive is called for each line.
func (f *follower) read(lines *bufio.Reader, alive func()) error {
	id := ""
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return errors.New("the connection to the edge was lost")
		}
		alive()
		switch name, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": "); name {
		case "id":
			id = value
		case "data":
			if err := f.print(value); err != nil {
				return err
			}
			if id != "" {
				f.last, id = id, ""
			}
		}
	}
}

// happening is an event as the Edge shows it, as far as it is printed.
type happening struct {
	At                                          time.Time
	Kind, Node, Adapter, Principal, Model, Code string
	RunID                                       string `json:"run_id"`
	Generation                                  uint64 `json:"connection_generation"`
	Attempt, Position                           int
	AfterMS                                     *int64 `json:"after_ms"`
	Text                                        string
	Missed                                      *uint64
	Why                                         string
}

func (f *follower) print(data string) error {
	if f.ctl.output == "json" {
		_, err := fmt.Fprintln(f.out, data)
		return err
	}
	var e happening
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return fmt.Errorf("read an event: %w; is the edge of another version? -o json shows it", err)
	}
	_, err := fmt.Fprintln(f.out, plain(e.line()))
	return err
}

func (e *happening) line() string {
	if e.Kind == "missed" {
		return e.missed()
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s %-20s", e.At.Local().Format("15:04:05.000"), e.Kind)
	field := func(name, value string) {
		if value != "" && value != "0" {
			s.WriteString(" " + name + "=" + value)
		}
	}
	field("node", e.Node)
	field("generation", strconv.FormatUint(e.Generation, 10))
	field("adapter", e.Adapter)
	field("run", e.RunID)
	field("attempt", strconv.Itoa(e.Attempt))
	field("principal", e.Principal)
	field("model", e.Model)
	field("position", strconv.Itoa(e.Position))
	if e.Code != e.Kind {
		field("code", e.Code)
	}
	if e.AfterMS != nil {
		field("after", milliseconds(*e.AfterMS))
	}
	if e.Text != "" {
		s.WriteString(" " + e.Text)
	}
	return s.String()
}

// missed says that something isn't shown.
func (e *happening) missed() string {
	n := "an unknown number of"
	if e.Missed != nil {
		n = strconv.FormatUint(*e.Missed, 10)
	}
	why := map[string]string{"slow": "this reader is too slow", "forgotten": "they were too long ago", "restarted": "the edge was restarted"}[e.Why]
	return fmt.Sprintf("… %s events are missing here: %s", n, why)
}
