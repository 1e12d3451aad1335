package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"iop/apps/node"
	"iop/packages/go/config"
	"iop/packages/go/program"
)

const (
	defaultRuns = 20
	maxRuns     = 10_000
)

func runsCommand() *cobra.Command {
	var file string
	var query node.RunsQuery
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "runs -c FILE",
		Short: "List what this node executed",
		Long: `List what this node executed, the latest first, from its journal in data_dir. The node may be running meanwhile; the
journal is only read. It holds no prompts and no answers.

An execution that was running when the node died is "interrupted". A background run whose end its Edge hasn't
acknowledged yet is marked "unreported".`,
		Example: `  iop-node runs -c configs/node.yaml
  iop-node runs -c configs/node.yaml --status error --limit 100
  iop-node runs -c configs/node.yaml --json`,
		Args: program.Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case query.Limit < 1 || query.Limit > maxRuns:
				return program.Usage(cmd, "--limit must be 1 to %d", maxRuns)
			case query.Status != "" && !slices.Contains(node.RunStatuses(), query.Status):
				return program.Usage(cmd, "unknown status %q; there are %s", query.Status, strings.Join(node.RunStatuses(), ", "))
			}
			cfg, err := config.LoadNode(file)
			if err != nil {
				return err
			}
			runs, err := node.Runs(cmd.Context(), cfg, query)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), runs)
			}
			return printTable(cmd.OutOrStdout(), runs, time.Now())
		},
	}
	program.ConfigFlag(cmd, &file)
	cmd.Flags().IntVar(&query.Limit, "limit", defaultRuns, "how many to list at most")
	cmd.Flags().StringVar(&query.Status, "status", "", "only those with this `STATUS`: "+strings.Join(node.RunStatuses(), ", "))
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON, one object with a list")
	return cmd
}

func printJSON(w io.Writer, runs []node.Execution) error {
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(map[string]any{"runs": runs})
}

// printTable writes a line for each execution.
func printTable(w io.Writer, runs []node.Execution, now time.Time) error {
	if len(runs) == 0 {
		_, err := fmt.Fprintln(w, "nothing was executed")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CREATED\tRUN\tKIND\tADAPTER\tTARGET\tSTATUS\tCODE\tTIME\tTOKENS IN/OUT\tBYTES IN/OUT\tEDGE")
	for i := range runs {
		r := &runs[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s/%s\t%d/%d\t%s\n",
			r.Created.Local().Format(time.DateTime), shown(r.RunID), kindOf(r), shown(r.Adapter), shown(r.Target), statusOf(r),
			shown(r.Code), took(r, now), count(r.Input), count(r.Output), r.BytesIn, r.BytesOut, shown(r.Edge))
	}
	return table.Flush()
}

func kindOf(r *node.Execution) string {
	if r.Background {
		return r.Kind + " (bg)"
	}
	return r.Kind
}

func statusOf(r *node.Execution) string {
	if r.Reported != nil && !*r.Reported && r.Ended != nil {
		return r.Status + ", unreported"
	}
	return r.Status
}

// took is how long an execution lasted, or lasts.
func took(r *node.Execution, now time.Time) string {
	end := now
	if r.Ended != nil {
		end = *r.Ended
	}
	return end.Sub(r.Created).Round(time.Millisecond).String()
}

// count is a number of tokens; an unknown one isn't 0.
func count(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

// shown keeps what callers named from doing anything to a terminal.
func shown(s string) string {
	if s == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
