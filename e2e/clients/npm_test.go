package clients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// npmClients are those that npm/run.mjs has, by its names for them.
func npmClients(n *npm) []client {
	unified := map[string]string{"stop": "stop", "length": "length", "tool_calls": "tool-calls"} // the AI SDK's own words
	all := []client{
		{name: "npm openai", api: apiOpenAI, also: []string{kindCompletions, kindResponses, kindEmbed, kindList, kindModel, kindExtra}},
		{name: "npm @anthropic-ai/sdk", api: apiAnthropic, also: []string{kindCount, kindList, kindModel, kindExtra}},
		{name: "npm ollama", api: apiOllama, also: []string{kindGenerate, kindEmbed, kindList, kindModel, kindRunning, kindVersion, kindExtra}},
		{name: "npm ai, openai-compatible", api: apiOpenAI, also: []string{kindEmbed}, words: unified},
		{name: "npm ai, anthropic", api: apiAnthropic, words: unified,
			odd: map[string]string{"ollama reasoning": "takes no whole answer whose thinking isn't signed"}},
		{name: "npm @langchain/openai", api: apiOpenAI, also: []string{kindEmbed, kindExtra},
			odd: map[string]string{"ollama reasoning": "knows reasoning_content only"}},
		{name: "npm @langchain/anthropic", api: apiAnthropic, also: []string{kindExtra}, fromStart: true},
		{name: "npm @langchain/ollama", api: apiOllama, also: []string{kindEmbed}},
	}
	for i := range all {
		name := all[i].name
		all[i].ask = func(ctx context.Context, p place, a ask) answer { return n.talk(ctx, name, p, a) }
	}
	return all
}

// npm is a node process that makes requests with npm's clients.
type npm struct {
	cmd     *exec.Cmd
	scripts string // a directory of its own, beside the clients
	input   io.WriteCloser
	log     bytes.Buffer // standard error; read after the end

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	ended   bool
}

// startNPM installs the clients, unless they are in the cache, and starts the process. A machine without node, npm or a
// registry has none: the error says why.
func startNPM(ctx context.Context, cache string) (*npm, error) {
	if cache == "" {
		return nil, errors.New("IOP_CACHE isn't set")
	}
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, err
		}
	}
	modules, err := installed(ctx, filepath.Join(cache, "npm"))
	if err != nil {
		return nil, err
	}
	n := &npm{waiting: map[int]chan answer{}}
	// A script's imports are looked for beside and above it.
	if n.scripts, err = os.MkdirTemp(modules, "run-"); err != nil {
		return nil, err
	}
	if err := os.CopyFS(n.scripts, mjs{os.DirFS("npm")}); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	n.cmd = exec.CommandContext(ctx, "node", "run.mjs")
	n.cmd.Dir, n.cmd.Stderr = n.scripts, &n.log
	if n.input, err = n.cmd.StdinPipe(); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	output, err := n.cmd.StdoutPipe()
	if err == nil {
		err = n.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, n.stop())
	}
	go n.read(output) // ends with the process
	return n, nil
}

// installed returns the directory whose node_modules are those of the lock file.
func installed(ctx context.Context, cache string) (string, error) {
	lock, err := os.ReadFile("npm/package-lock.json")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("%x", sha256.Sum256(lock))[:16])
	if _, err := os.Stat(filepath.Join(dir, "node_modules")); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("npm", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(fresh, name), text, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
	install.Dir = fresh
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out[max(0, len(out)-2000):])
	}
	if err := os.Rename(fresh, dir); err != nil && !errors.Is(err, fs.ErrExist) { // somebody else may have been faster
		return "", err
	}
	return dir, nil
}

// mjs is the part of a file system that scripts are.
type mjs struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (m mjs) ReadDir(name string) (scripts []fs.DirEntry, err error) {
	entries, err := fs.ReadDir(m.FS, name)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".mjs" {
			scripts = append(scripts, entry)
		}
	}
	return scripts, err
}

func (n *npm) read(output io.Reader) {
	decoder := json.NewDecoder(output)
	for {
		var line struct {
			ID     int    `json:"id"`
			Answer answer `json:"answer"`
		}
		err := decoder.Decode(&line)
		n.mu.Lock()
		if err != nil {
			n.ended = true
			for _, to := range n.waiting {
				to <- answer{Error: &failure{Type: "the runner of npm's clients", Message: err.Error()}}
			}
			n.mu.Unlock()
			return
		}
		if to := n.waiting[line.ID]; to != nil {
			to <- line.Answer
		}
		delete(n.waiting, line.ID)
		n.mu.Unlock()
	}
}

// talk makes one request with a client.
func (n *npm) talk(ctx context.Context, client string, p place, a ask) answer {
	to := make(chan answer, 1)
	n.mu.Lock()
	n.last++
	id := n.last
	text, err := json.Marshal(map[string]any{"id": id, "client": client, "place": p, "ask": a})
	if err == nil && n.ended {
		err = io.ErrClosedPipe
	}
	if err == nil {
		n.waiting[id] = to
		_, err = n.input.Write(append(text, '\n'))
	}
	n.mu.Unlock()
	if err != nil {
		return answer{Error: &failure{Type: "the runner of npm's clients", Message: err.Error()}}
	}
	select {
	case got := <-to:
		return got
	case <-ctx.Done():
		return answer{Error: &failure{Type: "the runner of npm's clients", Message: ctx.Err().Error()}}
	}
}

// stop ends the process and removes its scripts. What a client left on standard error is worth seeing.
func (n *npm) stop() error {
	var err error
	if n.cmd != nil && n.cmd.Process != nil {
		n.input.Close()
		err = n.cmd.Wait()
		if n.log.Len() > 0 {
			fmt.Printf("npm's clients on standard error:\n%s\n", n.log.String())
		}
	}
	return errors.Join(err, os.RemoveAll(n.scripts))
}
