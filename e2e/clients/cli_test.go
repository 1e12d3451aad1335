package clients

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/packages/go/patience"
)

// ollamaCLI runs Ollama's command line against an address and returns what it printed on its standard output and what
// else it said.
func ollamaCLI(t *testing.T, addr string, args ...string) (out, said string, err error) {
	t.Helper()
	if the.ollama == nil {
		t.Skip("no Ollama")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := the.ollama.Command(ctx, addr, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), plainTerminal(stderr.String()), err
}

// plainTerminal leaves out what only moves a cursor.
func plainTerminal(text string) string {
	return regexp.MustCompile("\x1b\\[[?0-9;]*[A-Za-z]|[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] ?").ReplaceAllString(text, "")
}

// ago is what a list says of times, which pass while it is asked for twice.
var ago = regexp.MustCompile(`\S+ \S+ (ago|from now)|Less than a second ago|About (a|an) \S+ (ago|from now)`)

// rows are the lines of a table, by their first word, with everything between them but times.
func rows(table string) map[string][]string {
	found := map[string][]string{}
	for line := range strings.Lines(table) {
		if words := strings.Fields(ago.ReplaceAllString(line, "then")); len(words) > 0 {
			found[words[0]] = words[1:]
		}
	}
	return found
}

// The command line lists what the edge has: an Ollama's models as the Ollama lists them, and all others.
func TestOllamaCommandLists(t *testing.T) {
	if _, said, err := ollamaCLI(t, the.ollamaAddr(), "run", "otiny", "hi"); err != nil { // so that ps has something to tell
		t.Fatalf("%v: %s", err, said)
	}
	for _, command := range []string{"list", "ps"} {
		var wrong string
		same := func() bool { wrong = listsDiffer(t, command); return wrong == "" }
		defer func() {
			if t.Failed() {
				t.Log(wrong)
			}
		}()
		patience.Until(t, "ollama "+command+" is the same through the edge", same)
	}
}

// listsDiffer compares one list, and returns what is wrong with it through the edge.
func listsDiffer(t *testing.T, command string) string {
	t.Helper()
	direct, said, err := ollamaCLI(t, the.ollamaAddr(), command)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	through, said, err := ollamaCLI(t, the.edge, command)
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	got, want := rows(through), rows(direct)
	if len(want) < 2 {
		t.Fatalf("ollama %s, directly: %q", command, direct)
	}
	for name, cells := range want {
		if !slices.Equal(got[name], cells) {
			return fmt.Sprintf("%s is %q, directly %q", name, got[name], cells)
		}
	}
	for _, name := range []string{"tiny", "slow", "llama-anthropic"} {
		if len(got[name]) < 3 {
			return fmt.Sprintf("%s is %q", name, got[name])
		}
	}
	return ""
}

func (w *world) ollamaAddr() string {
	if w.ollama == nil {
		return ""
	}
	return w.ollama.Addr
}

func TestOllamaCommandShows(t *testing.T) {
	lines := func(text string) []string { return slices.Sorted(strings.Lines(text)) } // parameters come in any order
	direct, said, err := ollamaCLI(t, the.ollamaAddr(), "show", "otiny")
	if err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if got, said, err := ollamaCLI(t, the.edge, "show", "otiny"); err != nil || !slices.Equal(lines(got), lines(direct)) {
		t.Errorf("%v %s\nthrough the edge:\n%s\ndirectly:\n%s", err, said, got, direct)
	}
	got, said, err := ollamaCLI(t, the.edge, "show", "tiny")
	if err != nil || !regexp.MustCompile(`context length +16384`).MatchString(got) || !strings.Contains(got, "completion") {
		t.Errorf("%v %s\n%s", err, said, got)
	}
}

func TestOllamaCommandRuns(t *testing.T) {
	for _, args := range [][]string{{"hi"}, {"count"}, {"--think", "think"}, {"--think", "--hidethinking", "think"}, {"--think=false", "think"}} {
		direct, said, err := ollamaCLI(t, the.ollamaAddr(), append([]string{"run", "otiny"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		if got, said, err := ollamaCLI(t, the.edge, append([]string{"run", "otiny"}, args...)...); err != nil || got != direct {
			t.Errorf("%q: %v %s\nthrough the edge:\n%s\ndirectly:\n%s", args, err, said, got, direct)
		}
	}
	for _, model := range []string{"tiny", "llama-anthropic", "ollama-openai"} {
		for question, want := range map[string]string{"hi": greeting, "count": strings.TrimSpace(numbers(400))} {
			if got, said, err := ollamaCLI(t, the.edge, "run", model, question); err != nil || strings.TrimSpace(got) != want {
				t.Errorf("run %s %s: %v %s\n%s", model, question, err, said, got)
			}
		}
	}
	_, said, err := ollamaCLI(t, the.edge, "run", "tiny", "hi", "--verbose")
	if err != nil || !regexp.MustCompile(`prompt eval count: +6 token`).MatchString(said) || !regexp.MustCompile(`eval count: +39 token`).MatchString(said) {
		t.Errorf("%v %s", err, said)
	}
}

// Loading and unloading are an Ollama's business; others say that it is done.
func TestOllamaCommandStops(t *testing.T) {
	for _, model := range []string{"tiny", "otiny"} {
		if _, said, err := ollamaCLI(t, the.edge, "stop", model); err != nil {
			t.Errorf("stop %s: %v %s", model, err, said)
		}
	}
	if table, _, _ := ollamaCLI(t, the.ollamaAddr(), "ps"); strings.Contains(table, "otiny") {
		t.Errorf("otiny was stopped, and is still there:\n%s", table)
	}
}

// What changes an Ollama is refused in words that the command line shows, and a model that nobody has isn't fetched.
func TestOllamaCommandRefused(t *testing.T) {
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"run", "nobody-has-this", "hi"}, "models are managed at the machine"},
		{[]string{"show", "nobody-has-this"}, "not found"},
		{[]string{"pull", "tiny"}, "models are managed at the machine"},
		{[]string{"cp", "otiny", "other"}, "models are managed at the machine"},
		{[]string{"rm", "otiny"}, "models are managed at the machine"},
	} {
		out, said, err := ollamaCLI(t, the.edge, tt.args...)
		if err == nil || !strings.Contains(said, tt.says) {
			t.Errorf("ollama %q: %v\n%s\n%s", tt.args, err, out, said)
		}
	}
	if table, _, err := ollamaCLI(t, the.ollamaAddr(), "list"); err != nil || !strings.Contains(table, "otiny") {
		t.Errorf("the Ollama has lost its model: %v\n%s", err, table)
	}
}

// A run that its user interrupts ends the generation, whoever generates. (CA-01)
func TestOllamaCommandInterrupted(t *testing.T) {
	if the.ollama == nil {
		t.Skip("no Ollama")
	}
	for model, provider := range map[string]string{"slow": providerLlama, "slow-anthropic": providerLlama, "oslow": providerOllama} {
		t.Run(model, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			cmd := the.ollama.Command(ctx, the.edge, "run", model, "loop")
			output, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			words := bufio.NewScanner(output)
			words.Split(bufio.ScanWords)
			for range 3 {
				if !words.Scan() {
					t.Fatalf("the run ended by itself: %v", cmd.Wait())
				}
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
			interrupted := time.Now()
			for words.Scan() { // what was on its way
			}
			_ = cmd.Wait() // by whatever code
			the.slotIsFree(t, provider)
			t.Logf("free after %v", time.Since(interrupted).Round(time.Millisecond))
		})
	}
}
