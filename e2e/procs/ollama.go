package procs

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// modelfile is a Modelfile without its FROM: the template that scripts/gengguf's models answer to. One thread, since the
// engine spins with more of them than free cores.
//
//go:embed ollama.modelfile
var modelfile string

// OllamaConfig says which Ollama to start.
type OllamaConfig struct {
	Dir    string            // of the program, by scripts/install-ollama.sh
	Addr   string            // where it listens; "" = a free loopback port
	Models map[string]string // a GGUF file of scripts/gengguf for each name that the Ollama has
	Env    []string          // further variables
}

// OllamaServer is a real Ollama with models, keys and settings of its own, in a directory that lasts as long as it does.
type OllamaServer struct {
	*Process
	Addr string // host:port
	Home string // of the server, and of its command line

	cfg OllamaConfig
}

// Ollama starts one and waits until it has its models. It is kept from every network but the loopback: nothing is ever
// pulled. Call Stop.
func Ollama(ctx context.Context, c OllamaConfig) (*OllamaServer, error) {
	home, err := os.MkdirTemp("", "iop-ollama-")
	if err != nil {
		return nil, err
	}
	o := &OllamaServer{Addr: c.Addr, Home: home, cfg: c}
	if o.Addr == "" {
		if o.Addr, err = FreeAddr(); err != nil {
			return nil, errors.Join(err, o.Stop())
		}
	}
	if err := o.Restart(ctx); err != nil {
		return nil, errors.Join(err, o.Stop())
	}
	for _, name := range slices.Sorted(maps.Keys(c.Models)) {
		if err := o.create(ctx, name, c.Models[name]); err != nil {
			return nil, errors.Join(err, o.Stop())
		}
	}
	return o, nil
}

// Restart starts the server again where it was and waits until it answers; its models are still there.
func (o *OllamaServer) Restart(ctx context.Context) error {
	cmd := o.Command(ctx, o.Addr, "serve")
	// Of its own group: it has a process for each loaded model, which must not outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p, err := StartCmd(ctx, "ollama", cmd)
	if err != nil {
		return err
	}
	o.Process = p
	return answers(ctx, p, "http://"+o.Addr+"/api/version")
}

// Command prepares Ollama's command line against the address (host:port, or a URL). Its standard input is empty.
func (o *OllamaServer) Command(ctx context.Context, addr string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(o.cfg.Dir, "ollama"), args...)
	cmd.Dir = o.Home
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "OLLAMA_") && !strings.HasPrefix(variable, "HOME=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, "HOME="+o.Home, "OLLAMA_HOST="+addr, "OLLAMA_MODELS="+filepath.Join(o.Home, "models"), "OLLAMA_NO_CLOUD=1")
	cmd.Env = append(cmd.Env, o.cfg.Env...)
	return cmd
}

func (o *OllamaServer) create(ctx context.Context, name, gguf string) error {
	text := fmt.Sprintf("FROM %s\n%s", gguf, modelfile)
	file := filepath.Join(o.Home, "Modelfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	if out, err := o.Command(ctx, o.Addr, "create", name, "-f", file).CombinedOutput(); err != nil {
		return fmt.Errorf("ollama create %s: %w\n%s\n%s", name, err, out, o.Log())
	}
	return nil
}

// Runners returns the ids of the processes that have a model loaded.
func (o *OllamaServer) Runners() ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", o.Pid()))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a thread that has ended
		}
		if err != nil {
			return nil, err
		}
		for _, field := range bytes.Fields(text) {
			var pid int
			if _, err := fmt.Sscan(string(field), &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Stop ends the server with whatever it started, and removes its files.
func (o *OllamaServer) Stop() error {
	if o.Process != nil {
		_ = o.Process.Stop(10 * time.Second) // it ends by a signal; how doesn't matter
		_ = syscall.Kill(-o.Pid(), syscall.SIGKILL)
	}
	return os.RemoveAll(o.Home)
}

// answers waits until a server that was just started answers a request with 200.
func answers(ctx context.Context, p *Process, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-p.Done():
			return fmt.Errorf("%s ended:\n%s", p.Name, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("%s didn't answer in time:\n%s", p.Name, p.Log())
		}
	}
}
