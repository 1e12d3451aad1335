package fakeprovider

import (
	"encoding/json"
	"slices"
	"strings"
)

// Said is what a model says in one answer, in whatever dialect it is told.
type Said struct {
	Model  string
	Pieces []Piece
	Finish string // stop, length, tool_calls or content_filter
	Usage  *Usage // nil = the provider doesn't tell
}

// Usage counts tokens.
type Usage struct{ Input, Output, Cached int64 } // Cached is of Input

// Piece is a piece of an answer: of its reasoning, of its text, or of a call.
type Piece struct {
	Reasoning string
	Text      string
	Call      int    // which call Arguments are of
	ID, Name  string // of a call that begins
	Arguments string
}

// Call is a whole call of a tool.
type Call struct{ ID, Name, Arguments string } // Arguments is a JSON object as text

// Text returns the answer's whole text.
func (s *Said) Text() string { return s.join(func(p Piece) string { return p.Text }) }

// Reasoning returns all that the model thought.
func (s *Said) Reasoning() string { return s.join(func(p Piece) string { return p.Reasoning }) }

func (s *Said) join(of func(Piece) string) string {
	var b strings.Builder
	for _, p := range s.Pieces {
		b.WriteString(of(p))
	}
	return b.String()
}

// Calls returns the answer's calls in the order in which they began.
func (s *Said) Calls() []Call {
	var calls []Call
	for _, p := range s.Pieces {
		if p.ID != "" {
			calls = append(calls, Call{ID: p.ID, Name: p.Name})
		}
		if p.ID != "" || p.Arguments != "" {
			calls[p.Call].Arguments += p.Arguments
		}
	}
	return calls
}

// inTurn returns the pieces with those of one call behind each other, as dialects have them that tell one thing after
// the other.
func (s *Said) inTurn() []Piece {
	pieces := slices.Clone(s.Pieces)
	rank := func(p Piece) int {
		if p.ID == "" && p.Arguments == "" {
			return 0
		}
		return p.Call + 1
	}
	slices.SortStableFunc(pieces, func(a, b Piece) int { return rank(a) - rank(b) })
	return pieces
}

// Dialect is a chat API that a provider speaks: what it understands and what its answers look like.
type Dialect interface {
	// Read reads the body of a request. What isn't of the dialect is an error: each member has to be one that it knows.
	Read(body []byte) (*Asked, error)
	// Whole is an answer that isn't streamed.
	Whole(s *Said) string
	// Stream is a streamed answer, piece by piece, the marks of its end at the last.
	Stream(s *Said, q *Asked) []string
	// StreamType is the content type of a stream.
	StreamType() string
	// Refusal is the body of an answer with an error status.
	Refusal(status int, text string) string
	// Failure is the piece of a stream in which the provider reports that it failed.
	Failure(text string) string
}

// DialectOf returns the dialect that a path belongs to, nil if it isn't one for chats.
func DialectOf(path string) Dialect {
	switch path {
	case "/v1/chat/completions":
		return OpenAI{}
	case "/v1/messages":
		return Anthropic{}
	case "/api/chat":
		return Ollama{}
	case "/api/generate":
		return Ollama{Generate: true}
	}
	return nil
}

// DialectOf returns the dialect that the request is in, nil if it isn't a chat.
func (x *Exchange) DialectOf() Dialect {
	path, _, _ := strings.Cut(x.Target, "?")
	return DialectOf(path)
}

// Speak returns a script that answers chat requests with what a model says, each in the dialect of its path. A request
// that isn't of that dialect is refused with a 400 that says why.
func Speak(s *Said) Script {
	return speak(func(x *Exchange, d Dialect, q *Asked) {
		if !q.Stream {
			x.Reply(200, "application/json", d.Whole(s))
			return
		}
		x.BeginStream(200, d.StreamType())
		for _, piece := range d.Stream(s, q) {
			x.Chunk(piece)
		}
		x.EndChunks()
	})
}

// Breaks returns a script that answers as [Speak] does, but always with a stream, tells as many pieces as its dialect is
// to tell, and leaves the rest to then.
func Breaks(s *Said, n func(d Dialect) int, then func(x *Exchange, d Dialect)) Script {
	return speak(func(x *Exchange, d Dialect, q *Asked) {
		x.BeginStream(200, d.StreamType())
		for _, piece := range d.Stream(s, q)[:n(d)] {
			x.Chunk(piece)
		}
		then(x, d)
	})
}

// Refuse returns a script that answers chat requests with an error status, each in the dialect of its path.
func Refuse(status int, text string, lines ...string) Script {
	return func(x *Exchange) {
		d := x.DialectOf()
		if d == nil {
			x.Reply(status, "application/json", OpenAI{}.Refusal(status, text), lines...)
			return
		}
		x.Reply(status, "application/json", d.Refusal(status, text), lines...)
	}
}

func speak(answer func(x *Exchange, d Dialect, q *Asked)) Script {
	return func(x *Exchange) {
		d := x.DialectOf()
		if d == nil {
			x.Reply(404, "text/plain", "404 page not found")
			return
		}
		q, err := d.Read(x.Body())
		if err != nil {
			x.Reply(400, "application/json", d.Refusal(400, "not of this dialect: "+err.Error()))
			return
		}
		answer(x, d, q)
	}
}

// OllamaLists returns what an Ollama answers to a node's questions: a script for each, by method and path. Of each model
// the list says that it isn't loaded.
func OllamaLists(models ...string) map[string]Script {
	rows := make([]string, len(models))
	for i, name := range models {
		rows[i] = `{"name":` + quote(name) + `,"model":` + quote(name) + `,"digest":"d` + quote(name)[1:] + `,"size":5,"details":{"family":"fake"}}`
	}
	const kind = "application/json; charset=utf-8"
	return map[string]Script{
		"GET /api/version": Answer(200, kind, `{"version":"0.17.4"}`),
		"GET /api/tags":    Answer(200, kind, `{"models":[`+strings.Join(rows, ",")+`]}`),
		"GET /api/ps":      Answer(200, kind, `{"models":[]}`),
		"POST /api/show":   Answer(200, kind, `{"model_info":{"general.architecture":"fake","fake.context_length":4096}}`),
	}
}

// quote spells a text as JSON.
func quote(s string) string { return encode(s) }

// encode spells v as JSON. It is given what can be.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// object is JSON with its members in the alphabet's order.
type object map[string]any
