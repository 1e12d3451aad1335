package procs

import (
	"context"
	"net"
	"path/filepath"
)

// Llama starts the real llama-server of dir (scripts/provider.sh) with a model file of the same directory and waits
// until it is healthy. It returns the server and its address.
func Llama(ctx context.Context, dir, model string, args ...string) (*Process, string, error) {
	addr, err := FreeAddr()
	if err != nil {
		return nil, "", err
	}
	server, err := StartLlama(ctx, dir, model, addr, args...)
	if err != nil {
		return nil, "", err
	}
	if err := Healthy(ctx, server, addr); err != nil {
		server.Kill()
		return nil, "", err
	}
	return server, addr, nil
}

// StartLlama is Llama on an address of the caller's choice, without waiting.
func StartLlama(ctx context.Context, dir, model, addr string, args ...string) (*Process, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	args = append([]string{"-m", filepath.Join(dir, model), "--host", host, "--port", port, "-t", "1", "-tb", "1",
		"-c", "16384", "-np", "4", "--jinja", "--alias", "tiny", "--metrics", "--slots", "--offline", "--no-ui"}, args...)
	return Start(ctx, "llama-server", filepath.Join(dir, "llama-server"), args...)
}

// Healthy waits until the llama-server at addr has loaded its model.
func Healthy(ctx context.Context, server *Process, addr string) error {
	return answers(ctx, server, "http://"+addr+"/health")
}
