// Manpages makes the manual pages of a program that describes its commands as JSON (iop-edge describe): one page for each
// command, as cobra makes them. It is a module of its own, so that the programs don't have its libraries.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// described and flag are what packages/go/program says of a command.
type described struct {
	Use, Short, Long, Example string
	Flags, Persistent         []flag
	Commands                  []described
}

type flag struct{ Name, Shorthand, Type, Default, Optional, Usage string }

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: iop-edge describe | manpages DIRECTORY VERSION SECONDS-SINCE-1970")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

func run(dir, version, seconds string) error {
	var d described
	if err := json.NewDecoder(os.Stdin).Decode(&d); err != nil {
		return fmt.Errorf("read the description: %w", err)
	}
	at, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("the time: %w", err)
	}
	date := time.Unix(at, 0).UTC()
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "IOP " + version, Manual: "IOP"}
	return doc.GenManTree(command(d), header, dir)
}

func command(d described) *cobra.Command {
	cmd := &cobra.Command{Use: d.Use, Short: d.Short, Long: keepTables(d.Long), Example: d.Example, DisableAutoGenTag: true, Run: func(*cobra.Command, []string) {}}
	addFlags(cmd.Flags(), d.Flags)
	addFlags(cmd.PersistentFlags(), d.Persistent)
	for _, sub := range d.Commands {
		cmd.AddCommand(command(sub))
	}
	return cmd
}

// keepTables has indented lines stay as they are: to what makes the pages, four more spaces say so.
func keepTables(text string) string { return strings.ReplaceAll("\n"+text, "\n  ", "\n      ")[1:] }

func addFlags(set *pflag.FlagSet, flags []flag) {
	for _, f := range flags {
		set.AddFlag(&pflag.Flag{Name: f.Name, Shorthand: f.Shorthand, Usage: f.Usage, DefValue: f.Default, NoOptDefVal: f.Optional, Value: value{f.Type, f.Default}})
	}
}

// value stands for a flag's value: pages show its type and default.
type value struct{ kind, text string }

func (v value) String() string   { return v.text }
func (v value) Type() string     { return v.kind }
func (v value) Set(string) error { return nil }
