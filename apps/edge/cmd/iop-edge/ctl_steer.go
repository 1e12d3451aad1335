package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"iop/apps/edge/internal/service"
	"iop/packages/go/program"
)

func (c *ctl) whyCommand() *cobra.Command {
	var principal, path string
	var all bool
	cmd := &cobra.Command{
		Use:   "why MODEL",
		Short: "Show where requests for a model go, and why an adapter isn't taken",
		Long: `Show what would become of a request for MODEL now: its route, who waits there, and each adapter that is configured, with
the reasons for which it takes no work. With a principal, as a request of that principal; without, as one that may use
every route.`,
		Example: `  iop-edge ctl why qwen3:8b
  iop-edge ctl why qwen3:8b --principal alice --path /v1/embeddings`,
		Args: program.Args("MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"model": {args[0]}}
			for name, value := range map[string]string{"principal": principal, "path": path} {
				if value != "" {
					query.Set(name, value)
				}
			}
			return c.show(cmd, http.MethodGet, "/admin/v1/why?"+query.Encode(), nil, func(w io.Writer, answer []byte) error {
				return whyTable(w, answer, all)
			})
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "who asks")
	cmd.Flags().StringVar(&path, "path", "", "path of the API that is asked, as in /v1/embeddings")
	cmd.Flags().BoolVar(&all, "all", false, "show adapters, too, to which the route doesn't lead")
	return cmd
}

// whyAnswer is the answer of GET /admin/v1/why.
type whyAnswer struct {
	Model, Principal, Target string
	Problems                 []struct{ Code, Text string }
	Route                    *struct {
		Model, Adapter string
		Nodes          []string
		Labels         map[string]string
		Depth          int   `json:"queue_depth"`
		WaitMS         int64 `json:"queue_wait_ms"`
		FailFast       bool  `json:"fail_fast"`
	}
	Queue struct {
		Waiting   int
		LongestMS int64 `json:"longest_ms"`
	}
	Candidates []struct {
		Node, Adapter, State string
		OnRoute              bool `json:"on_route"`
		TakesWork            bool `json:"takes_work"`
		Loaded               bool
		InFlight             int `json:"in_flight"`
		Capacity             int
		Reasons              []struct{ Code, Text string }
	}
}

func whyTable(w io.Writer, answer []byte, all bool) error {
	var a whyAnswer
	if err := decode(answer, &a); err != nil {
		return err
	}
	for _, p := range a.Problems {
		fmt.Fprintf(w, "callers are refused: %s: %s\n", plain(p.Code), plain(p.Text))
	}
	if a.Route == nil {
		return nil
	}
	fmt.Fprintf(w, "model %s takes the route %q and asks for %s\n", plain(a.Model), a.Route.Model, plain(a.Target))
	fmt.Fprintln(w, a.waiting())
	fmt.Fprintln(w)
	t := newTable(w, "NODE", "ADAPTER", "STATE", "RUNNING", "TAKES WORK", "WHY NOT")
	hidden := 0
	for _, cand := range a.Candidates {
		if !cand.OnRoute && !all {
			hidden++
			continue
		}
		takes, why := "no", ""
		switch {
		case cand.TakesWork && cand.Loaded:
			takes = "yes, loaded"
		case cand.TakesWork:
			takes = "yes"
		}
		head := []string{cand.Node, cand.Adapter, cand.State, fmt.Sprintf("%d/%d", cand.InFlight, cand.Capacity), takes}
		if len(cand.Reasons) == 0 {
			t.line(append(head, why)...)
		}
		for _, r := range cand.Reasons {
			t.line(append(head, r.Text)...)
			head = []string{" ", " ", " ", " ", " "}
		}
	}
	if err := t.w.Flush(); err != nil || hidden == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "%s not on the route; --all shows why\n", program.Count(hidden, "adapter"))
	return err
}

// waiting is the line about the queue.
func (a *whyAnswer) waiting() string {
	text := fmt.Sprintf("%d of %d wait for a place", a.Queue.Waiting, a.Route.Depth)
	if a.Queue.Waiting > 0 {
		text += ", the first for " + milliseconds(a.Queue.LongestMS)
	}
	text += "; each may wait " + milliseconds(a.Route.WaitMS)
	if a.Route.FailFast {
		text += ", while a node could serve it (fail_fast)"
	}
	return text
}

func (c *ctl) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain RUN",
		Short: "Show what happened to a run, step by step",
		Long: `Show what happened to a run or tunnel: when it came, how long it waited, which places it was given, why an attempt was given
back, when the answer began, how it ended. The Edge remembers the steps of live runs and of those that ended lately.`,
		Example: `  iop-edge ctl explain run-NRV7TLWJYBZQ3GLZ4V6YTKTGQE`,
		Args:    program.Args("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.show(cmd, http.MethodGet, "/admin/v1/runs/"+url.PathEscape(args[0]), nil, explainTable)
		},
	}
}

func explainTable(w io.Writer, answer []byte) error {
	var x service.Explanation
	if err := decode(answer, &x); err != nil {
		return err
	}
	if err := runTable(w, answer); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t := newTable(w, "TIME", "AFTER", "STEP", "ATTEMPT", "NODE", "ADAPTER", "NOTE")
	for _, s := range x.Timeline {
		if s.Skipped > 0 {
			t.line("…", " ", fmt.Sprintf("%d steps aren't remembered", s.Skipped), " ", " ", " ", " ")
		}
		note, attempt := s.Code, ""
		if s.Position > 0 {
			note = "position " + strconv.Itoa(s.Position)
		}
		if s.Attempt > 0 {
			attempt = strconv.FormatUint(uint64(s.Attempt), 10)
		}
		t.line(s.At.Format("15:04:05.000"), milliseconds(s.AfterMS), s.Event, attempt, s.Node, s.Adapter, note)
	}
	return t.w.Flush()
}

func (c *ctl) drainCommand() *cobra.Command {
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Keep new work from a node, or let it in again",
		Long: `Keep new work from a node: what runs there goes on, what waits goes to others. It holds when the node connects anew, until
--undo, and it is forgotten when the Edge restarts: to keep a node out for good, set enabled: false in the
configuration.`,
		Example: `  iop-edge ctl drain gpu-1
  iop-edge ctl drain gpu-1 --undo`,
		Args: program.Args("NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.show(cmd, http.MethodPost, "/admin/v1/nodes/"+url.PathEscape(args[0])+"/drain", map[string]bool{"undo": undo}, drainTable)
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "let new work in again")
	return cmd
}

func drainTable(w io.Writer, answer []byte) error {
	var a struct {
		Node    string
		Drained bool
	}
	if err := decode(answer, &a); err != nil {
		return err
	}
	text := "new work may go there again"
	if a.Drained {
		text = "gets no new work until --undo, or until the Edge restarts; what runs there goes on"
	}
	_, err := fmt.Fprintf(w, "node %s: %s\n", plain(a.Node), text)
	return err
}

func (c *ctl) releaseCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "release NODE ADAPTER RUN",
		Short: "Take back a place whose node never confirmed that its run has ended",
		Long: `Take back the place that a RUN holds at an ADAPTER of a NODE: the run is over for its caller, and the node never said that it
is over there, too (UNCONFIRMED in ctl queue). With --force also what the node says that it still works on. Others may
then be sent there while the provider is still busy. Who did it is recorded in the Edge's log.`,
		Example: `  iop-edge ctl place release gpu-1 llama run-NRV7TLWJYBZQ3GLZ4V6YTKTGQE`,
		Args:    program.Args("NODE", "ADAPTER", "RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ask := map[string]any{"node": args[0], "adapter": args[1], "run_id": args[2], "force": force}
			return c.show(cmd, http.MethodPost, "/admin/v1/places/release", ask, releaseTable)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also what isn't over")
	return cmd
}

func releaseTable(w io.Writer, answer []byte) error {
	var a struct {
		Node, Adapter string
		RunID         string `json:"run_id"`
		Released      int
	}
	if err := decode(answer, &a); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "run %s: %s of %s on %s released\n", plain(a.RunID), program.Count(a.Released, "place"), plain(a.Adapter), plain(a.Node))
	return err
}
