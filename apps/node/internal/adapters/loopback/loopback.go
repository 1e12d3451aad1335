// Package loopback is a provider inside the node: it speaks the OpenAI dialect with deterministic answers, without a
// model and without a network, so that everything between a caller and a provider can be tried and tested.
//
// It serves GET /v1/models and POST /v1/chat/completions, /v1/completions, /v1/responses and /v1/embeddings, and
// normalized runs. The same request gets the same bytes or events. By default the answer is a friendly sentence, one word a token, 20 ms a token when it is
// streamed and at once when it isn't.
//
// What the last message of the user says after "loopback:", up to the end of that line, asks for another behaviour:
//
//	tokens=N     answer with N tokens (the sentence again and again)
//	delay=D      pause before each token (20ms), also when the answer isn't streamed
//	first=D      pause before the head of the answer
//	reasoning=N  N tokens of reasoning before the answer
//	tools        call the first tool of the request; tools=N calls N, side by side
//	usage=off    tell no token counts
//	fail=STATUS  answer with an error of that status
//	cut=N        break off after N tokens, as a provider that dies
//	stall=N      say nothing more after N tokens, until somebody loses patience
//	garbage      answer with bytes that are neither JSON nor events
//	mark=TEXT    begin the answer with [TEXT], so that an answer can be told from another
//
// as in "Say hello. loopback: tokens=50 delay=5ms". A directive that isn't one of these, or a value that makes no
// sense, is answered with a 400 that names it. Options of the adapter: "defaults" holds directives for every request,
// which those of a request replace one by one.
//
// It must not touch a network, a file or a clock other than to pause.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// defaultModel is what is offered when the configuration names no targets.
const defaultModel = "loopback"

// maxBody bounds what is read of a request.
const maxBody = 128 << 20

// Config is what the kind takes from an adapter's configuration.
type Config struct {
	Targets    []string          // models that are offered; empty = "loopback", and every name is taken
	AllowPaths []string          // the kind has none: its paths are those that it serves
	Options    map[string]string // "defaults"
}

// Provider answers by itself. Its methods may be called concurrently.
type Provider struct {
	models   []string
	strict   bool // only the models are answered
	defaults plan
}

var (
	_ execution.Tunneler = (*Provider)(nil)
	_ execution.Executor = (*Provider)(nil)
)

// New returns the driver; an error names the field of the configuration.
func New(cfg Config) (*Provider, error) {
	if len(cfg.AllowPaths) > 0 {
		return nil, errors.New("allow_paths: the loopback kind has none; remove it")
	}
	p := &Provider{models: []string{defaultModel}, strict: len(cfg.Targets) > 0, defaults: newPlan()}
	if p.strict {
		p.models = slices.Clone(cfg.Targets)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Options)) {
		if name != "defaults" {
			return nil, fmt.Errorf("options: %q is unknown; the loopback kind has \"defaults\"", name)
		}
		if err := p.defaults.apply(cfg.Options[name]); err != nil {
			return nil, fmt.Errorf("options: defaults: %w", err)
		}
	}
	return p, nil
}

// Probe implements [execution.Provider].
func (p *Provider) Probe(context.Context) execution.Capabilities {
	c := execution.Capabilities{Available: true, Version: "embedded"}
	for _, name := range p.models {
		c.Models = append(c.Models, execution.Model{Name: name, Loaded: true})
	}
	return c
}

// Close implements [execution.Provider].
func (p *Provider) Close() {}

// Tunnel implements [execution.Tunneler].
func (p *Provider) Tunnel(ctx context.Context, req *execution.TunnelRequest, sink execution.TunnelSink) error {
	body, err := readBody(ctx, req)
	if err != nil {
		return err
	}
	w := &writer{pace: pace{ctx: ctx, timers: req.Timers}, sink: sink}
	switch req.Path {
	case "/v1/models":
		return p.only(http.MethodGet, req, w, p.list)
	case "/v1/chat/completions":
		return p.only(http.MethodPost, req, w, func(w *writer) error { return p.chat(w, body) })
	case "/v1/completions":
		return p.only(http.MethodPost, req, w, func(w *writer) error { return p.complete(w, body) })
	case "/v1/responses":
		return p.only(http.MethodPost, req, w, func(w *writer) error { return p.respond(w, body) })
	case "/v1/embeddings":
		return p.only(http.MethodPost, req, w, func(w *writer) error { return p.embed(w, body) })
	}
	return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, NothingSent: true,
		Text: "path is not one that the loopback adapter serves"}
}

func (p *Provider) only(method string, req *execution.TunnelRequest, w *writer, serve func(*writer) error) error {
	if err := httprules.CheckMethod(req.Method); err != nil {
		return &execution.Failure{Code: execution.CodeBadRequest, Origin: execution.OriginCaller, Text: err.Error(), NothingSent: true}
	}
	if req.Method != method {
		return w.refuse(http.StatusMethodNotAllowed, "method is not "+method)
	}
	return serve(w)
}

// readBody reads the request's body whole. The body is closed on every way out, and early when ctx is done.
func readBody(ctx context.Context, req *execution.TunnelRequest) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = req.Body.Close() })
	body, err := io.ReadAll(io.LimitReader(req.Body, maxBody+1))
	if stop() {
		_ = req.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, execution.AsFailure(err, execution.OriginNode)
	case len(body) > maxBody:
		return nil, execution.Failf(execution.CodeBodyTooLarge, execution.OriginNode, "request body is over %d bytes", maxBody)
	case req.ContentLength >= 0 && int64(len(body)) != req.ContentLength:
		return nil, execution.Failf(execution.CodeBadRequest, execution.OriginCaller,
			"request body ended after %d of %d bytes", len(body), req.ContentLength)
	}
	return body, nil
}

// list answers GET /v1/models.
func (p *Provider) list(w *writer) error {
	data := make([]any, len(p.models))
	for i, name := range p.models {
		data[i] = object{"id": name, "object": "model", "created": created, "owned_by": "iop"}
	}
	return w.whole(http.StatusOK, object{"object": "list", "data": data})
}

// knows reports whether a model is answered.
func (p *Provider) knows(model string) bool { return !p.strict || slices.Contains(p.models, model) }

// object is a JSON object; encoding/json sorts its members, so the same one is always the same bytes.
type object = map[string]any

// created is the time that every answer claims: answers are the same at any time.
const created = 1767225600

// sentence is the default answer, one token a word.
func sentence() []string {
	return []string{"Hello", " from", " the", " loopback", " adapter", " of", " IOP.", " No", " model", " ran:", " this",
		" text", " is", " always", " the", " same,", " so", " that", " you", " can", " try", " everything", " else."}
}

// words returns n tokens of the sentence, again and again.
func words(n int) []string {
	base := sentence()
	out := make([]string, 0, n)
	for i := range n {
		word := base[i%len(base)]
		if i > 0 && i%len(base) == 0 {
			word = " " + word
		}
		out = append(out, word)
	}
	return out
}

func itoa(n int) string { return strconv.Itoa(n) }
