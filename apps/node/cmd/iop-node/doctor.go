package main

import (
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"iop/apps/node/internal/diagnose"
	"iop/packages/go/doctor"
	"iop/packages/go/program"
)

func doctorCommand() *cobra.Command {
	var file, provider, kind string
	var targets []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor -c FILE",
		Short: "Say what is wrong between this node's file and its providers, and what to do",
		Long: `Look at everything between this node's configuration and its providers, in the order in which it is needed, and say of
each what is wrong and what to do: the file, the certificates, the node that runs here (if admin.listen names a port), the
way to each Edge, whether it would let this node in, its clock, each provider that it names with its version and models,
the data directory, the journal, open files, memory. Run it as the program's user, before the first start or beside a
running node: nothing is changed and nothing registered, no model runs, and no secret is shown.

Each line is ok, warning, FAIL, or skipped: what couldn't be looked at. Every check has its own limit. docs/doctor.md
has them all.

Exit code: 0 when nothing is wrong, 1 with warnings, 2 when something fails, or when it was called wrongly.`,
		Example: `  iop-node doctor -c configs/node.yaml
  iop-node doctor -c configs/node.yaml --json
  iop-node doctor --provider http://127.0.0.1:11434 --kind ollama --target qwen3:8b`,
		Args: program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := diagnose.Options{File: file, Version: program.Version()}
			switch {
			case provider == "" && (kind != "" || len(targets) > 0):
				return program.Usage(cmd, "--kind and --target are about a --provider, which is missing")
			case provider != "" && !slices.Contains(diagnose.Kinds(), kind):
				return program.Usage(cmd, "--provider needs its --kind: %s", strings.Join(diagnose.Kinds(), ", "))
			case provider == "" && file == "":
				return program.Usage(cmd, "give the configuration file with -c FILE")
			case provider != "":
				opts.Provider = &diagnose.Provider{Name: provider, Kind: kind, BaseURL: provider, Targets: targets}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			level, err := doctor.Examine(ctx, cmd.OutOrStdout(), "iop-node", program.Version(), diagnose.Checks(opts), asJSON)
			if err != nil {
				return err
			}
			return program.ExitWith(level.ExitCode())
		},
	}
	program.ConfigFlag(cmd, &file)
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON, one object with a list of findings")
	cmd.Flags().StringVar(&provider, "provider", "", "look at the provider at this `URL`, too; needs no file")
	cmd.Flags().StringVar(&kind, "kind", "", "its `KIND`: "+strings.Join(diagnose.Kinds(), ", "))
	cmd.Flags().StringArrayVar(&targets, "target", nil, "a `MODEL` that it must have; may be given more than once")
	return cmd
}
