package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"iop/apps/edge/internal/ca"
	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/program"
)

// issue is one secret to make: for whom, and where it and its hash go.
type issue struct {
	what, owner          string // "token" for a node, "key" for a principal
	secretFile, hashFile string
	keep                 bool
	make                 func() (config.Secret, string)
	secretHelp, hashHelp string
}

func tokenNewCommand() *cobra.Command {
	var is issue
	var caPath string
	cmd := &cobra.Command{
		Use:   "new NODE",
		Short: "Make a token for a node and show it once, with the hash for the Edge's file",
		Long: `Make a token for a node and show it once, with the hash to put into the Edge's configuration. Only the hash is kept
there; a lost token is replaced by a new one. Two hashes at one node let a token be replaced without a gap.`,
		Example: `  iop-edge token new gpu-1
  iop-edge token new local --token-file node.token --hash-file state/local.token.sha256`,
		Args: program.Args("NODE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			is.what, is.owner, is.make = "token", args[0], config.NewToken
			if caPath != "" {
				pin, err := pinned(caPath)
				if err != nil {
					return err
				}
				is.make = func() (config.Secret, string) { return config.NewPinnedToken(pin) }
			}
			is.secretHelp = "Give it to the node: in a file that only its user can read (chmod 600), named in the node's\n" +
				"configuration as token: file:PATH"
			is.hashHelp = "  nodes:\n    - id: %s\n      token_hashes:\n        - sha256: %s\n"
			return is.run(cmd)
		},
	}
	cmd.Flags().StringVar(&is.secretFile, "token-file", "", "write the token to a new `FILE` instead of showing it")
	cmd.Flags().StringVar(&caPath, "ca", "", "have the join string name the CA in `FILE`, so that the node refuses to start with another one")
	is.flags(cmd)
	return cmd
}

// pinned returns the fingerprint of the one CA in a file.
func pinned(path string) (sum [sha256.Size]byte, err error) {
	certs, err := identity.ReadCertificates(path)
	switch {
	case err != nil:
		return sum, err
	case len(certs) != 1 || !certs[0].IsCA:
		return sum, fmt.Errorf("%s must hold the certificate of one CA, and nothing else", path)
	}
	return ca.Fingerprint(certs[0]), nil
}

func keyNewCommand() *cobra.Command {
	var is issue
	cmd := &cobra.Command{
		Use:   "new PRINCIPAL",
		Short: "Make an API key for a caller and show it once, with the hash for the Edge's file",
		Long: `Make an API key for a caller and show it once, with the hash to put into the Edge's configuration. Only the hash is
kept there; a lost key is replaced by a new one. The same keys open the admin listener, as admin_key_hashes.`,
		Example: `  iop-edge key new alice
  iop-edge key new alice --key-file alice.key --hash-file alice.key.sha256`,
		Args: program.Args("PRINCIPAL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			is.what, is.owner, is.make = "key", args[0], config.NewKey
			is.secretHelp = "Give it to the caller, as the API key of its client (OPENAI_API_KEY)"
			is.hashHelp = "  principals:\n    - id: %s\n      key_hashes: [%s]\n"
			return is.run(cmd)
		},
	}
	cmd.Flags().StringVar(&is.secretFile, "key-file", "", "write the key to a new `FILE` instead of showing it")
	is.flags(cmd)
	return cmd
}

func (is *issue) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&is.hashFile, "hash-file", "", "write the hash to a `FILE` that the Edge's configuration can name")
	cmd.Flags().BoolVar(&is.keep, "keep", false, "keep a secret that its file holds already, and only write its hash")
}

func (is *issue) run(cmd *cobra.Command) error {
	if !config.ValidID(is.owner) {
		return program.Usage(cmd, "the name must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	if is.keep && is.secretFile == "" {
		return program.Usage(cmd, "--keep needs the --%s-file to keep", is.what)
	}
	secret, hash := is.make()
	created := false
	if is.secretFile != "" {
		switch err := program.CreateSecretFile(is.secretFile, secret); {
		case err == nil:
			created = true
		case !errors.Is(err, fs.ErrExist):
			return err
		case !is.keep:
			return fmt.Errorf("%s exists already; keep its %s with --keep, or choose another file", is.secretFile, is.what)
		default:
			if hash, err = hashOfFile(is.secretFile); err != nil {
				return err
			}
		}
	}
	if is.hashFile != "" {
		if err := program.WriteFile(is.hashFile, hash+"\n", 0o644); err != nil {
			if created { // a secret whose hash nobody has is of no use, and would be in the way next time
				err = errors.Join(err, os.Remove(is.secretFile))
			}
			return err
		}
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), is.message(secret, hash, created))
	return err
}

// message tells where secret and hash are, and shows what isn't in a file.
func (is *issue) message(secret config.Secret, hash string, created bool) string {
	var s strings.Builder
	switch {
	case created:
		fmt.Fprintf(&s, "The %s of %s is in %s, which only this user can read.\n", is.what, is.owner, is.secretFile)
	case is.secretFile != "":
		fmt.Fprintf(&s, "The %s of %s in %s is kept.\n", is.what, is.owner, is.secretFile)
	default:
		fmt.Fprintf(&s, "The %s of %s, shown this once:\n\n  %s\n\n%s.\n", is.what, is.owner, secret.Reveal(), is.secretHelp)
	}
	if is.hashFile != "" {
		fmt.Fprintf(&s, "Its hash is in %s.\n", is.hashFile)
		return s.String()
	}
	fmt.Fprintf(&s, "Its hash goes into the Edge's configuration:\n\n"+is.hashHelp, is.owner, hash)
	return s.String()
}

// hashOfFile returns the hash of the secret in a file. API keys have the form of tokens.
func hashOfFile(name string) (string, error) {
	secret, err := config.ReadTokenFile(name)
	if err != nil {
		return "", fmt.Errorf("%s %w", name, err)
	}
	sum := config.HashSecret(secret.Reveal())
	return hex.EncodeToString(sum[:]), nil
}
