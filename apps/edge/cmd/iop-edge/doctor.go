package main

import (
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"iop/apps/edge/internal/diagnose"
	"iop/packages/go/doctor"
	"iop/packages/go/program"
)

// firstRoute is the value of --request without a model; nobody can ask for a model of that name.
const firstRoute = "*"

// doctorFlags are what `iop-edge doctor` is told.
type doctorFlags struct {
	opts                           diagnose.Options
	adminKeyFile, keyFile, request string
	json                           bool
}

func doctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor -c FILE",
		Short: "Say what is wrong between callers and nodes, and what to do",
		Long: `Look at everything between a caller and the nodes, in the order in which a request needs it, and say of each what is
wrong and what to do: the file, who may come in, the Edge that runs here (by listen.admin), the listeners, the
certificates, the state directory, tokens, every node and its adapters, routes that nobody can serve, slots, open files,
memory. Run it as the program's user, before the first start or beside a running Edge: nothing is changed, and no secret
is shown.

--request sends one tiny chat through the whole path, and says how long it waited, who served it, and how it ended; it
is the only check that lets a model run. An API key is read from --key-file or IOP_API_KEY, an admin key, where the admin
listener isn't on loopback, from --admin-key-file or IOP_ADMIN_KEY.

Each line is ok, warning, FAIL, or skipped: what couldn't be looked at. Every check has its own limit. docs/doctor.md
has them all.

Exit code: 0 when nothing is wrong, 1 with warnings, 2 when something fails, or when it was called wrongly.`,
		Example: `  iop-edge doctor -c configs/edge.yaml
  iop-edge doctor -c configs/edge.yaml --request                the model of the first route
  iop-edge doctor -c /etc/iop/edge.yaml --request qwen3:8b --key-file alice.key --json`,
		Args: f.args,
		RunE: f.run,
	}
	program.ConfigFlag(cmd, &f.opts.File)
	flags := cmd.Flags()
	flags.BoolVar(&f.json, "json", false, "as JSON, one object with a list of findings")
	flags.StringVar(&f.request, "request", "", "send one tiny chat for this `MODEL` through the whole path; without one, for that of the first route")
	flags.Lookup("request").NoOptDefVal = firstRoute
	flags.StringVar(&f.keyFile, "key-file", "", "`FILE` that holds the API key of the request")
	flags.StringVar(&f.adminKeyFile, "admin-key-file", "", "`FILE` that holds an admin key")
	flags.DurationVar(&f.opts.Deadline, "deadline", 60*time.Second, "how long the request may take")
	return cmd
}

// args takes what follows --request as its model, with "=" or without.
func (f *doctorFlags) args(cmd *cobra.Command, args []string) error {
	if cmd.Flags().Changed("request") && f.request == firstRoute && len(args) == 1 {
		f.request = args[0]
		return nil
	}
	return program.Args()(cmd, args)
}

func (f *doctorFlags) run(cmd *cobra.Command, _ []string) (err error) {
	if f.opts.File == "" {
		return program.Usage(cmd, "give the configuration file with -c FILE")
	}
	if cmd.Flags().Changed("request") {
		if f.request == firstRoute {
			f.request = ""
		}
		f.opts.Request = &f.request
	}
	if f.opts.Deadline < time.Second || f.opts.Deadline > time.Hour {
		return program.Usage(cmd, "--deadline must be 1s to 1h")
	}
	f.opts.Version = program.Version()
	if f.opts.AdminKey, err = secretOf(f.adminKeyFile, "IOP_ADMIN_KEY"); err != nil {
		return err
	}
	if f.opts.APIKey, err = secretOf(f.keyFile, "IOP_API_KEY"); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	level, err := doctor.Examine(ctx, cmd.OutOrStdout(), "iop-edge", f.opts.Version, diagnose.Checks(f.opts), f.json)
	if err != nil {
		return err
	}
	return program.ExitWith(level.ExitCode())
}
