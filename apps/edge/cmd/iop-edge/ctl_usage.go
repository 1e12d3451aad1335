package main

import (
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/apps/edge/internal/admin"
	"iop/packages/go/program"
)

func (c *ctl) usageCommand() *cobra.Command {
	var from, to string
	var days int
	var by []string
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what was used: requests and tokens by principal, model, node and day",
		Long: `Show how many requests and tokens were used, by principal, model, node and day (UTC), out of the Edge's ledger. It holds counts
and nothing of what was said. ESTIMATED counts requests whose provider told no tokens: what they were charged is an
estimate.`,
		Example: `  iop-edge ctl usage                       # today, by principal and model
  iop-edge ctl usage --days 30 --by principal
  iop-edge ctl usage --from 2026-01-01 --to 2026-01-31 --by day,principal,model,node -o json`,
		Args: program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{}
			if from == "" && to == "" {
				from = time.Now().UTC().AddDate(0, 0, 1-days).Format(time.DateOnly)
			}
			for name, value := range map[string]string{"from": from, "to": to, "by": strings.Join(by, ",")} {
				if value != "" {
					q.Set(name, value)
				}
			}
			return c.show(cmd, http.MethodGet, "/admin/v1/usage?"+q.Encode(), nil, usageTable)
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "first day, as in 2026-01-31")
	f.StringVar(&to, "to", "", "last day")
	f.IntVar(&days, "days", 1, "so many days, today being the last; without --from and --to")
	f.StringSliceVar(&by, "by", []string{"principal", "model"}, "what lines are told apart by: day, principal, model, node")
	return cmd
}

func usageTable(w io.Writer, answer []byte) error {
	var a struct{ Usage []admin.UsageView }
	if err := decode(answer, &a); err != nil {
		return err
	}
	t := newTable(w, "DAY", "PRINCIPAL", "MODEL", "NODE", "REQUESTS", "FAILED", "ESTIMATED", "INPUT", "OUTPUT", "CACHED", "REASONING")
	for _, u := range a.Usage {
		cells := []string{u.Day, u.Principal, u.Model, u.Node}
		for _, n := range []int64{u.Requests, u.Failed, u.Estimated, u.InputTokens, u.OutputTokens, u.CachedTokens, u.ReasoningTokens} {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		t.line(cells...)
	}
	return t.w.Flush()
}
