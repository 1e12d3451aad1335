package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// goAnthropic is github.com/anthropics/anthropic-sdk-go.
var goAnthropic = client{
	name: "anthropic-sdk-go", api: apiAnthropic,
	also: []string{kindCount, kindList, kindModel, kindExtra},
	ask: func(ctx context.Context, p place, a ask) answer {
		var out answer
		c := anthropic.NewClient(option.WithBaseURL(p.Base), option.WithAPIKey(p.Key), option.WithMaxRetries(0))
		if err := (anthropicTalk{c, p, a, &out}).run(ctx); err != nil {
			out.Error = anthropicFailure(err)
		}
		return out
	},
}

func anthropicFailure(err error) *failure {
	if api, ok := errors.AsType[*anthropic.Error](err); ok {
		return &failure{Type: "anthropic.Error", Status: api.StatusCode, Message: string(api.Type()), Body: api.RawJSON()}
	}
	return &failure{Type: fmt.Sprintf("%T", err), Message: err.Error()}
}

// anthropicTalk is one request of anthropic-sdk-go.
type anthropicTalk struct {
	anthropic.Client
	place place
	ask   ask
	out   *answer
}

func (k anthropicTalk) run(ctx context.Context) error {
	switch k.ask.Kind {
	case kindChat:
		if k.ask.Stream {
			return k.stream(ctx)
		}
		r, err := k.Messages.New(ctx, k.params(), k.extra()...)
		if err == nil {
			k.out.add(r.RawJSON())
			k.message(r)
		}
		return err
	case kindCount:
		r, err := k.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: k.place.Model, Messages: k.params().Messages})
		if err == nil {
			k.out.add(r.RawJSON())
			k.out.In = r.InputTokens
		}
		return err
	case kindList:
		page, err := k.Models.List(ctx, anthropic.ModelListParams{})
		if err == nil {
			k.out.add(page.RawJSON())
			for _, m := range page.Data {
				k.out.Names = append(k.out.Names, m.ID)
			}
		}
		return err
	case kindModel:
		one, err := k.Models.Get(ctx, k.place.Model, anthropic.ModelGetParams{})
		if err == nil {
			k.out.Names = []string{one.ID}
			k.out.add(one.RawJSON())
		}
		return err
	}
	return fmt.Errorf("anthropic-sdk-go can't %s", k.ask.Kind)
}

func (k anthropicTalk) stream(ctx context.Context) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	stream := k.Messages.NewStreaming(ctx, k.params(), k.extra()...)
	defer stream.Close()
	var all anthropic.Message
	for stream.Next() {
		event := stream.Current()
		k.out.add(event.RawJSON())
		if err := all.Accumulate(event); err != nil {
			return err
		}
		if k.ask.Leave > 0 && len(k.out.Raw) == k.ask.Leave {
			leave()
		}
	}
	k.message(&all)
	return stream.Err()
}

func (k anthropicTalk) message(m *anthropic.Message) {
	k.out.Finish = string(m.StopReason)
	k.out.In, k.out.Out = m.Usage.InputTokens+m.Usage.CacheReadInputTokens+m.Usage.CacheCreationInputTokens, m.Usage.OutputTokens
	for _, block := range m.Content {
		switch block := block.AsAny().(type) {
		case anthropic.TextBlock:
			k.out.Text += block.Text
		case anthropic.ThinkingBlock:
			k.out.Reasoning += block.Thinking
		case anthropic.ToolUseBlock:
			k.out.Calls = append(k.out.Calls, call{block.ID, block.Name, string(block.Input)})
		}
	}
}

func (k anthropicTalk) params() anthropic.MessageNewParams {
	p := anthropic.MessageNewParams{Model: k.place.Model, MaxTokens: int64(k.ask.MaxTokens)}
	for _, m := range k.ask.Messages {
		if m.Role == "system" {
			p.System = append(p.System, anthropic.TextBlockParam{Text: m.Text})
			continue
		}
		p.Messages = append(p.Messages, anthropicMessage(m))
	}
	if k.ask.Stop != "" {
		p.StopSequences = []string{k.ask.Stop}
	}
	if k.ask.Think {
		p.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
	}
	if k.ask.Tools {
		schema := toolSchema()
		tool := anthropic.ToolParam{Name: toolName, Description: anthropic.String(toolDescription),
			InputSchema: anthropic.ToolInputSchemaParam{Properties: schema["properties"], Required: []string{"city"}}}
		p.Tools = []anthropic.ToolUnionParam{{OfTool: &tool}}
	}
	return p
}

func anthropicMessage(m message) anthropic.MessageParam {
	var blocks []anthropic.ContentBlockParamUnion
	if m.Reasoning != "" {
		blocks = append(blocks, anthropic.NewThinkingBlock("iop-unsigned", m.Reasoning))
	}
	if m.Image != "" {
		blocks = append(blocks, anthropic.NewImageBlockBase64("image/png", m.Image))
	}
	switch {
	case m.Role == "tool":
		return anthropic.NewUserMessage(anthropic.NewToolResultBlock(m.CallID, m.Text, false))
	case m.Text != "":
		blocks = append(blocks, anthropic.NewTextBlock(m.Text))
	}
	for _, c := range m.Calls {
		blocks = append(blocks, anthropic.NewToolUseBlock(c.ID, json.RawMessage(c.Arguments), c.Name))
	}
	if m.Role == "assistant" {
		return anthropic.NewAssistantMessage(blocks...)
	}
	return anthropic.NewUserMessage(blocks...)
}

func (k anthropicTalk) extra() (options []option.RequestOption) {
	for name, value := range k.ask.Extra {
		options = append(options, option.WithJSONSet(name, value))
	}
	return options
}
