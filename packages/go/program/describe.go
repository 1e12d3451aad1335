package program

import (
	"encoding/json"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Described is a command as programs read it: what scripts/manpages makes manual pages of, without that its libraries
// are in the program.
type Described struct {
	Use        string          `json:"use"`
	Short      string          `json:"short"`
	Long       string          `json:"long,omitempty"`
	Example    string          `json:"example,omitempty"`
	Flags      []DescribedFlag `json:"flags,omitempty"`      // its own
	Persistent []DescribedFlag `json:"persistent,omitempty"` // those of all commands below it, too
	Commands   []Described     `json:"commands,omitempty"`
}

// DescribedFlag is one flag of a command.
type DescribedFlag struct {
	Name      string `json:"name"`
	Shorthand string `json:"shorthand,omitempty"`
	Type      string `json:"type"`
	Default   string `json:"default"`
	Optional  string `json:"optional,omitempty"` // what it stands for without a value
	Usage     string `json:"usage"`
}

// DescribeCommand prints the whole tree of commands as JSON. It isn't shown in help texts.
func DescribeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "describe", Short: "Print all commands as JSON", Hidden: true, Args: Args(),
		Long:    "Print the whole tree of commands with their flags as JSON, for programs that make documents of it.",
		Example: "  scripts/manpages makes manual pages of it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := json.NewEncoder(cmd.OutOrStdout())
			out.SetIndent("", "  ")
			return out.Encode(describe(cmd.Root()))
		},
	}
}

func describe(cmd *cobra.Command) Described {
	d := Described{Use: cmd.Use, Short: cmd.Short, Long: cmd.Long, Example: cmd.Example,
		Flags: describeFlags(cmd.LocalNonPersistentFlags()), Persistent: describeFlags(cmd.PersistentFlags())}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			d.Commands = append(d.Commands, describe(sub))
		}
	}
	return d
}

func describeFlags(set *pflag.FlagSet) (flags []DescribedFlag) {
	set.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" {
			flags = append(flags, DescribedFlag{f.Name, f.Shorthand, f.Value.Type(), f.DefValue, f.NoOptDefVal, f.Usage})
		}
	})
	return flags
}
