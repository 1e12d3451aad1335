package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/respjson"
	"github.com/openai/openai-go/v3/responses"
)

// goOpenAI is github.com/openai/openai-go/v3.
var goOpenAI = client{
	name: "openai-go", api: apiOpenAI,
	also: []string{kindCompletions, kindResponses, kindEmbed, kindList, kindModel, kindExtra},
	ask: func(ctx context.Context, p place, a ask) answer {
		var out answer
		c := openai.NewClient(option.WithBaseURL(p.Base+"/v1"), option.WithAPIKey(p.Key), option.WithMaxRetries(0))
		if err := (openAITalk{c, p, a, &out}).run(ctx); err != nil {
			out.Error = openAIFailure(err)
		}
		return out
	},
}

func openAIFailure(err error) *failure {
	if api, ok := errors.AsType[*openai.Error](err); ok {
		return &failure{Type: "openai.Error", Status: api.StatusCode, Message: api.Message, Body: map[string]string{
			"code": api.Code, "type": api.Type, "param": api.Param, "json": api.RawJSON()}}
	}
	return &failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
}

// openAITalk is one request of openai-go.
type openAITalk struct {
	openai.Client
	place place
	ask   ask
	out   *answer
}

func (k openAITalk) run(ctx context.Context) error {
	switch k.ask.Kind {
	case kindChat:
		if k.ask.Stream {
			return k.stream(ctx)
		}
		return k.whole(ctx)
	case kindResponses:
		return k.response(ctx)
	case kindCompletions:
		return k.completion(ctx)
	case kindEmbed:
		return k.embed(ctx)
	case kindList:
		return k.list(ctx)
	case kindModel:
		one, err := k.Models.Get(ctx, k.place.Model)
		if err == nil {
			k.out.Names = []string{one.ID}
			k.out.add(one.RawJSON())
		}
		return err
	}
	return fmt.Errorf("openai-go can't %s", k.ask.Kind)
}

func (k openAITalk) whole(ctx context.Context) error {
	r, err := k.Chat.Completions.New(ctx, k.params(), k.extra()...)
	if err != nil {
		return err
	}
	k.out.add(r.RawJSON())
	if len(r.Choices) != 1 {
		return fmt.Errorf("%d choices", len(r.Choices))
	}
	k.message(r.Choices[0].Message, r.Choices[0].FinishReason, r.Usage)
	k.out.Reasoning = openAIReasoning(r.Choices[0].Message.JSON.ExtraFields)
	return nil
}

func (k openAITalk) stream(ctx context.Context) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	p := k.params()
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := k.Chat.Completions.NewStreaming(ctx, p, k.extra()...)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		chunk := stream.Current()
		k.out.add(chunk.RawJSON())
		if !all.AddChunk(chunk) {
			return fmt.Errorf("a chunk doesn't follow the one before: %s", chunk.RawJSON())
		}
		for _, choice := range chunk.Choices {
			k.out.Reasoning += openAIReasoning(choice.Delta.JSON.ExtraFields)
		}
		if k.ask.Leave > 0 && len(k.out.Raw) == k.ask.Leave {
			leave()
		}
	}
	if len(all.Choices) > 0 {
		k.message(all.Choices[0].Message, all.Choices[0].FinishReason, all.Usage)
	}
	return stream.Err()
}

func (k openAITalk) message(m openai.ChatCompletionMessage, finish string, usage openai.CompletionUsage) {
	k.out.Text, k.out.Finish = m.Content, finish
	k.out.In, k.out.Out = usage.PromptTokens, usage.CompletionTokens
	for _, c := range m.ToolCalls {
		k.out.Calls = append(k.out.Calls, call{c.ID, c.Function.Name, c.Function.Arguments})
	}
}

// openAIReasoning is what openai-go has no name for: llama.cpp and the edge call it one way, Ollama another.
func openAIReasoning(extra map[string]respjson.Field) (text string) {
	for _, name := range []string{"reasoning_content", "reasoning"} {
		if field, ok := extra[name]; ok {
			_ = json.Unmarshal([]byte(field.Raw()), &text) // null is nothing
		}
	}
	return text
}

func (k openAITalk) params() openai.ChatCompletionNewParams {
	p := openai.ChatCompletionNewParams{Model: k.place.Model}
	for _, m := range k.ask.Messages {
		p.Messages = append(p.Messages, openAIMessage(m))
	}
	if k.ask.MaxTokens > 0 {
		p.MaxTokens = openai.Int(int64(k.ask.MaxTokens))
	}
	if k.ask.Stop != "" {
		p.Stop.OfStringArray = []string{k.ask.Stop}
	}
	if k.ask.Tools {
		p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name: toolName, Description: openai.String(toolDescription), Parameters: toolSchema()})}
	}
	return p
}

func openAIMessage(m message) openai.ChatCompletionMessageParamUnion {
	switch {
	case m.Role == "system":
		return openai.SystemMessage(m.Text)
	case m.Role == "tool":
		return openai.ToolMessage(m.Text, m.CallID)
	case m.Role == "assistant":
		said := openai.AssistantMessage(m.Text)
		if m.Text == "" {
			said.OfAssistant.Content = openai.ChatCompletionAssistantMessageParamContentUnion{}
		}
		for _, c := range m.Calls {
			said.OfAssistant.ToolCalls = append(said.OfAssistant.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{
				OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{ID: c.ID,
					Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: c.Name, Arguments: c.Arguments}}})
		}
		return said
	case m.Image != "":
		return openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{openai.TextContentPart(m.Text),
			openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: "data:image/png;base64," + m.Image})})
	}
	return openai.UserMessage(m.Text)
}

func (k openAITalk) extra() (options []option.RequestOption) {
	for name, value := range k.ask.Extra {
		options = append(options, option.WithJSONSet(name, value))
	}
	return options
}

func (k openAITalk) response(ctx context.Context) error {
	p := responses.ResponseNewParams{Model: k.place.Model,
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(k.ask.Messages[0].Text)}}
	if !k.ask.Stream {
		r, err := k.Responses.New(ctx, p)
		if err == nil {
			k.out.add(r.RawJSON())
			k.out.Text, k.out.Finish, k.out.In, k.out.Out = r.OutputText(), string(r.Status), r.Usage.InputTokens, r.Usage.OutputTokens
		}
		return err
	}
	stream := k.Responses.NewStreaming(ctx, p)
	defer stream.Close()
	for stream.Next() {
		event := stream.Current()
		k.out.add(event.RawJSON())
		if event.Type == "response.output_text.delta" {
			k.out.Text += event.Delta
		}
		k.out.Finish = string(event.Response.Status)
		k.out.In, k.out.Out = event.Response.Usage.InputTokens, event.Response.Usage.OutputTokens
	}
	return stream.Err()
}

func (k openAITalk) completion(ctx context.Context) error {
	r, err := k.Completions.New(ctx, openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(k.place.Model), MaxTokens: openai.Int(9),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(k.ask.Messages[0].Text)}})
	if err == nil {
		k.out.add(r.RawJSON())
		k.out.Text, k.out.Finish = r.Choices[0].Text, string(r.Choices[0].FinishReason)
		k.out.In, k.out.Out = r.Usage.PromptTokens, r.Usage.CompletionTokens
	}
	return err
}

func (k openAITalk) embed(ctx context.Context) error {
	r, err := k.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: k.place.Model,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{k.ask.Messages[0].Text}}})
	if err == nil {
		k.out.add(r.RawJSON())
		k.out.Vector, k.out.In = r.Data[0].Embedding, r.Usage.PromptTokens
	}
	return err
}

func (k openAITalk) list(ctx context.Context) error {
	page, err := k.Models.List(ctx)
	if err == nil {
		k.out.add(page.RawJSON())
		for _, m := range page.Data {
			k.out.Names = append(k.out.Names, m.ID)
		}
	}
	return err
}
