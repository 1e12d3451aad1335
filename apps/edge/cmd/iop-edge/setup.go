package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/apps/edge/internal/setup"
	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// setupTTL is how long the certificates of a first setup are valid: nobody renews them at first.
const setupTTL = 365 * 24 * time.Hour

func setupCommand() *cobra.Command {
	o := setup.Options{}
	var noConfigs, showKey bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Make all files of a first site in mode managed: CA, certificates, token, key, configurations",
		Long: `Make all files of a first site in mode managed, in one DIRECTORY:

  ca/        the CA; keep it where no Edge runs
  edge/      for the Edge: certificate, key, hashes, edge.yaml
  NODE/      for the node: certificate, key, token, node.yaml
  callers/   the caller's API key

Running it again keeps what is there, makes what is missing, and renews certificates in the second half of their life:
running programs take them without a restart.`,
		Example: `  iop-edge setup --dir site --node gpu-1 --edge edge.example.com:7443
  iop-edge setup --dir site --show-key`,
		Args: program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkSetup(cmd, o); err != nil {
				return err
			}
			if showKey {
				return printKey(cmd.OutOrStdout(), setup.KeyFile(o.Dir, o.Caller))
			}
			o.Configs = !noConfigs
			made, err := setup.Make(o, time.Now())
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), setupDone(o, made))
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Dir, "dir", "site", "the `DIRECTORY` for the files; made when missing")
	flags.StringVar(&o.TrustDomain, "trust-domain", "iop.internal", "the SPIFFE trust `DOMAIN` of all certificates")
	flags.StringVar(&o.Node, "node", "local", "the node's `ID`")
	flags.StringVar(&o.Caller, "caller", "me", "the caller's `ID`")
	flags.StringVar(&o.Edge, "edge", "127.0.0.1:7443", "where the node dials, `HOST:PORT`")
	flags.StringVar(&o.Nodes, "listen-nodes", "0.0.0.0:7443", "where the Edge listens for nodes, `HOST:PORT`")
	flags.StringVar(&o.HTTP, "listen-http", "127.0.0.1:8080", "where the Edge listens for callers, `HOST:PORT`")
	flags.DurationVar(&o.TTL, "ttl", setupTTL, "how long certificates are valid")
	flags.BoolVar(&noConfigs, "no-configs", false, "make no edge.yaml and node.yaml: they are elsewhere")
	flags.BoolVar(&showKey, "show-key", false, "print the caller's API key and do nothing else")
	_ = cmd.MarkFlagDirname("dir")
	return cmd
}

func checkSetup(cmd *cobra.Command, o setup.Options) error {
	for flag, id := range map[string]string{"node": o.Node, "caller": o.Caller} {
		if !config.ValidID(id) || id == "." || id == ".." || id == "ca" || id == "edge" || id == "callers" {
			return program.Usage(cmd, "--%s must be a name: 1 to 64 characters of A-Z a-z 0-9 . _ - that isn't ca, edge or callers", flag)
		}
	}
	if _, err := identity.ParseID(string(identity.NodeID("x", o.Node))); err != nil {
		return program.Usage(cmd, "--node %q can't be part of an identity", o.Node)
	}
	return positive(cmd, o.TTL)
}

func printKey(out io.Writer, file string) error {
	key, err := config.ReadTokenFile(file)
	if err != nil {
		return fmt.Errorf("%s %w", file, err)
	}
	_, err = fmt.Fprintln(out, key.Reveal())
	return err
}

// setupDone says what was made and what comes next.
func setupDone(o setup.Options, made []string) string {
	if len(made) == 0 {
		return fmt.Sprintf("%s is complete, and its certificates are good for a while: nothing to do.\n", o.Dir)
	}
	var s strings.Builder
	for _, path := range made {
		fmt.Fprintf(&s, "made %s\n", path)
	}
	if o.Configs {
		fmt.Fprintf(&s, `
Bring %s to the Edge and %s to the node, then:

  iop-edge serve -c edge.yaml       at the Edge, in its directory
  iop-node serve -c node.yaml       at the node, in its directory

The caller's API key is in %s.
`, filepath.Join(o.Dir, "edge"), filepath.Join(o.Dir, o.Node), setup.KeyFile(o.Dir, o.Caller))
	}
	return s.String()
}
