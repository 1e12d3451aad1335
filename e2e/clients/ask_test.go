package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
)

// The three APIs that clients speak.
const (
	apiOpenAI    = "openai"
	apiAnthropic = "anthropic"
	apiOllama    = "ollama"
)

// What can be asked. Not every client can all of it.
const (
	kindChat        = "chat"
	kindGenerate    = "generate"    // Ollama's second way
	kindCompletions = "completions" // OpenAI's oldest
	kindResponses   = "responses"   // OpenAI's newest
	kindEmbed       = "embed"
	kindCount       = "count" // Anthropic's count_tokens
	kindList        = "list"  // the models
	kindModel       = "model" // one of them; show for Ollama
	kindRunning     = "ps"
	kindVersion     = "version"

	kindExtra = "extra" // no kind of its own: the client takes members that its types don't have
)

// client is one of the official clients, behind what all of them can be asked.
type client struct {
	name string
	api  string
	also []string // what it can beside chat
	// odd says why the client doesn't get the known answer of a provider itself, by provider and name of the conversation.
	odd map[string]string
	// fromStart: the client takes the input's tokens from the beginning of a stream, where neither a run nor Ollama knows them.
	fromStart bool
	// words are what the client calls the finish reasons of a run, where that isn't the API's own word.
	words map[string]string
	ask   func(ctx context.Context, p place, a ask) answer
}

func (c client) can(kind string) bool { return kind == kindChat || slices.Contains(c.also, kind) }

// place is where a client asks. JSON tags are those of the runner of npm's clients.
type place struct {
	Base  string `json:"base"` // without /v1
	Model string `json:"model"`
	Key   string `json:"key"`
}

// ask is one request in words that all the clients have.
type ask struct {
	Kind      string         `json:"kind"`
	Stream    bool           `json:"stream,omitempty"`
	Messages  []message      `json:"messages,omitempty"`
	Tools     bool           `json:"tools,omitempty"` // get_weather is offered
	Think     bool           `json:"think,omitempty"` // reasoning is asked for where an API wants that
	MaxTokens int            `json:"maxTokens,omitempty"`
	Stop      string         `json:"stop,omitempty"`
	Extra     map[string]any `json:"extra,omitempty"` // members of the body as they are, for what the client's types forbid
	Leave     int            `json:"leave,omitempty"` // give up after so many pieces of a stream
}

type message struct {
	Role  string `json:"role"`
	Text  string `json:"text"`
	Image string `json:"image,omitempty"` // a PNG in base64
	// Reasoning is an assistant's, for the clients that can send it back.
	Reasoning string `json:"reasoning,omitempty"`
	Calls     []call `json:"calls,omitempty"`
	CallID    string `json:"callId,omitempty"` // a tool's: whose answer it is
}

type call struct {
	ID        string `json:"id,omitempty"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // a JSON object
}

// answer is what a client told its caller, by its own types.
type answer struct {
	Text      string            `json:"text"`
	Reasoning string            `json:"reasoning"`
	Calls     []call            `json:"calls"`
	Finish    string            `json:"finish"`
	In        int64             `json:"in"` // tokens; cached ones included
	Out       int64             `json:"out"`
	Names     []string          `json:"names"`  // of a list
	Vector    []float64         `json:"vector"` // of an embedding
	Error     *failure          `json:"error"`
	Raw       []json.RawMessage `json:"raw"` // everything that came, piece by piece
}

// failure is an error as the client throws or returns it.
type failure struct {
	Type    string `json:"type"` // the client's class
	Status  int    `json:"status"`
	Message string `json:"message"`
	Body    any    `json:"body"` // what the provider's error says, as the client has it
}

func (f *failure) String() string {
	text, err := json.Marshal(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (a *answer) add(raw string) { a.Raw = append(a.Raw, json.RawMessage(raw)) }

func (a *answer) addValue(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		text = fmt.Appendf(nil, "%q", err)
	}
	a.Raw = append(a.Raw, text)
}
