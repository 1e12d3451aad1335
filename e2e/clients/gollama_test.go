package clients

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/ollama/ollama/api"
)

// goOllama is github.com/ollama/ollama/api.
var goOllama = client{
	name: "ollama/api", api: apiOllama,
	also: []string{kindGenerate, kindEmbed, kindList, kindModel, kindRunning, kindVersion, kindExtra},
	ask: func(ctx context.Context, p place, a ask) answer {
		var out answer
		base, err := url.Parse(p.Base)
		if err == nil {
			c := api.NewClient(base, &http.Client{Transport: bearer(p.Key)})
			err = ollamaTalk{c, p, a, &out}.run(ctx)
		}
		if err != nil {
			out.Error = ollamaFailure(err)
		}
		return out
	},
}

// bearer is how a caller of Ollama's client sends a key: the client itself has none.
type bearer string

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func ollamaFailure(err error) *failure {
	if refused, ok := errors.AsType[api.StatusError](err); ok {
		return &failure{Type: "api.StatusError", Status: refused.StatusCode, Message: refused.ErrorMessage}
	}
	if refused, ok := errors.AsType[api.AuthorizationError](err); ok {
		return &failure{Type: "api.AuthorizationError", Status: refused.StatusCode, Message: refused.Status}
	}
	return &failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
}

// ollamaTalk is one request of Ollama's client.
type ollamaTalk struct {
	*api.Client
	place place
	ask   ask
	out   *answer
}

func (k ollamaTalk) run(ctx context.Context) error {
	switch k.ask.Kind {
	case kindChat:
		return k.chat(ctx)
	case kindGenerate:
		return k.generate(ctx)
	case kindEmbed:
		r, err := k.Embed(ctx, &api.EmbedRequest{Model: k.place.Model, Input: []string{k.ask.Messages[0].Text}})
		if err == nil {
			k.out.addValue(r)
			for _, number := range r.Embeddings[0] {
				k.out.Vector = append(k.out.Vector, float64(number))
			}
			k.out.In = int64(r.PromptEvalCount)
		}
		return err
	case kindList:
		r, err := k.List(ctx)
		if err == nil {
			for _, m := range r.Models {
				k.out.addValue(m)
				k.out.Names = append(k.out.Names, m.Name)
			}
		}
		return err
	case kindRunning:
		r, err := k.ListRunning(ctx)
		if err == nil {
			for _, m := range r.Models {
				k.out.addValue(m)
				k.out.Names = append(k.out.Names, m.Name)
			}
		}
		return err
	case kindModel:
		r, err := k.Show(ctx, &api.ShowRequest{Model: k.place.Model})
		if err == nil {
			k.out.addValue(r)
		}
		return err
	case kindVersion:
		text, err := k.Version(ctx)
		k.out.Text = text
		return err
	}
	return fmt.Errorf("ollama/api can't %s", k.ask.Kind)
}

func (k ollamaTalk) chat(ctx context.Context) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	r := &api.ChatRequest{Model: k.place.Model, Stream: &k.ask.Stream, Options: k.options()}
	if k.ask.Think {
		r.Think = &api.ThinkValue{Value: true}
	}
	if k.ask.Tools {
		r.Tools = api.Tools{ollamaTool()}
	}
	for _, m := range k.ask.Messages {
		said, err := ollamaMessage(m)
		if err != nil {
			return err
		}
		r.Messages = append(r.Messages, said)
	}
	err := k.Chat(ctx, r, func(piece api.ChatResponse) error {
		k.out.addValue(piece)
		k.out.Text += piece.Message.Content
		k.out.Reasoning += piece.Message.Thinking
		for _, c := range piece.Message.ToolCalls {
			k.out.Calls = append(k.out.Calls, call{c.ID, c.Function.Name, c.Function.Arguments.String()})
		}
		k.out.Finish = piece.DoneReason
		k.out.In, k.out.Out = int64(piece.PromptEvalCount), int64(piece.EvalCount)
		if k.ask.Leave > 0 && len(k.out.Raw) == k.ask.Leave {
			leave()
		}
		return ctx.Err()
	})
	return err
}

func (k ollamaTalk) generate(ctx context.Context) error {
	r := &api.GenerateRequest{Model: k.place.Model, Prompt: k.ask.Messages[0].Text, Stream: &k.ask.Stream, Options: k.options()}
	if k.ask.Think {
		r.Think = &api.ThinkValue{Value: true}
	}
	return k.Generate(ctx, r, func(piece api.GenerateResponse) error {
		k.out.addValue(piece)
		k.out.Text += piece.Response
		k.out.Reasoning += piece.Thinking
		k.out.Finish = piece.DoneReason
		k.out.In, k.out.Out = int64(piece.PromptEvalCount), int64(piece.EvalCount)
		return nil
	})
}

func (k ollamaTalk) options() map[string]any {
	options := map[string]any{}
	if k.ask.MaxTokens > 0 {
		options["num_predict"] = k.ask.MaxTokens
	}
	if k.ask.Stop != "" {
		options["stop"] = []string{k.ask.Stop}
	}
	for name, value := range k.ask.Extra {
		options[name] = value
	}
	return options
}

func ollamaTool() (tool api.Tool) {
	text, err := json.Marshal(map[string]any{"type": "function", "function": map[string]any{
		"name": toolName, "description": toolDescription, "parameters": toolSchema()}})
	if err == nil {
		err = json.Unmarshal(text, &tool)
	}
	if err != nil {
		panic(err) // the text is a constant
	}
	return tool
}

func ollamaMessage(m message) (api.Message, error) {
	said := api.Message{Role: m.Role, Content: m.Text, Thinking: m.Reasoning, ToolCallID: m.CallID}
	if m.Image != "" {
		image, err := base64.StdEncoding.DecodeString(m.Image)
		if err != nil {
			return said, err
		}
		said.Images = []api.ImageData{image}
	}
	for i, c := range m.Calls {
		asked := api.ToolCall{ID: c.ID, Function: api.ToolCallFunction{Index: i, Name: c.Name}}
		if err := json.Unmarshal([]byte(c.Arguments), &asked.Function.Arguments); err != nil {
			return said, err
		}
		said.ToolCalls = append(said.ToolCalls, asked)
	}
	return said, nil
}
