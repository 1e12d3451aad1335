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
	site, err := procs.StartSite(ctx, procs.SiteConfig{
		Bin:      bin,
		Adapters: "[{name: loopback, kind: loopback, max_concurrency: 4}]",
		Routes:   "[{model: demo, adapter: loopback, target: loopback}]",
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "edge listens: callers %s, nodes %s\nnode dialed out, registered and is ready\n", site.HTTP, site.Nodes)
	err = chat(ctx, fmt.Sprintf("http://%s/v1/chat/completions", site.HTTP), out)
	if stopped := site.Stop(); stopped != nil {
		return errors.Join(err, stopped)
	}
	fmt.Fprintln(out, "node and edge stopped cleanly")
	return err
}

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
