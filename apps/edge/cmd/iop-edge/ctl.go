package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/packages/go/program"
)

// ctl is what every `iop-edge ctl` command is told, and how it asks.
type ctl struct {
	admin, keyFile, output string
}

func ctlCommand() *cobra.Command {
	c := &ctl{}
	group := program.Group("ctl", "See and steer a running Edge", c.nodesCommand(), c.runsCommand(), c.queueCommand(), c.eventsCommand(),
		c.whyCommand(), c.explainCommand(), c.cancelCommand(), c.drainCommand(),
		program.Group("place", "Take back what a node doesn't give back", c.releaseCommand()), c.slotCommand(), c.leaseKeyCommand(), c.usageCommand(),
		c.commandCommand())
	group.Long = `See and steer a running Edge through its admin listener (listen.admin). On loopback it asks for no key; elsewhere
the key is read from --key-file or from IOP_ADMIN_KEY.

-o json prints what the admin API answers, for programs; tables are for people and may change.

Exit code: 0 when the Edge did what it was asked, 1 otherwise, 2 when the command was called wrongly.`
	flags := group.PersistentFlags()
	flags.StringVar(&c.admin, "admin", "http://127.0.0.1:8081", "address of the Edge's admin listener")
	flags.StringVar(&c.keyFile, "key-file", "", "`FILE` that holds an admin key")
	flags.StringVarP(&c.output, "output", "o", "table", "table or json")
	return group
}

// show asks and prints the answer: as it is, or by table.
func (c *ctl) show(cmd *cobra.Command, method, path string, body any, table func(w io.Writer, answer []byte) error) error {
	if err := c.checkOutput(cmd); err != nil {
		return err
	}
	answer, err := c.ask(cmd.Context(), method, path, body)
	if err != nil {
		return err
	}
	if c.output == "json" {
		_, err = cmd.OutOrStdout().Write(answer)
		return err
	}
	return table(cmd.OutOrStdout(), answer)
}

func (c *ctl) checkOutput(cmd *cobra.Command) error {
	if c.output != "table" && c.output != "json" {
		return program.Usage(cmd, "-o must be table or json, not %q", c.output)
	}
	return nil
}

// maxAnswer bounds an answer: a provider's, in JSON, is at most 16 MiB of text that may be escaped.
const maxAnswer = 128 << 20

// ask sends one request and returns the body of a good answer. Ctrl-C ends it.
func (c *ctl) ask(ctx context.Context, method, path string, body any) ([]byte, error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	request, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	// A redirect would take the key along; the admin listener has none.
	client := http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(request)
	switch {
	case ctx.Err() != nil:
		return nil, errors.New("interrupted")
	case err != nil:
		return nil, fmt.Errorf("ask the edge: %w; is listen.admin on, and is this its address?", err)
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return nil, refused(response)
	}
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the edge's answer: %w", err)
	}
	return answer, nil
}

func (c *ctl) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		content = bytes.NewReader(text)
	}
	base, err := url.Parse(c.admin)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("--admin %q: must be an address like http://127.0.0.1:8081", c.admin)
	}
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.admin, "/")+path, content)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	key, err := secretOf(c.keyFile, "IOP_ADMIN_KEY")
	if err != nil {
		return nil, err
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	return request, nil
}

func (c *ctl) nodesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "Show every node: whether it is connected, its adapters, what runs there",
		Long: `Show every configured node: its state, the generation of its connection, and for each of its adapters what runs there,
what the provider is, and how many models it has.`,
		Example: `  iop-edge ctl nodes
  iop-edge ctl nodes -o json --admin https://edge.example:8081 --key-file admin.key`,
		Args: program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.show(cmd, http.MethodGet, "/admin/v1/nodes", nil, nodesTable)
		},
	}
}

func (c *ctl) runsCommand() *cobra.Command {
	limit := 20
	cmd := &cobra.Command{
		Use:   "runs [RUN]",
		Short: "Show runs and tunnels, the newest first, or all about one",
		Long: `Show the runs and tunnels that are live and those that ended lately, the newest first; or, with a RUN, all that the
Edge knows of that one. What went in and what came out isn't kept.`,
		Example: `  iop-edge ctl runs
  iop-edge ctl runs --limit 0 -o json
  iop-edge ctl runs run-NRV7TLWJYBZQ3GLZ4V6YTKTGQE`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return program.Usage(cmd, "unexpected argument %q", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return c.show(cmd, http.MethodGet, "/admin/v1/runs/"+url.PathEscape(args[0]), nil, runTable)
			}
			return c.show(cmd, http.MethodGet, "/admin/v1/runs", nil, func(w io.Writer, answer []byte) error {
				return runsTable(w, answer, limit)
			})
		},
	}
	cmd.Flags().IntVar(&limit, "limit", limit, "how many lines of the table; 0 = all")
	return cmd
}

func (c *ctl) queueCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "queue",
		Short: "Show who waits, and the places",
		Long: `Show how many requests wait for each set of candidates, and every place: how many runs hold it, how many there may be,
and how many of those held wait for their node to confirm their end.`,
		Example: `  iop-edge ctl queue`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.show(cmd, http.MethodGet, "/admin/v1/queue", nil, queueTable)
		},
	}
}

func (c *ctl) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "cancel RUN",
		Short:   "Cancel a run or tunnel",
		Long:    `Cancel a run or tunnel, whoever's it is. Its caller is told, and its node stops it.`,
		Example: `  iop-edge ctl cancel run-NRV7TLWJYBZQ3GLZ4V6YTKTGQE`,
		Args:    program.Args("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.show(cmd, http.MethodPost, "/admin/v1/runs/"+url.PathEscape(args[0])+"/cancel", nil, cancelTable)
		},
	}
}

func (c *ctl) commandCommand() *cobra.Command {
	var adapter, session string
	cmd := &cobra.Command{
		Use:   "command NODE TYPE [METHOD PATH [BODY]]",
		Short: "Ask a node what it has, how its link is, or one of its Ollamas something",
		Long: `Ask a node. TYPE is one of
  CAPABILITIES      what its adapters are and have; providers are asked anew, for 3 s at most
  TRANSPORT_STATUS  how its link is, as the node sees it
  OLLAMA_API        one request to an adapter's Ollama: GET /api/version, /api/tags, /api/ps, or POST /api/show with a
                    BODY of JSON. Nothing else is carried.
A command takes no place, so that a node at its capacity answers, too.`,
		Example: `  iop-edge ctl command gpu-1 CAPABILITIES
  iop-edge ctl command gpu-1 TRANSPORT_STATUS
  iop-edge ctl command gpu-1 OLLAMA_API GET /api/ps --adapter ollama
  iop-edge ctl command gpu-1 OLLAMA_API POST /api/show '{"model":"qwen3:8b"}' --adapter ollama`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch n := len(args); {
			case n < 2:
				return program.Args("NODE", "TYPE")(cmd, args)
			case n == 3:
				return program.Usage(cmd, "PATH is missing")
			case n > 5:
				return program.Usage(cmd, "unexpected argument %q", args[5])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ask := map[string]any{"type": strings.ToUpper(strings.ReplaceAll(args[1], "-", "_"))}
			for i, name := range []string{"method", "path"} {
				if len(args) > 2+i {
					ask[name] = args[2+i]
				}
			}
			if len(args) > 4 {
				if !json.Valid([]byte(args[4])) {
					return program.Usage(cmd, "BODY must be JSON")
				}
				ask["body"] = json.RawMessage(args[4])
			}
			for name, value := range map[string]string{"adapter": adapter, "session_id": session} {
				if value != "" {
					ask[name] = value
				}
			}
			return c.show(cmd, http.MethodPost, "/admin/v1/nodes/"+url.PathEscape(args[0])+"/commands", ask, commandTable)
		},
	}
	cmd.Flags().StringVar(&adapter, "adapter", "", "adapter that is meant; OLLAMA_API needs it")
	cmd.Flags().StringVar(&session, "session", "", "session id, copied through")
	return cmd
}
