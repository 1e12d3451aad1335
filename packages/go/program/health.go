package program

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// healthLimit bounds how long a program may take to say how it is.
const healthLimit = 5 * time.Second

// HealthCommand is a command for probes (a container's health check, a load balancer's script): it asks a running
// program's admin listener, by default at address, how it is. what says when it is ready.
func HealthCommand(name, address, what string) *cobra.Command {
	var admin string
	var ready bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the running program how it is, by exit code",
		Long: `Ask the running program how it is, through its admin listener (listen.admin in an Edge's file, admin.listen in a
node's): exit code 0 when it is well, 1 when it isn't or doesn't answer within 5 seconds. It needs no key and reads no
file. With --ready the question is whether ` + what + `.`,
		Example: "  " + name + " health\n  " + name + " health --ready --admin " + address,
		Args:    Args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/healthz"
			if ready {
				path = "/readyz"
			}
			return askHealth(cmd, admin, path)
		},
	}
	cmd.Flags().StringVar(&admin, "admin", address, "address of the program's admin listener")
	cmd.Flags().BoolVar(&ready, "ready", false, "ask whether it takes work, too")
	return cmd
}

func askHealth(cmd *cobra.Command, admin, path string) error {
	if base, err := url.Parse(admin); err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return Usage(cmd, "--admin must be an address like http://127.0.0.1:8081, not %q", admin)
	}
	request, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, strings.TrimSuffix(admin, "/")+path, nil)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: healthLimit, Transport: &http.Transport{}} // the listener is asked itself, and no proxy
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%w; does it run, and is its admin listener on?", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %s", path, response.Status, strings.TrimSpace(string(text)))
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.TrimSpace(string(text)))
	return err
}
