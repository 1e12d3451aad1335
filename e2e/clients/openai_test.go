// Package clients drives the official clients against a real llama-server, first directly and then through Edge and
// Node: what a caller sees must be the same. It is a module of its own, so that the clients' dependencies stay out of
// the product's.
package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"

	"iop/e2e/procs"
)

// world is what the tests run against; TestMain makes it once.
type world struct {
	direct, embed string // the providers themselves, host:port
	edge, admin   string
}

var the world // set once by TestMain before any test

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	bin, provider := os.Getenv("IOP_BIN"), os.Getenv("IOP_PROVIDER")
	if bin == "" || provider == "" {
		fmt.Println("skipped: IOP_BIN and IOP_PROVIDER aren't set; run `make test-clients`")
		return 0
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	chat, chatAddr, err := procs.Llama(ctx, provider, "tiny.gguf")
	if err != nil {
		return failed(err)
	}
	defer chat.Kill()
	embed, embedAddr, err := procs.Llama(ctx, provider, "tiny.gguf", "--embeddings", "--pooling", "mean")
	if err != nil {
		return failed(err)
	}
	defer embed.Kill()
	site, err := procs.StartSite(ctx, procs.SiteConfig{
		Bin: bin,
		Adapters: fmt.Sprintf(`[{name: chat, kind: openai, base_url: "http://%s", max_concurrency: 4},
  {name: embed, kind: openai, base_url: "http://%s/v1", max_concurrency: 2}]`, chatAddr, embedAddr),
		Routes: `[{model: tiny, adapter: chat, target: tiny}, {model: renamed, adapter: chat, target: tiny},
  {model: vectors, adapter: embed, target: tiny}]`,
	})
	if err != nil {
		return failed(err)
	}
	the = world{direct: chatAddr, embed: embedAddr, edge: site.HTTP, admin: site.Admin}
	code := m.Run()
	if err := site.Stop(); err != nil {
		return failed(err)
	}
	return code
}

func failed(err error) int {
	fmt.Println("FAIL:", err)
	return 1
}

func client(addr string) openai.Client {
	return openai.NewClient(option.WithBaseURL("http://"+addr+"/v1"), option.WithAPIKey("not-needed"), option.WithMaxRetries(0))
}

// both runs one conversation directly and through the edge and compares what it returned.
func both(t *testing.T, direct string, talk func(t *testing.T, c openai.Client) string) {
	t.Helper()
	want := talk(t, client(direct))
	got := talk(t, client(the.edge))
	if want == "" {
		t.Fatal("the provider itself returned nothing to compare with")
	}
	if got != want {
		t.Errorf("through the edge:\n%q\ndirectly:\n%q", got, want)
	}
}

func params(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
		MaxTokens: openai.Int(200)}
}

const greeting = "Hello from the tiny test model. It streams one piece at a time: naïve café, 한국어 🙂\ndata: not an event\n\ndone!"

func TestChat(t *testing.T) {
	both(t, the.direct, func(t *testing.T, c openai.Client) string {
		r, err := c.Chat.Completions.New(t.Context(), params("hi"))
		if err != nil {
			t.Fatal(err)
		}
		if r.Choices[0].Message.Content != greeting {
			t.Errorf("the answer is %q", r.Choices[0].Message.Content)
		}
		return fmt.Sprint(r.Choices[0].Message.Content, r.Choices[0].FinishReason, r.Usage.PromptTokens, r.Usage.CompletionTokens, r.Model)
	})
}

func TestStreaming(t *testing.T) {
	both(t, the.direct, func(t *testing.T, c openai.Client) string {
		p := params("count")
		p.MaxTokens = openai.Int(2000)
		p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		stream := c.Chat.Completions.NewStreaming(t.Context(), p)
		all, chunks := openai.ChatCompletionAccumulator{}, 0
		for stream.Next() {
			chunks++
			if !all.AddChunk(stream.Current()) {
				t.Fatal("a chunk doesn't follow the one before")
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		text := all.Choices[0].Message.Content
		if !strings.HasSuffix(strings.TrimSpace(text), "400") {
			t.Errorf("the count ends in %q", text[max(0, len(text)-20):])
		}
		return fmt.Sprint(text, all.Choices[0].FinishReason, all.Usage.CompletionTokens, chunks)
	})
}

func TestTools(t *testing.T) {
	p := params("weather in Seoul?")
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
		Name: "get_weather", Description: openai.String("the weather of a city"),
		Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{
			"city": map[string]string{"type": "string"}, "unit": map[string]string{"type": "string"}}},
	})}
	both(t, the.direct, func(t *testing.T, c openai.Client) string {
		r, err := c.Chat.Completions.New(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		call := r.Choices[0].Message.ToolCalls[0].Function
		if call.Name != "get_weather" || !strings.Contains(call.Arguments, "Seoul") {
			t.Errorf("the call is %s(%s)", call.Name, call.Arguments)
		}
		stream := c.Chat.Completions.NewStreaming(t.Context(), p)
		all := openai.ChatCompletionAccumulator{}
		for stream.Next() {
			all.AddChunk(stream.Current())
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		streamed := all.Choices[0].Message.ToolCalls[0].Function
		return fmt.Sprint(call.Name, call.Arguments, r.Choices[0].FinishReason, streamed.Name, streamed.Arguments)
	})
}

func TestReasoning(t *testing.T) {
	both(t, the.direct, func(t *testing.T, c openai.Client) string {
		stream := c.Chat.Completions.NewStreaming(t.Context(), params("think"))
		var text, reasoning strings.Builder
		for stream.Next() {
			for _, choice := range stream.Current().Choices {
				text.WriteString(choice.Delta.Content)
				if field, ok := choice.Delta.JSON.ExtraFields["reasoning_content"]; ok {
					reasoning.WriteString(field.Raw())
				}
			}
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(reasoning.String(), "reason") || !strings.Contains(text.String(), "forty-two") {
			t.Errorf("reasoning %q, text %q", reasoning.String(), text.String())
		}
		return text.String() + "|" + reasoning.String()
	})
}

func TestResponses(t *testing.T) {
	both(t, the.direct, func(t *testing.T, c openai.Client) string {
		stream := c.Responses.NewStreaming(t.Context(), responses.ResponseNewParams{Model: "tiny",
			Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hi")}})
		var text strings.Builder
		last := ""
		for stream.Next() {
			text.WriteString(stream.Current().AsResponseOutputTextDelta().Delta)
			last = stream.Current().Type
		}
		if err := stream.Err(); err != nil {
			t.Fatal(err)
		}
		return text.String() + last
	})
}

func TestCompletions(t *testing.T) {
	both(t, the.direct, func(t *testing.T, c openai.Client) string {
		r, err := c.Completions.New(t.Context(), openai.CompletionNewParams{Model: "tiny", MaxTokens: openai.Int(9),
			Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("x")}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Choices[0].Text
	})
}

func TestEmbeddings(t *testing.T) {
	embed := func(addr, model string) []float64 {
		c := client(addr)
		r, err := c.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: model,
			Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("hi")}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Data[0].Embedding
	}
	direct, through := embed(the.embed, "tiny"), embed(the.edge, "vectors")
	if len(direct) == 0 || !slices.Equal(direct, through) {
		t.Errorf("%d numbers directly, %d through the edge, or not the same", len(direct), len(through))
	}
}

func TestModels(t *testing.T) {
	c := client(the.edge)
	page, err := c.Models.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, model := range page.Data {
		names = append(names, model.ID)
	}
	if want := []string{"renamed", "tiny", "vectors"}; !slices.Equal(names, want) {
		t.Errorf("models %v, want %v", names, want)
	}
	if one, err := c.Models.Get(t.Context(), "renamed"); err != nil || one.ID != "renamed" {
		t.Errorf("models/renamed: %v, %v", one, err)
	}
}

// A route's name is the caller's; the provider is asked for its own.
func TestAlias(t *testing.T) {
	p := params("hi")
	p.Model = "renamed"
	c := client(the.edge)
	r, err := c.Chat.Completions.New(t.Context(), p)
	if err != nil || r.Choices[0].Message.Content != greeting {
		t.Errorf("%v, %v", r, err)
	}
}

func TestErrors(t *testing.T) {
	status := func(err error) (int, string) {
		var api *openai.Error
		if !errors.As(err, &api) {
			t.Fatalf("not an API error: %v", err)
		}
		return api.StatusCode, api.Code
	}
	t.Run("the provider's own refusal passes unchanged", func(t *testing.T) {
		both(t, the.direct, func(t *testing.T, c openai.Client) string {
			p := params("hi")
			p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("x ", 40000))}
			_, err := c.Chat.Completions.New(t.Context(), p)
			code, _ := status(err)
			var api *openai.Error
			errors.As(err, &api)
			return fmt.Sprint(code, api.Message)
		})
	})
	t.Run("unknown model", func(t *testing.T) {
		p := params("hi")
		p.Model = "nobody-has-this"
		c := client(the.edge)
		_, err := c.Chat.Completions.New(t.Context(), p)
		if code, name := status(err); code != http.StatusNotFound || name != "unknown_model" {
			t.Errorf("%d %s: %v", code, name, err)
		}
	})
}

// A caller that stops reading ends the generation: the place is free and the provider's slot takes the next request.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := params("loop")
	p.MaxTokens = openai.Int(1 << 20)
	c := client(the.edge)
	stream := c.Chat.Completions.NewStreaming(ctx, p)
	for range 5 {
		if !stream.Next() {
			t.Fatalf("the stream ended by itself: %v", stream.Err())
		}
	}
	cancel()
	for stream.Next() { // what was already read
	}
	if stream.Err() == nil {
		t.Error("the cancelled stream ended without an error")
	}
	idle, done := context.WithTimeout(t.Context(), 3*time.Second)
	defer done()
	for busy(t) {
		select {
		case <-idle.Done():
			t.Fatal("the provider was still generating three seconds after the caller left")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// busy asks llama-server itself whether one of its slots is generating.
func busy(t *testing.T) bool {
	t.Helper()
	response, err := http.Get("http://" + the.direct + "/slots?fail_on_no_slot=0")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(text, []byte(`"is_processing":true`))
}
