package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"iop/apps/edge/internal/ca"
	"iop/packages/go/config"
	"iop/packages/go/identity"
	"iop/packages/go/program"
)

const (
	caTTL   = 10 * 365 * 24 * time.Hour
	leafTTL = 24 * time.Hour
)

func caCommand() *cobra.Command {
	cmd := program.Group("ca", "Make the certificates of mode managed, for a first setup",
		caInitCommand(), caIssueCommand(), caSignCSRCommand(), caRotateCommand(), caBundleCommand(), caInspectCommand())
	cmd.Long = `Make the certificates of mode managed, for a first setup: a CA in a directory, and certificates for Edges and nodes. It is
a tool, not a service: no Edge needs the CA's key, so keep its directory where no Edge runs. Certificates are valid for
24 hours unless --ttl says otherwise; who renews them by hand wants longer. Files from SPIRE, step-ca and cert-manager
work the same; docs/managed-mode.md says how.`
	return cmd
}

// dirFlag adds the flag that names the CA's directory.
func dirFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "dir", "ca", "the CA's `DIRECTORY`")
	_ = cmd.MarkFlagDirname("dir")
}

func caInitCommand() *cobra.Command {
	var dir, domain string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "init --trust-domain DOMAIN",
		Short:   "Make a CA",
		Long:    `Make a CA that can sign identities of one SPIFFE trust domain and nothing else. Its key is in DIRECTORY/ca.pem (mode 0600).`,
		Example: `  iop-edge ca init --trust-domain iop.example`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive(cmd, ttl); err != nil {
				return err
			}
			a, err := ca.Init(dir, domain, ttl)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "The CA of %s is in %s, valid until %s.\nEdges and nodes trust it by %s; "+
				"its SHA-256 is %x.\n", domain, filepath.Join(dir, "ca.pem"), stamp(a.Cert), filepath.Join(dir, "bundle.pem"), ca.Fingerprint(a.Cert))
			return err
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&domain, "trust-domain", "", "the SPIFFE trust `DOMAIN` of all certificates")
	cmd.Flags().DurationVar(&ttl, "ttl", caTTL, "how long the CA is valid")
	_ = cmd.MarkFlagRequired("trust-domain") // defined above
	return cmd
}

// subject says for whom a certificate is.
type subject struct {
	dir, id, spiffeID string
	ttl               time.Duration
}

func (s *subject) flags(cmd *cobra.Command) {
	dirFlag(cmd, &s.dir)
	cmd.Flags().StringVar(&s.id, "id", "", "the node's `ID` in the Edge's configuration")
	cmd.Flags().StringVar(&s.spiffeID, "spiffe-id", "", "the whole `SPIFFE-ID`, where it isn't the default of an edge or node")
	cmd.Flags().DurationVar(&s.ttl, "ttl", leafTTL, "how long the certificate is valid")
}

// of returns the CA and the identity that is asked for.
func (s *subject) of(cmd *cobra.Command, what string) (*ca.Authority, identity.ID, error) {
	if err := positive(cmd, s.ttl); err != nil {
		return nil, "", err
	}
	a, err := ca.Open(s.dir)
	if err != nil {
		return nil, "", err
	}
	switch {
	case what != "edge" && what != "node":
		return nil, "", program.Usage(cmd, "%q is neither edge nor node", what)
	case s.spiffeID != "":
		id, err := identity.ParseID(s.spiffeID)
		if err != nil {
			return nil, "", program.Usage(cmd, "--spiffe-id %v", err)
		}
		return a, id, nil
	case what == "edge" && s.id != "":
		return nil, "", program.Usage(cmd, "all Edges have one identity by default; give --spiffe-id for another")
	case what == "edge":
		return a, identity.EdgeID(a.TrustDomain()), nil
	case !config.ValidID(s.id):
		return nil, "", program.Usage(cmd, "--id must name the node: 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	id, err := identity.ParseID(string(identity.NodeID(a.TrustDomain(), s.id)))
	if err != nil {
		return nil, "", program.Usage(cmd, "--id %q can't be part of an identity; give --spiffe-id", s.id)
	}
	return a, id, nil
}

func caIssueCommand() *cobra.Command {
	var s subject
	var out string
	cmd := &cobra.Command{
		Use:   "issue edge|node --out DIRECTORY",
		Short: "Make a key and its certificate, with the CAs to trust",
		Long: `Make a key and its certificate for an Edge or a node, and write cert.pem, key.pem (mode 0600) and ca.pem into a directory,
replacing what is there: a running program takes the new files without a restart. Prefer sign-csr where the key shouldn't
travel.`,
		Example: `  iop-edge ca issue edge --out edge
  iop-edge ca issue node --id gpu-1 --out gpu-1 --ttl 720h`,
		Args: program.Args("edge or node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, id, err := s.of(cmd, args[0])
			if err != nil {
				return err
			}
			cert, err := a.Issue(s.dir, out, id, s.ttl)
			if err != nil {
				return err
			}
			return issued(cmd.OutOrStdout(), cert, id, filepath.Join(out, ca.CertFile))
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "the `DIRECTORY` for the files; made when missing")
	_ = cmd.MarkFlagRequired("out") // defined above
	return cmd
}

func caSignCSRCommand() *cobra.Command {
	var s subject
	var in, out string
	cmd := &cobra.Command{
		Use:   "sign-csr edge|node --csr FILE --out FILE",
		Short: "Make a certificate for a key that stays where it is",
		Long: `Make a certificate for the key of a certificate request. Whose certificate it is, say the flags; of the request only the
key counts. The machine that it is for also needs the CAs to trust: iop-edge ca bundle.`,
		Example: `  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout key.pem -subj / -out node.csr     on the node
  iop-edge ca sign-csr node --id gpu-1 --csr node.csr --out cert.pem`,
		Args: program.Args("edge or node"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, id, err := s.of(cmd, args[0])
			if err != nil {
				return err
			}
			request, err := readRequest(in)
			if err != nil {
				return err
			}
			text, cert, err := a.SignCSR(request, id, s.ttl)
			if err != nil {
				return fmt.Errorf("%s %w", in, err)
			}
			if err := program.WriteFile(out, text, 0o644); err != nil {
				return err
			}
			return issued(cmd.OutOrStdout(), cert, id, out)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&in, "csr", "", "the certificate request, PEM `FILE`")
	cmd.Flags().StringVar(&out, "out", "", "the `FILE` for the certificate")
	_ = cmd.MarkFlagRequired("csr") // they are defined above
	_ = cmd.MarkFlagRequired("out")
	return cmd
}

func readRequest(path string) ([]byte, error) {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > most:
		return nil, fmt.Errorf("%s is too long for a certificate request", path)
	}
	return text, nil
}

func caRotateCommand() *cobra.Command {
	var dir, stage string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "rotate --stage add|switch|retire",
		Short: "Replace the CA, in three stages and without an outage",
		Long: `Replace the CA, in three stages:

  add      makes the next CA, which is trusted beside the old one. Then bring bundle.pem to every Edge and node.
  switch   has the next CA sign. Then renew every certificate.
  retire   ends the trust in the old CA. Then bring bundle.pem to every Edge and node once more.

Running programs take new files without a restart. An Edge ends the connections of nodes whose certificate it doesn't
trust any more.`,
		Example: `  iop-edge ca rotate --stage add`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := positive(cmd, ttl); err != nil {
				return err
			}
			if err := ca.Rotate(dir, stage, ttl); err != nil {
				return err
			}
			then := map[string]string{
				ca.StageAdd:    "The next CA is trusted, too. Bring %s to every Edge and node as its ca, then: --stage switch.\n",
				ca.StageSwitch: "The next CA signs. Renew every certificate (%s is unchanged), then: --stage retire.\n",
				ca.StageRetire: "The old CA isn't trusted any more. Bring %s to every Edge and node as its ca; join strings that name the old CA need replacing.\n",
			}[stage]
			_, err := fmt.Fprintf(cmd.OutOrStdout(), then, filepath.Join(dir, "bundle.pem"))
			return err
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&stage, "stage", "", "add, switch or retire")
	cmd.Flags().DurationVar(&ttl, "ttl", caTTL, "how long the next CA is valid (add)")
	_ = cmd.MarkFlagRequired("stage") // defined above
	return cmd
}

func caBundleCommand() *cobra.Command {
	var dir, out string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Print the CAs that Edges and nodes are to trust, or write them to a file",
		Long: `Print the CAs that Edges and nodes are to trust, or write them to a file as a whole. While the CA is being replaced there
are two.`,
		Example: `  iop-edge ca bundle --out /etc/iop/ca.pem`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := ca.Bundle(dir)
			switch {
			case err != nil:
				return err
			case out != "":
				return program.WriteFile(out, text, 0o644)
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	dirFlag(cmd, &dir)
	cmd.Flags().StringVar(&out, "out", "", "write to a `FILE`, as a whole, instead")
	return cmd
}

func caInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE…",
		Short: "Show what certificates say: identity, serial number, validity, fingerprint",
		Long: `Show what the certificates in files say: the identity that configurations name (edge_spiffe_id, spiffe_id), the serial
number that revoked_serials takes, the validity, and the fingerprint. A certificate that can't be an identity is shown with
the reason.`,
		Example: `  iop-edge ca inspect edge/cert.pem ca/bundle.pem
  iop-edge ca inspect /run/spire/svid.pem`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return program.Usage(cmd, "FILE is missing")
			}
			var failed []error
			for _, file := range args {
				text, err := ca.Inspect(file, time.Now())
				if err != nil {
					failed = append(failed, err)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s:\n%s\n", file, text)
			}
			return errors.Join(failed...)
		},
	}
}

func positive(cmd *cobra.Command, ttl time.Duration) error {
	if ttl <= 0 {
		return program.Usage(cmd, "--ttl must be more than 0")
	}
	return nil
}

func issued(w io.Writer, cert *x509.Certificate, id identity.ID, file string) error {
	_, err := fmt.Fprintf(w, "The certificate of %s is in %s: serial %s, valid until %s.\n", id, file, identity.Serial(cert), stamp(cert))
	return err
}

func stamp(c *x509.Certificate) string { return c.NotAfter.UTC().Format(time.RFC3339) }
