package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
)

// runFlags are what `iop-edge run` is told.
type runFlags struct {
	url, keyFile                       string
	adapter, target, node, session, id string
	system                             string
	background, json                   bool
	options                            []string
}

func runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --adapter NAME --target MODEL [PROMPT…]",
		Short: "Run a prompt on an adapter and show what it says",
		Long: `Run a prompt on an adapter of a node, through the runs API of an Edge, and show the events as they come: text on
standard output; reasoning, tool calls and how it ended on standard error. Without a PROMPT it is read from standard
input. The API key is read from --key-file or from IOP_API_KEY. Ctrl-C cancels the run.

Exit code: 0 when the run completed, 1 otherwise.`,
		Example: `  iop-edge run --adapter loopback --target loopback hello
  iop-edge run --adapter llama --target tiny --option max_tokens=50 --json 'count'
  iop-edge run --adapter llama --target tiny --background < prompt.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			return f.run(ctx, args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.url, "url", "http://127.0.0.1:8080", "address of the Edge's HTTP listener")
	flags.StringVar(&f.keyFile, "key-file", "", "file that holds the API key")
	flags.StringVar(&f.adapter, "adapter", "", "adapter to run on")
	flags.StringVar(&f.target, "target", "", "what the adapter is asked to run, usually a model")
	flags.StringVar(&f.node, "node", "", "node to run on; default: any that has the adapter and offers the target")
	flags.StringVar(&f.session, "session", "", "session id, copied through")
	flags.StringVar(&f.id, "run-id", "", "id of the run; default: one is drawn")
	flags.StringVar(&f.system, "system", "", "system message")
	flags.StringArrayVar(&f.options, "option", nil, "NAME=VALUE, as in max_tokens=50; may be given more than once")
	flags.BoolVar(&f.background, "background", false, "start the run, print its id, and leave")
	flags.BoolVar(&f.json, "json", false, "print each event's JSON, one a line")
	_ = cmd.MarkFlagRequired("adapter") // they are defined above
	_ = cmd.MarkFlagRequired("target")
	return cmd
}

func (f *runFlags) run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	body, err := f.body(args, in)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(f.url, "/")+"/iop/v1/runs", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	key, err := secretOf(f.keyFile, "IOP_API_KEY")
	if err != nil {
		return err
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the edge: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		return refused(response)
	}
	if f.background {
		_, err := io.Copy(out, response.Body)
		return err
	}
	p := &printer{out: out, err: errOut, json: f.json}
	if err := p.stream(response.Body); err != nil {
		if ctx.Err() != nil {
			return errors.New("cancelled")
		}
		return err
	}
	return nil
}

// body is the request of the runs API.
func (f *runFlags) body(args []string, in io.Reader) ([]byte, error) {
	prompt := strings.Join(args, " ")
	if len(args) == 0 {
		text, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read the prompt: %w", err)
		}
		prompt = string(text)
	}
	if strings.TrimSpace(prompt) == "" {
		return nil, errors.New("there is no prompt: give it as an argument or on standard input")
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	ask := map[string]any{"adapter": f.adapter, "target": f.target, "stream": !f.background, "background": f.background}
	messages := []message{}
	if f.system != "" {
		messages = append(messages, message{"system", f.system})
	}
	ask["messages"] = append(messages, message{"user", prompt})
	for name, value := range map[string]string{"node": f.node, "session_id": f.session, "run_id": f.id} {
		if value != "" {
			ask[name] = value
		}
	}
	options := map[string]json.RawMessage{}
	for _, option := range f.options {
		name, value, ok := strings.Cut(option, "=")
		if !ok {
			return nil, fmt.Errorf("--option %s: must be NAME=VALUE", option)
		}
		raw := json.RawMessage(value)
		if !json.Valid(raw) { // a word: reasoning_effort=low
			raw, _ = json.Marshal(value) // strings always encode
		}
		options[name] = raw
	}
	if len(options) > 0 {
		ask["options"] = options
	}
	return json.Marshal(ask)
}

// secretOf reads a key from a file, or from the environment when no file is named.
func secretOf(file, variable string) (string, error) {
	if file == "" {
		return os.Getenv(variable), nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--key-file: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// refused says what an error answer says.
func refused(response *http.Response) error {
	var body struct {
		Error struct{ Code, Message string }
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil || json.Unmarshal(text, &body) != nil || body.Error.Code == "" {
		return fmt.Errorf("the edge answered %s", response.Status)
	}
	return fmt.Errorf("%s: %s", plain(body.Error.Code), plain(body.Error.Message))
}

// printer shows the events of a run.
type printer struct {
	out, err io.Writer
	json     bool
	open     bool // the last text on out didn't end its line
}

// event is one event as the runs API has it, as far as it is shown.
type event struct {
	RunID        string          `json:"run_id"`
	Text         string          `json:"text"`
	Name         string          `json:"name"`
	Arguments    string          `json:"arguments"`
	FinishReason string          `json:"finish_reason"`
	Usage        json.RawMessage `json:"usage"`
	Cause        string          `json:"cause"`
	Error        struct{ Code, Message string }
}

// stream reads server-sent events until the terminal. A stream without one was cut.
func (p *printer) stream(r io.Reader) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	name := ""
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			p.endLine()
			return errors.New("the stream was cut: the run's end isn't known")
		}
		if field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ": "); field == "event" {
			name = value
		} else if field == "data" {
			var e event
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return fmt.Errorf("an event isn't JSON: %w", err)
			}
			if done, err := p.show(name, value, &e); done || err != nil {
				return err
			}
		}
	}
}

// show prints one event; done says that it was the terminal.
func (p *printer) show(name, raw string, e *event) (done bool, err error) {
	if p.json {
		fmt.Fprintln(p.out, `{"event":"`+name+`",`+strings.TrimPrefix(raw, "{"))
	}
	switch name {
	case "delta":
		p.text(e.Text)
	case "reasoning_delta":
		p.note("%s", e.Text)
	case "tool_call":
		if e.Name != "" {
			p.note("\ntool call: %s ", e.Name)
		}
		p.note("%s", e.Arguments)
	case "complete":
		p.endLine()
		p.note("run %s: complete, %s, usage %s\n", e.RunID, e.FinishReason, orUnknown(e.Usage))
		return true, nil
	case "error":
		p.endLine()
		return true, fmt.Errorf("%s: %s", e.Error.Code, e.Error.Message)
	case "cancelled":
		p.endLine()
		return true, errors.New("cancelled: " + e.Cause)
	}
	return false, nil
}

func (p *printer) text(s string) {
	if !p.json && s != "" {
		fmt.Fprint(p.out, s)
		p.open = !strings.HasSuffix(s, "\n")
	}
}

func (p *printer) note(format string, args ...any) {
	if !p.json {
		fmt.Fprintf(p.err, format, args...)
	}
}

func (p *printer) endLine() {
	if p.open {
		fmt.Fprintln(p.out)
		p.open = false
	}
}

func orUnknown(usage json.RawMessage) string {
	if len(usage) == 0 || string(usage) == "null" {
		return "unknown"
	}
	return string(usage)
}
