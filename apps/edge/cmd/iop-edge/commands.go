package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"iop/apps/edge"
	"iop/apps/edge/internal/diagnose"
	"iop/packages/go/config"
	"iop/packages/go/logging"
	"iop/packages/go/program"
	"iop/packages/go/tracing"
)

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "iop-edge",
		Short: "The Edge of IOP: one address for AI providers on machines that nothing can dial",
		Long: `iop-edge is the side of IOP with an address. Nodes dial out to it, clients of the OpenAI, Anthropic and
Ollama APIs talk to it, and it carries each request to a node and the answer back.

A first try on one machine:
  iop-edge token new local --token-file configs/node.token --hash-file configs/state/local.token.sha256
  iop-edge serve -c configs/edge.yaml
  iop-node serve -c configs/node.yaml
  curl http://127.0.0.1:8080/v1/models

Every key of the configuration file is explained in configs/edge.yaml.`,
	}
	root.AddCommand(
		serveCommand(),
		runCommand(),
		ctlCommand(),
		checkCommand(),
		doctorCommand(),
		program.Group("token", "Make the tokens that nodes register with", tokenNewCommand()),
		program.Group("key", "Make the API keys of callers", keyNewCommand()),
		caCommand(),
		setupCommand(),
		program.HealthCommand("iop-edge", "http://127.0.0.1:8081", "it takes callers"),
		program.VersionCommand(),
		program.DescribeCommand(),
	)
	return root
}

func serveCommand() *cobra.Command {
	var file string
	var anyMemory bool
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the Edge",
		Long: `Run the Edge until SIGTERM or SIGINT. The first signal drains: new requests are refused, running ones may finish for
timers.drain. A second signal ends at once. The log goes to standard error.

Under systemd it says when it is ready (Type=notify), and takes its listening sockets from a socket unit with
FileDescriptorName= http, nodes or admin: then nobody is refused while it restarts.

Exit code: 0 after a drain, 1 if it couldn't start, broke, or was ended at once.`,
		Example: `  iop-edge serve -c configs/edge.yaml
  GOMEMLIMIT=2GiB iop-edge serve -c /etc/iop/edge.yaml`,
		Args: program.Args(),
		RunE: func(*cobra.Command, []string) error { return serve(file, anyMemory) },
	}
	program.ConfigFlag(cmd, &file)
	cmd.Flags().BoolVar(&anyMemory, "ignore-memory-bound", false, "start although the limits permit more than half of GOMEMLIMIT")
	return cmd
}

func serve(file string, anyMemory bool) error {
	cfg, err := config.LoadEdge(file)
	if err != nil {
		return err
	}
	if text := aboveMemoryLimit(cfg, debug.SetMemoryLimit(-1)); text != "" && !anyMemory {
		return fmt.Errorf("%s; lower them, raise GOMEMLIMIT, or start with --ignore-memory-bound", text)
	}
	traces, err := tracing.FromEnv(os.Getenv, "iop-edge", program.Version())
	if err != nil {
		return err
	}
	log, out, err := logging.New(logging.Config{Level: cfg.Log.Level, Format: cfg.Log.Format})
	if err != nil {
		return err
	}
	defer out.Close()
	sockets, err := program.TakeSockets("http", "nodes", "admin")
	if err != nil {
		return err
	}
	defer sockets.Close()
	program.RaiseFileLimit(log, diagnose.FilesNeeded(cfg))
	program.WarnMemory(log, cfg.MemoryBound().Total(), "lower limits.body_memory, limits.connections, limits.slow_answers or max_concurrency (iop-edge check lists them), or raise it (systemd: MemoryMax=)")
	if cfg.InsecurePlaintext {
		log.Warn().Str("listen", cfg.Listen.Nodes).Msg("insecure_plaintext: tokens and prompts cross the network to nodes unencrypted")
	}
	if cfg.Listen.HTTPTLS == nil && !config.Loopback(cfg.Listen.HTTP) {
		log.Warn().Str("listen", cfg.Listen.HTTP).Msg("plain HTTP outside loopback: put a proxy with TLS in front, or set listen.http_tls")
	}
	if traces != nil {
		log.Info().Str("endpoint", traces.Endpoint).Str("service", traces.Service).Msg("traces are exported")
	}
	return program.Serve(log, func(ctx context.Context, signals program.Signals) error {
		return edge.Run(ctx, cfg, edge.Options{
			Log: log, Version: program.Version(), Tracing: traces, Kill: signals.Kill, Reload: signals.Reload,
			Listen: sockets.Listen, Outlives: sockets.Has,
			OnListen: func(at edge.Addrs) { program.Ready(log, "callers "+at.HTTP.String()+", nodes "+at.Nodes.String()) },
		})
	})
}

func checkCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration file without starting",
		Long: `Check a configuration file without starting: everything that is wrong is printed at once, with file, line and path, and
the exit code is 1. A file that is right is summed up, with the memory that its limits permit. The source of each slot is
read: its kind, the key's length and a fingerprint are shown, and never the key.`,
		Example: `  iop-edge check -c configs/edge.yaml`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadEdge(file)
			if err != nil {
				return err
			}
			text := fmt.Sprintf("%s: ok: %s\n%s\n", file, summary(cfg), cfg.MemoryBound())
			if warning := aboveMemoryLimit(cfg, debug.SetMemoryLimit(-1)); warning != "" {
				text += "warning: " + warning + "; serve refuses to start without --ignore-memory-bound\n"
			}
			if _, err = fmt.Fprint(cmd.OutOrStdout(), text); err != nil {
				return err
			}
			return checkSlots(cmd.OutOrStdout(), cfg)
		},
	}
	program.ConfigFlag(cmd, &file)
	return cmd
}

func summary(cfg *config.Edge) string {
	adapters := 0
	for i := range cfg.Nodes {
		adapters += len(cfg.Nodes[i].Adapters)
	}
	parts := []string{
		program.Count(len(cfg.Nodes), "node"), program.Count(adapters, "adapter"),
		program.Count(len(cfg.Routes), "route"), program.Count(len(cfg.Principals), "principal"),
	}
	if len(cfg.Slots) > 0 {
		parts = append(parts, program.Count(len(cfg.Slots), "slot"))
	}
	if cfg.Managed() {
		parts = append(parts, "mode managed, trust domain "+cfg.TLS.TrustDomain)
	}
	if len(cfg.Principals) == 0 {
		parts = append(parts, "callers need no key (loopback only)")
	}
	return strings.Join(parts, ", ")
}

// aboveMemoryLimit says so when the limits permit more than half of GOMEMLIMIT; the other half is the program itself and
// what isn't collected yet.
func aboveMemoryLimit(cfg *config.Edge, limit int64) string {
	total := cfg.MemoryBound().Total()
	if limit == math.MaxInt64 || total <= limit/2 {
		return ""
	}
	const mib = 1 << 20
	return fmt.Sprintf("the limits permit %d MiB, more than half of GOMEMLIMIT (%d MiB)", (total+mib-1)/mib, limit/mib)
}
