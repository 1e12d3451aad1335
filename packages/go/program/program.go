// Package program is what iop-edge and iop-node share around their commands: how an error becomes a message and an exit
// code, what a signal does, the limit of open files, the version. It knows nothing of what the programs do.
package program

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"iop/packages/go/config"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main runs the command that the arguments name and returns the exit code: 0 when it did its work, 2 when it was called
// wrongly, 1 for everything else; an [Exit] names its own. Any other error is one message on standard error.
func Main(root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return Usage(cmd, "%s", err) })
	cmd, err := root.ExecuteC()
	var exit Exit
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return int(exit)
	case errors.As(err, new(*usageError)):
	case cmd == root: // cobra's own error about an unknown command
		err = Usage(root, "%s", err)
	default:
		report(root.ErrOrStderr(), root.Name(), err)
		return exitFailed
	}
	report(root.ErrOrStderr(), root.Name(), err)
	return exitUsage
}

// report prints an error. A configuration's problems name their file themselves.
func report(w io.Writer, name string, err error) {
	if problems := new(config.Errors); errors.As(err, &problems) {
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintf(w, "%s: %s\n", name, err)
}

// Exit is an error that ends the program with that code, for a command that has said already what there was to say.
type Exit int

// Error implements error.
func (e Exit) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// ExitWith returns what ends the program with that code; 0 is no error.
func ExitWith(code int) error {
	if code == exitOK {
		return nil
	}
	return Exit(code)
}

type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// Usage returns an error that says how the command is called.
func Usage(cmd *cobra.Command, format string, args ...any) error {
	text := strings.TrimSpace(fmt.Sprintf(format, args...))
	return &usageError{text: text + "\nSee: " + cmd.CommandPath() + " --help"}
}

// Args accepts exactly one argument for each name.
func Args(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return Usage(cmd, "unexpected argument %q", args[len(names)])
		case len(args) < len(names):
			return Usage(cmd, "%s is missing", names[len(args)])
		}
		return nil
	}
}

// Group is a command that only holds others.
func Group(name, short string, commands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use:   name,
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usage(cmd, "unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return cmd.Help()
		},
	}
	group.AddCommand(commands...)
	return group
}

// VersionCommand prints the version.
func VersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s (%s, %s/%s)\n",
				cmd.Root().Name(), Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// Version returns the version that the build recorded: a tag, or what git knew of the source; "dev" without either.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}

// ConfigFlag adds the flag that names the configuration file.
func ConfigFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVarP(path, "config", "c", "", "the configuration `FILE`")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

// Count is a number with its noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
