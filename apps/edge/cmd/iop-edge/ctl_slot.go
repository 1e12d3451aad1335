package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/apps/edge"
	"iop/apps/edge/internal/admin"
	"iop/packages/go/config"
	"iop/packages/go/program"
)

func (c *ctl) slotCommand() *cobra.Command {
	return program.Group("slot", "See the providers' keys, and stop them", c.slotListCommand(),
		c.slotChange("refresh", "Read a slot's source now", `Read the source of a slot now, and not only at its next refresh. A new key is in force for the next request, and a slot whose
key was revoked is active again by it. What can't be read changes nothing, and is said.`),
		c.slotChange("disable", "Lend a slot's key to nobody until it is enabled", `Lend the key of a slot to nobody until it is enabled: requests that need it are refused from the next one on, and nodes are
told. It holds when the Edge restarts. What has the key on the wire already goes on; its runs are shown.`),
		c.slotChange("enable", "Lend the key of a disabled slot again", `Lend the key of a disabled slot again. A key that was revoked stays revoked: put a new one into the source.`),
		c.slotRevokeCommand())
}

func (c *ctl) slotListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the slots: their state, where the key is from, who may be lent it",
		Long: `Show the slots: their state, the number of their key and state (which grows with each change), what the source is, how long the
key is and a fingerprint that tells it from others and nothing of it, where it may go, which nodes may be lent it, and
which routes use it. The key itself is never shown.`,
		Example: `  iop-edge ctl slot list`,
		Args:    program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.show(cmd, http.MethodGet, "/admin/v1/slots", nil, slotsTable)
		},
	}
}

// slotChange is a command that takes a slot and nothing else.
func (c *ctl) slotChange(name, short, long string) *cobra.Command {
	return &cobra.Command{
		Use:     name + " SLOT",
		Short:   short,
		Long:    long,
		Example: `  iop-edge ctl slot ` + name + ` openai-main`,
		Args:    program.Args("SLOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.show(cmd, http.MethodPost, slotPath(args[0], name), nil, slotChangeTable)
		},
	}
}

func (c *ctl) slotRevokeCommand() *cobra.Command {
	var cancel bool
	cmd := &cobra.Command{
		Use:   "revoke SLOT",
		Short: "Make the key of a slot worthless for good",
		Long: `Make the key that a slot has worthless for good: no request is given it any more, nodes are told, and it holds when the Edge
restarts. The slot is active again when its source has another key. Runs that have the key on the wire go on and are
shown; with --cancel-running they are cancelled.

The provider has seen the key: revoke it there, too.`,
		Example: `  iop-edge ctl slot revoke openai-main
  iop-edge ctl slot revoke openai-main --cancel-running`,
		Args: program.Args("SLOT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.show(cmd, http.MethodPost, slotPath(args[0], "revoke"), map[string]bool{"cancel_running": cancel}, slotChangeTable)
		},
	}
	cmd.Flags().BoolVar(&cancel, "cancel-running", false, "cancel the runs that have the key on the wire")
	return cmd
}

func slotPath(id, what string) string { return "/admin/v1/slots/" + url.PathEscape(id) + "/" + what }

func slotsTable(w io.Writer, answer []byte) error {
	var a struct{ Slots []admin.SlotView }
	if err := decode(answer, &a); err != nil {
		return err
	}
	t := newTable(w, "SLOT", "STATE", "REVISION", "SINCE", "SOURCE", "READ", "KEY", "ORIGIN", "HEADER", "NODES", "ROUTES", "NOTE")
	for _, s := range a.Slots {
		t.line(s.ID, s.State, strconv.FormatUint(s.Revision, 10), agoOr(s.Since), s.Source, agoOr(s.LastRefresh), keyText(s.Length, s.Fingerprint),
			s.Origin, s.Header, strings.Join(s.Nodes, ", "), strings.Join(s.Routes, ", "), s.Reason)
	}
	return t.w.Flush()
}

// checkSlots reads the sources of the slots and shows what was found.
func checkSlots(w io.Writer, cfg *config.Edge) error {
	slots, err := edge.CheckSlots(cfg)
	if len(slots) > 0 {
		t := newTable(w, "SLOT", "SOURCE", "KEY")
		for _, s := range slots {
			t.line(s.ID, s.Source, keyText(s.Length, s.Fingerprint))
		}
		err = errors.Join(t.w.Flush(), err)
	}
	return err
}

func agoOr(t *time.Time) string {
	if t == nil {
		return ""
	}
	return ago(*t)
}

// keyText is what is said of a key: its fingerprint, which an edge that was never started can't make, and its length.
func keyText(length int, fingerprint string) string {
	switch {
	case length == 0:
		return ""
	case fingerprint == "":
		return fmt.Sprintf("%d bytes", length)
	}
	return fmt.Sprintf("%s, %d bytes", fingerprint, length)
}

func slotChangeTable(w io.Writer, answer []byte) error {
	var a admin.SlotChangeView
	if err := decode(answer, &a); err != nil {
		return err
	}
	fmt.Fprintf(w, "slot %s: %s, revision %d\n", plain(a.Slot), plain(a.State), a.Revision)
	if len(a.Running) > 0 {
		fmt.Fprintf(w, "%s with the key on the wire: %s\n", program.Count(len(a.Running), "run"), plain(strings.Join(a.Running, ", ")))
	}
	if len(a.Cancelled) > 0 {
		fmt.Fprintf(w, "cancelled: %s\n", plain(strings.Join(a.Cancelled, ", ")))
	}
	if len(a.Unanswered) > 0 {
		fmt.Fprintf(w, "no answer yet from: %s; what they were lent and didn't use ends by itself\n", plain(strings.Join(a.Unanswered, ", ")))
	}
	return nil
}
