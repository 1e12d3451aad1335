package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// way is how a caller asks.
type way string

// The ways: the three dialects' chat paths, and the typed runs.
const (
	openai     way = "openai"
	anthropic  way = "anthropic"
	ollama     way = "ollama"
	typed      way = "run"
	background way = "background run"
)

// ask is one request.
type ask struct {
	way    way
	model  string // and adapter
	stream bool
	order  order
	pad    int           // bytes that the request is longer
	slow   bool          // reads a little now and then
	stalls bool          // stops reading
	leave  time.Duration // 0 = stays to the end
	cancel time.Duration // by the API; 0 = never
}

// newAsk draws a request. The mark tells its prompt from all others.
func newAsk(r *rand.Rand, mark string) ask {
	models := kinds()
	a := ask{model: models[r.IntN(len(models))], order: order{mark: mark, pieces: 1 + r.IntN(40), size: 20 + r.IntN(200)}}
	a.order.pause = time.Duration(r.IntN(60)) * time.Millisecond
	a.stream = r.IntN(3) > 0
	switch n := r.IntN(100); {
	case n < 45: // as it is
		a.way = way(a.model)
	case n < 65: // in another dialect than the provider's
		a.way = way(models[r.IntN(len(models))])
	case n < 85:
		a.way = typed
	default:
		a.way, a.stream = background, false
	}
	switch n := r.IntN(100); {
	case n < 12 && a.way != background:
		a.leave = time.Duration(1+r.IntN(1500)) * time.Millisecond
	case n < 18 && (a.way == background || a.way == typed):
		a.cancel = time.Duration(r.IntN(1500)) * time.Millisecond
	case n < 24:
		a.pad = 64<<10 + r.IntN(3<<20)
	case n < 29 && a.way != background: // a big answer, slowly read
		a.order.pieces, a.order.size, a.order.pause, a.slow = 40, 8<<10+r.IntN(64<<10), 0, true
	case n < 31 && a.way != background:
		a.order.pieces, a.order.size, a.order.pause, a.stalls, a.stream = 40, 512<<10, 0, true, true
	}
	return a
}

// String says what was asked for, for reports.
func (a ask) String() string {
	text := fmt.Sprintf("%s by %s, %d pieces of %d bytes each %v", a.way, a.model, a.order.pieces, a.order.size, a.order.pause)
	for word, is := range map[string]bool{"stream": a.stream, "slow": a.slow, "stalls": a.stalls, "leaves": a.leave > 0, "cancelled": a.cancel > 0, "big": a.pad > 0} {
		if is {
			text += ", " + word
		}
	}
	return text
}

// runID is the id of a typed run: its caller's own.
func (a ask) runID() string { return "soak-" + a.order.mark }

// request returns the path and the body.
func (a ask) request() (path string, body []byte) {
	prompt := a.order.words() + strings.Repeat("y", a.pad)
	messages := []map[string]string{{"role": "user", "content": prompt}}
	fields := map[string]any{"model": a.model, "stream": a.stream, "messages": messages}
	switch a.way {
	case openai:
		path = "/v1/chat/completions"
	case anthropic:
		path = "/v1/messages"
		fields["max_tokens"] = 1000
	case ollama:
		path = "/api/chat"
	default:
		path = "/iop/v1/runs"
		fields = map[string]any{"adapter": a.model, "target": "soak", "messages": messages, "run_id": a.runID()}
		if a.way == background {
			fields["background"] = true
		}
		if a.stream {
			fields["stream"] = true
		}
	}
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err) // of strings and numbers only
	}
	return path, body
}

// answer is what a caller made of the bytes that it got.
type answer struct {
	text     strings.Builder
	good     int    // terminals that say that the answer is whole
	bad      int    // terminals that say that it isn't
	code     string // of a bad one
	nonsense string // what isn't of the dialect
}

// read takes a whole body, or what came of it.
func (a ask) read(body []byte, whole bool) *answer {
	got := &answer{}
	if !a.stream {
		if whole {
			got.object(a.way, body, "")
		}
		return got
	}
	event := ""
	for line := range bytes.Lines(body) {
		if line[len(line)-1] != '\n' && !whole {
			break // cut inside a line
		}
		text := strings.TrimSpace(string(line))
		switch {
		case text == "" || strings.HasPrefix(text, ":"):
		case strings.HasPrefix(text, "event:"):
			event = strings.TrimSpace(text[6:])
		case text == "data: [DONE]" && a.way == openai:
			got.good++
		case strings.HasPrefix(text, "data:"):
			got.object(a.way, []byte(text[5:]), event)
		default:
			got.object(a.way, []byte(text), "")
		}
	}
	return got
}

// told is what any of the dialects may say in one object.
type told struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	Done    bool            `json:"done"`
	Error   json.RawMessage `json:"error"`
	Cause   string          `json:"cause"`
	Finish  string          `json:"finish_reason"`
	Message struct {
		Content json.RawMessage `json:"content"`
	} `json:"message"`
	Content []struct {
		Text string `json:"text"`
	} `json:"content"`
	Delta struct {
		Text string `json:"text"`
	} `json:"delta"`
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Finish *string `json:"finish_reason"`
	} `json:"choices"`
}

// object takes one object of an answer.
func (g *answer) object(w way, raw []byte, event string) {
	var m told
	if err := json.Unmarshal(raw, &m); err != nil {
		g.nonsense = fmt.Sprintf("%v in %.200q", err, raw)
		return
	}
	if m.Error != nil {
		g.bad++
		g.code = codeIn(m.Error)
		return
	}
	switch w {
	case openai:
		for _, c := range m.Choices {
			g.text.WriteString(c.Delta.Content + c.Message.Content)
			if c.Message.Content != "" {
				g.good++ // a whole answer
			}
		}
	case anthropic:
		g.text.WriteString(m.Delta.Text)
		for _, c := range m.Content {
			g.text.WriteString(c.Text)
		}
		if m.Type == "message_stop" || event == "" && m.Type == "message" {
			g.good++
		}
	case ollama:
		var text string
		_ = json.Unmarshal(m.Message.Content, &text) // absent, or a text
		g.text.WriteString(text)
		if m.Done {
			g.good++
		}
	default:
		g.typedEvent(&m, event)
	}
}

func (g *answer) typedEvent(m *told, event string) {
	g.text.WriteString(m.Text)
	switch {
	case event == "complete" || event == "" && m.Finish != "":
		g.good++
	case event == "cancelled" || event == "error":
		g.bad++
		g.code = m.Cause
	}
}

// codeIn finds the code in an error object; dialects that have none show a text.
func codeIn(raw json.RawMessage) string {
	var e struct{ Code, Type string }
	if json.Unmarshal(raw, &e) != nil {
		return "an error in words"
	}
	if e.Code != "" {
		return e.Code
	}
	return e.Type
}
