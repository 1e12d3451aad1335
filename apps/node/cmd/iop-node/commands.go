package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"iop/apps/node"
	"iop/packages/go/config"
	"iop/packages/go/logging"
	"iop/packages/go/program"
	"iop/packages/go/tracing"
)

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "iop-node",
		Short: "A node of IOP: makes the AI providers beside it usable through an Edge",
		Long: `iop-node runs beside AI providers (Ollama, llama.cpp, vLLM, LM Studio, …) on a machine that nothing can dial. It dials
out to an Edge over one TCP connection and serves what the Edge sends. Which providers it serves stands in the Edge's file.

  iop-edge token new NAME                  on the Edge: makes the token
  iop-node doctor -c configs/node.yaml     says what is wrong, before the first start and later
  iop-node serve -c configs/node.yaml

Every key of the configuration file is explained in configs/node.yaml.`,
	}
	root.AddCommand(serveCommand(), checkCommand(), doctorCommand(), runsCommand(),
		program.HealthCommand("iop-node", "http://127.0.0.1:8082", "an Edge sends it work"),
		program.VersionCommand(), program.DescribeCommand())
	return root
}

func serveCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the node",
		Long: `Run the node until SIGTERM or SIGINT. The first signal drains: no new work is taken, what runs may finish for
timers.drain. A second signal ends at once. The log goes to standard error.

Exit code: 0 after a drain, 1 if it couldn't start, broke, or was ended at once.`,
		Example: `  iop-node serve -c configs/node.yaml
  IOP_TOKEN=… iop-node serve -c node.yaml        with token: env:IOP_TOKEN in the file`,
		Args: program.Args(),
		RunE: func(*cobra.Command, []string) error { return serve(file) },
	}
	program.ConfigFlag(cmd, &file)
	return cmd
}

// leastMemory is what a node needs with a few executions; how many its Edge sends isn't known at the start.
const leastMemory = 128 << 20

func serve(file string) error {
	cfg, err := config.LoadNode(file)
	if err != nil {
		return err
	}
	traces, err := tracing.FromEnv(os.Getenv, "iop-node", program.Version())
	if err != nil {
		return err
	}
	log, out, err := logging.New(logging.Config{Level: cfg.Log.Level, Format: cfg.Log.Format})
	if err != nil {
		return err
	}
	defer out.Close()
	const files = 1024 // a provider connection or two for each execution; how many the Edge sends isn't known here
	program.RaiseFileLimit(log, files)
	program.WarnMemory(log, leastMemory, "raise it (systemd: MemoryMax=)")
	for _, edge := range cfg.Edges {
		if cfg.TLS == nil && !config.Loopback(edge) {
			log.Warn().Str("edge", edge).Msg("the link isn't encrypted: token and prompts cross the network in the clear, unless a tunnel carries them; set tls, for an edge in mode managed")
		}
	}
	if traces != nil {
		log.Info().Str("endpoint", traces.Endpoint).Str("service", traces.Service).Msg("traces are exported")
	}
	if cfg.TLS != nil { // without it no edge lends this node a key
		node.Harden(log)
	}
	return program.Serve(log, func(ctx context.Context, signals program.Signals) error {
		opts := node.Options{
			Log: log, Version: program.Version(), Tracing: traces, Kill: signals.Kill,
			OnStart: func() { program.Ready(log, "dialing "+strings.Join(cfg.Edges, ", ")) },
			OnReady: func(edge string) { program.Ready(log, "ready at "+edge) },
		}
		if cfg.TLS != nil {
			opts.Reload = signals.Reload
			return node.Run(ctx, cfg, opts)
		}
		go func() { // ends with the program's draining
			for {
				select {
				case <-signals.Reload:
					log.Warn().Msg("SIGHUP ignored: what a node serves comes from its edge, which reloads, and there is no tls to read again; restart to use a changed " + cfg.Path)
				case <-ctx.Done():
					return
				}
			}
		}()
		return node.Run(ctx, cfg, opts)
	})
}

func checkCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Check a configuration file without starting",
		Long: `Check a configuration file without starting, and that the token can be read: everything that is wrong is printed at
once, with file, line and path, and the exit code is 1.`,
		Example: `  iop-node check -c configs/node.yaml`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadNode(file)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok: dials %s\n", file, strings.Join(cfg.Edges, ", "))
			return err
		},
	}
	program.ConfigFlag(cmd, &file)
	return cmd
}
