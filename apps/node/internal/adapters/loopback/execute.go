package loopback

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"iop/packages/go/execution"
)

// Execute implements [execution.Executor]: it says as events what a chat says as chunks, at the pace and with the
// faults that the directives ask for. Options that steer a generation change nothing here, except for max_tokens.
func (p *Provider) Execute(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
	if err := req.Check(); err != nil {
		return execution.Completion{}, err
	}
	if !p.knows(req.Target) {
		return execution.Completion{}, refusal(http.StatusNotFound, "the model does not exist")
	}
	x, err := p.jobOf(req)
	if err != nil {
		return execution.Completion{}, refusal(http.StatusBadRequest, err.Error())
	}
	s := &speaker{pace: pace{ctx: ctx, timers: req.Timers}, job: x, emit: emit}
	return s.speak()
}

// refusal is the failure of a request that a provider answers with that status.
func refusal(status int, text string) error {
	f := execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "provider answered %d: %s", status, text)
	f.UpstreamStatus = status
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		f.RetryAfter = time.Second
	}
	return f
}

// jobOf returns the request as a chat has it, and the plan for its answer. An error is for the caller.
func (p *Provider) jobOf(req *execution.Request) (*job, error) {
	x := &job{plan: p.defaults}
	x.Model = req.Target
	var say string
	for _, m := range req.Messages {
		var said texts
		for _, part := range m.Parts {
			if part.Text != "" {
				said = append(said, part.Text)
			}
		}
		x.prompt = append(x.prompt, said.String())
		if m.Role == execution.RoleUser {
			say = said.String()
		}
	}
	if n := req.Options.MaxTokens; n != nil {
		limit := int(min(*n, maxTokens))
		x.MaxTokens = &limit
	}
	if err := x.offer(req); err != nil {
		return nil, err
	}
	content, err := json.Marshal([]any{req.Target, req.Messages, req.Tools, req.ToolChoice, req.Options})
	if err != nil {
		return nil, err
	}
	return x, x.direct(say, content)
}

// offer takes the tools over.
func (x *job) offer(req *execution.Request) error {
	for _, t := range req.Tools {
		var offered tool
		offered.Function.Name = t.Name
		if len(t.Parameters) > 0 {
			if err := json.Unmarshal(t.Parameters, &offered.Function.Parameters); err != nil {
				return err
			}
		}
		x.Tools = append(x.Tools, offered)
	}
	var choice any = string(req.ToolChoice.Mode)
	switch req.ToolChoice.Mode {
	case "":
		return nil
	case execution.ToolNamed:
		choice = object{"type": "function", "function": object{"name": req.ToolChoice.Name}}
	}
	var err error
	x.ToolChoice, err = encode(choice)
	return err
}

// speaker emits the answer of one run.
type speaker struct {
	pace
	*job
	emit execution.Emit
}

func (s *speaker) speak() (execution.Completion, error) {
	if err := s.begin(); err != nil {
		return execution.Completion{}, err
	}
	for _, thought := range s.thoughts() {
		if err := s.say(execution.Event{Kind: execution.EventReasoning, Text: thought}); err != nil {
			return execution.Completion{}, err
		}
	}
	words, reason := s.answer()
	if s.job.tools > 0 {
		words, reason = nil, "tool_calls"
		if err := s.call(); err != nil {
			return execution.Completion{}, err
		}
	}
	for _, word := range words {
		if err := s.say(execution.Event{Kind: execution.EventDelta, Text: word}); err != nil {
			return execution.Completion{}, err
		}
	}
	if err := s.end(&s.plan); err != nil {
		return execution.Completion{}, err
	}
	return s.count(reason, s.counts(len(words)))
}

// begin waits as long as the plan says, and begins the answer or does what the plan has instead.
func (s *speaker) begin() error {
	if err := s.wait(s.first); err != nil {
		return err
	}
	switch {
	case s.fail != 0:
		return refusal(s.fail, "loopback: fail="+itoa(s.fail)+" was asked for")
	case s.garbage:
		return execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider, "an event of the provider's stream isn't a JSON object")
	}
	s.headed = true
	return s.emit(execution.Event{Kind: execution.EventStart, Model: s.Model})
}

// say emits one token, at the plan's pace.
func (s *speaker) say(e execution.Event) error {
	if err := s.token(&s.plan); err != nil {
		return err
	}
	s.passed += len(e.Text) + len(e.ToolCall.Arguments)
	return s.emit(e)
}

// call emits each call as providers do: first who is called, then the arguments in pieces.
func (s *speaker) call() error {
	for i, c := range s.calls() {
		begin := execution.ToolCallDelta{Index: i, ID: c.id, Name: c.name}
		if err := s.say(execution.Event{Kind: execution.EventToolCall, ToolCall: begin}); err != nil {
			return err
		}
		for _, arguments := range c.pieces() {
			piece := execution.ToolCallDelta{Index: i, Arguments: arguments}
			if err := s.say(execution.Event{Kind: execution.EventToolCall, ToolCall: piece}); err != nil {
				return err
			}
		}
	}
	return nil
}

// count emits the counts, unless the plan tells none, and ends the run.
func (s *speaker) count(reason string, c counted) (execution.Completion, error) {
	done := execution.Completion{FinishReason: reason}
	if s.noUsage {
		return done, nil
	}
	done.Usage = c.usage()
	if err := s.emit(execution.Event{Kind: execution.EventUsage, Usage: done.Usage}); err != nil {
		return execution.Completion{}, err
	}
	return done, nil
}
