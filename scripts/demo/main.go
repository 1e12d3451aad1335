// Demo starts the two programs with the embedded loopback provider on free ports of this machine, sends one streaming
// chat request through them, shows the tokens as they arrive and who served them, and stops both.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"iop/e2e/procs"
)

func main() {
	bin := flag.String("bin", "bin", "directory of iop-edge and iop-node")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, *bin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, out io.Writer) error {
	dir, err := os.MkdirTemp("", "iop-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	token := exec.CommandContext(ctx, filepath.Join(bin, "iop-edge"), "token", "new", "demo-node",
		"--hash-file", filepath.Join(dir, "node.token.sha256"), "--token-file", filepath.Join(dir, "node.token"))
	if text, err := token.CombinedOutput(); err != nil {
		return fmt.Errorf("token new: %w\n%s", err, text)
	}

	if err := os.WriteFile(filepath.Join(dir, "edge.yaml"), []byte(edgeConfig), 0o600); err != nil {
		return err
	}
	edge, err := procs.Start(ctx, "edge", filepath.Join(bin, "iop-edge"), "serve", "-c", filepath.Join(dir, "edge.yaml"))
	if err != nil {
		return err
	}
	defer stop(edge, out)
	listening, err := edge.Wait(ctx, "edge is listening", 1)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "edge  listens: callers %s, nodes %s\n", listening.Str("http"), listening.Str("nodes"))

	nodeConfig := fmt.Sprintf(nodeConfigFormat, listening.Str("nodes"))
	if err := os.WriteFile(filepath.Join(dir, "node.yaml"), []byte(nodeConfig), 0o600); err != nil {
		return err
	}
	node, err := procs.Start(ctx, "node", filepath.Join(bin, "iop-node"), "serve", "-c", filepath.Join(dir, "node.yaml"))
	if err != nil {
		return err
	}
	defer stop(node, out)
	if _, err := edge.Wait(ctx, "node is ready", 1); err != nil {
		return err
	}
	fmt.Fprintln(out, "node  dialed out, registered and is ready")
	return chat(ctx, fmt.Sprintf("http://%s/v1/chat/completions", listening.Str("http")), out)
}

const edgeConfig = `# made by scripts/demo
mode: dev
listen: {nodes: "127.0.0.1:0", http: "127.0.0.1:0", admin: "127.0.0.1:0"}
state_dir: ./state
nodes:
  - id: demo-node
    token_hashes: [{file: ./node.token.sha256}]
    adapters: [{name: loopback, kind: loopback, max_concurrency: 4}]
routes:
  - model: demo
    adapter: loopback
    target: loopback
log: {level: info, format: json}
`

const nodeConfigFormat = `# made by scripts/demo
edges: [%q]
token: file:./node.token
data_dir: ./data
log: {level: info, format: json}
`

const question = `{"model": "demo", "stream": true, "stream_options": {"include_usage": true},
 "messages": [{"role": "user", "content": "Say hello through the tunnel. loopback: delay=40ms"}]}`

// chat sends the request and prints each piece of the answer the moment that it arrives.
func chat(ctx context.Context, url string, out io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(question))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	fmt.Fprintf(out, "\n$ curl -N %s -d '%s'\n\n", url, question)
	began := time.Now()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<16))
		return fmt.Errorf("the edge answered %s: %s", response.Status, body)
	}
	var firstByte time.Duration
	var usage json.RawMessage
	lines, done := bufio.NewScanner(response.Body), false
	for lines.Scan() && !done {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		if firstByte == 0 {
			firstByte = time.Since(began)
		}
		if data = bytes.TrimSpace(data); string(data) == "[DONE]" {
			done = true
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct{ Content string } `json:"delta"`
			} `json:"choices"`
			Usage json.RawMessage `json:"usage"`
		}
		if err := json.Unmarshal(data, &chunk); err != nil {
			return fmt.Errorf("a chunk isn't JSON: %w", err)
		}
		for _, choice := range chunk.Choices {
			fmt.Fprint(out, choice.Delta.Content)
		}
		if len(chunk.Usage) > 0 && string(chunk.Usage) != "null" {
			usage = bytes.Clone(chunk.Usage)
		}
	}
	if !done {
		return errors.Join(errors.New("the stream ended without [DONE]"), lines.Err())
	}
	fmt.Fprintf(out, "\n\nserved by   %s (run %s, queued %s ms)\nfirst byte  %.1f ms\nwhole       %.0f ms\nusage       %s\n\n",
		response.Header.Get("X-IOP-Node"), response.Header.Get("X-IOP-Run-Id"), response.Header.Get("X-IOP-Queue-Ms"),
		float64(firstByte.Microseconds())/1000, float64(time.Since(began).Milliseconds()), usage)
	return nil
}

func stop(p *procs.Process, out io.Writer) {
	if err := p.Stop(10 * time.Second); err != nil {
		fmt.Fprintf(out, "%s  stopped: %v\n%s\n", p.Name, err, p.Log())
		return
	}
	fmt.Fprintf(out, "%s  stopped cleanly\n", p.Name)
}
