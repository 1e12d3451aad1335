package main

import (
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"iop/apps/edge/internal/admin"
	"iop/packages/go/program"
)

func (c *ctl) leaseKeyCommand() *cobra.Command {
	return program.Group("lease-key", "See and replace the keys that leases are signed with",
		&cobra.Command{
			Use:   "list",
			Short: "Show the signing keys by their ids",
			Long: `Show the keys that leases are signed with, by their ids, and until when what a replaced one has signed is accepted. The first is in
use. The keys themselves are never shown.`,
			Example: `  iop-edge ctl lease-key list`,
			Args:    program.Args(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.show(cmd, http.MethodGet, "/admin/v1/lease-keys", nil, leaseKeysTable)
			},
		},
		&cobra.Command{
			Use:   "rotate",
			Short: "Put a new signing key in the place of the one in use",
			Long: `Put a new key in the place of the one that leases are signed with. Nodes are told first, at most half a minute; then it is used,
and the old one is accepted for two more minutes. No request fails for it.`,
			Example: `  iop-edge ctl lease-key rotate`,
			Args:    program.Args(),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return c.show(cmd, http.MethodPost, "/admin/v1/lease-keys/rotate", nil, leaseKeysTable)
			},
		},
		&cobra.Command{
			Use:   "drop KEY",
			Short: "Withdraw a signing key at once, in an emergency",
			Long: `Withdraw a signing key that somebody else may have: what it signed is refused as soon as the nodes are told. If it is the one in use,
a new one takes its place at once; leases that are on their way then are refused.`,
			Example: `  iop-edge ctl lease-key drop 6s2vGfQ8mB1c0x4pWkXo2g`,
			Args:    program.Args("KEY"),
			RunE: func(cmd *cobra.Command, args []string) error {
				return c.show(cmd, http.MethodPost, "/admin/v1/lease-keys/"+url.PathEscape(args[0])+"/drop", nil, leaseKeysTable)
			},
		})
}

func leaseKeysTable(w io.Writer, answer []byte) error {
	var a struct {
		LeaseKeys []admin.LeaseKeyView `json:"lease_keys"`
	}
	if err := decode(answer, &a); err != nil {
		return err
	}
	t := newTable(w, "KEY", "ACCEPTED")
	for i, k := range a.LeaseKeys {
		switch {
		case k.NotAfter != nil:
			t.line(k.ID, "until "+k.NotAfter.UTC().Format(time.RFC3339))
		case i == 0:
			t.line(k.ID, "in use")
		default:
			t.line(k.ID, "in use next")
		}
	}
	return t.w.Flush()
}
