package reply

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"iop/apps/node/internal/adapters/sse"
	"iop/apps/node/internal/adapters/upstream"
	"iop/packages/go/execution"
)

// words is a dialect whose events are words: end ends an answer, bad is an error of the provider's, anything else is
// said.
type words struct {
	*Reply
	ended bool
}

func (w *words) Event(e sse.Event) error {
	switch string(e.Data) {
	case "end":
		w.ended = true
		return upstream.ErrEnough
	case "soon": // the end comes, and more may come behind it
		w.ended = true
		return nil
	case "bad":
		return upstream.Reported(w.Status(), []byte(`"bad"`))
	}
	if err := w.Start("m"); err != nil {
		return err
	}
	return w.Say(execution.EventDelta, string(e.Data))
}

func (w *words) Object(object []byte) error {
	if strings.Contains(string(object), "bad") {
		return w.Undecodable("bad")
	}
	return w.Say(execution.EventDelta, string(object))
}

func (w *words) End() (string, error) {
	if !w.ended {
		return "", ErrNoEnd
	}
	return "stop", nil
}

var errBroken = execution.Failf(execution.CodeIdleTimeout, execution.OriginProvider, "silent")

// Which of several troubles a run ends with. (ST-17, ST-18)
func TestOutcome(t *testing.T) {
	const events = "text/event-stream"
	for name, k := range map[string]struct {
		status int
		kind   string
		body   string
		broken error
		want   execution.Code
		said   string
	}{
		"whole":                         {200, events, "data: a\n\ndata: end\n\n", nil, execution.CodeOK, "a"},
		"the end, then a broken line":   {200, events, "data: a\n\ndata: soon\n\n", errBroken, execution.CodeOK, "a"},
		"an error behind the end":       {200, events, "data: soon\n\ndata: bad\n\n", nil, execution.CodeUpstreamError, ""},
		"an error, then a broken line":  {200, events, "data: a\n\ndata: bad\n\n", errBroken, execution.CodeUpstreamError, "a"},
		"a broken line":                 {200, events, "data: a\n\n", errBroken, execution.CodeIdleTimeout, "a"},
		"no end":                        {200, events, "data: a\n\n", nil, execution.CodeUpstreamTruncated, "a"},
		"no end, another label":         {200, "text/plain", "data: a\n\n", nil, execution.CodeUpstreamTruncated, "a"},
		"half an event":                 {200, events, "data: a\n", nil, execution.CodeUpstreamTruncated, ""},
		"nothing":                       {200, "text/plain", " \r\n", nil, execution.CodeUpstreamTruncated, ""},
		"no events":                     {200, "text/plain", "hello", nil, execution.CodeAdapterDecode, ""},
		"an object":                     {200, events, ` {"a":1}`, nil, execution.CodeOK, `{"a":1}`},
		"an object, then a broken line": {200, events, `{"a":1} `, errBroken, execution.CodeOK, `{"a":1} `},
		"half an object":                {200, events, `{"a":`, nil, execution.CodeUpstreamTruncated, ""},
		"half an object, broken off":    {200, events, `{"a":`, errBroken, execution.CodeIdleTimeout, ""},
		"no object":                     {200, events, `{"a"}`, nil, execution.CodeAdapterDecode, ""},
		"another object":                {200, events, `{"bad":1}`, nil, execution.CodeAdapterDecode, ""},
		"a refusal":                     {503, events, "data: end\n\n", errBroken, execution.CodeUpstreamError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			said := ""
			w := &words{}
			w.Reply = New("run", func(e execution.Event) error { said += e.Text; return nil }, w, "the word end")
			err := w.Head(k.status, http.Header{"Content-Type": {k.kind}})
			for _, b := range []byte(k.body) {
				if err == nil {
					err = w.Body([]byte{b})
				}
			}
			switch {
			case errors.Is(err, upstream.ErrEnough): // what package upstream makes of it
				err = nil
			case err == nil:
				err = k.broken
			}
			done, err := w.Finish(t.Context(), err)
			code := execution.CodeOK
			if f, ok := errors.AsType[*execution.Failure](err); ok {
				code = f.Code
			}
			if code != k.want || said != k.said || (done.FinishReason == "stop") != (code == execution.CodeOK && w.ended) {
				t.Errorf("%v, %+v, said %q", err, done, said)
			}
		})
	}
}

// Counts that came before the answer's length was known say nothing of it. (ST-28)
func TestCountInput(t *testing.T) {
	var counted execution.Usage
	w := &words{ended: true}
	w.Reply = New("run", func(e execution.Event) error { counted = e.Usage; return nil }, w, "the word end")
	w.CountInput([]byte(`{"input_tokens":3,"output_tokens":1}`))
	if done, err := w.Finish(t.Context(), nil); err != nil || *counted.Input != 3 || counted.Output != nil || done.Usage.Output != nil {
		t.Errorf("%v, %+v", err, done)
	}
	w.Count([]byte(`{"output_tokens":7}`))
	if done, err := w.Finish(t.Context(), nil); err != nil || *counted.Input != 3 || *done.Usage.Output != 7 {
		t.Errorf("%v, %+v", err, done)
	}
}
