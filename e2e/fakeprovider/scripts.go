package fakeprovider

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// Answer returns a script that gives one whole answer.
func Answer(status int, contentType, body string, lines ...string) Script {
	return func(x *Exchange) { x.Reply(status, contentType, body, lines...) }
}

// Events returns a script that streams events, each its own chunk, with a pause before each but the first.
func Events(pause time.Duration, events ...string) Script {
	return func(x *Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream")
		for i, e := range events {
			if i > 0 && pause > 0 && !x.Pause(pause) {
				return
			}
			x.Chunk(e)
		}
		x.EndChunks()
	}
}

// Endless returns a script that streams one event each pause until the client leaves.
func Endless(pause time.Duration, event string) Script {
	return func(x *Exchange) {
		x.Body()
		x.BeginStream(200, "text/event-stream")
		x.Chunk(event)
		for x.Pause(pause) {
			x.Chunk(event)
		}
		x.Close()
	}
}

// Raw returns a script that sends bytes as they are. It closes the connection unless they are one whole answer that
// leaves it open: then the next request would meet a connection that is just closing, and sometimes be lost.
func Raw(b []byte) Script {
	open := leavesOpen(b)
	return func(x *Exchange) {
		x.Body()
		_, _ = x.Write(b)
		if !open {
			x.Close()
		}
	}
}

// leavesOpen reports whether b is one whole answer after which a client may ask again on the same connection.
func leavesOpen(b []byte) bool {
	br := bufio.NewReader(bytes.NewReader(b))
	response, err := http.ReadResponse(br, nil)
	if err != nil || response.Close {
		return false
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return false
	}
	_, err = br.ReadByte()
	return err == io.EOF
}

// CutAfter returns a script that sends the first k bytes of b and then ends the connection, with a reset or without.
func CutAfter(b []byte, k int, reset bool) Script {
	return func(x *Exchange) {
		x.Body()
		_, _ = x.Write(b[:min(k, len(b))])
		if reset {
			x.Reset()
		} else {
			x.Close()
		}
	}
}

// Pieces returns a script that does what [Raw] does in pieces of random size, the same ones for the same seed.
func Pieces(b []byte, seed uint64) Script {
	open := leavesOpen(b)
	return func(x *Exchange) {
		x.Body()
		r := rand.New(rand.NewPCG(seed, 1))
		for rest := b; len(rest) > 0; {
			n := min(len(rest), 1+r.IntN(1+r.IntN(600)))
			if _, err := x.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
		if !open {
			x.Close()
		}
	}
}

// Silent returns a script that sends nothing, or the first bytes of an answer and then nothing, until the client
// leaves.
func Silent(first string) Script {
	return func(x *Exchange) {
		x.Body()
		x.Print(first)
		select {
		case <-x.Gone():
		case <-x.provider.done:
		}
		x.Close()
	}
}

// Garbage returns a script that answers with random bytes behind prefix, the same ones for the same seed.
func Garbage(prefix string, seed uint64) Script {
	r := rand.New(rand.NewPCG(seed, 2))
	junk := make([]byte, 1+r.IntN(4000))
	for i := range junk {
		junk[i] = byte(r.Uint32())
	}
	return Raw(append([]byte(prefix), junk...))
}

// Models returns a script that lists models as the OpenAI dialect does.
func Models(names ...string) Script {
	rows := make([]string, len(names))
	for i, n := range names {
		rows[i] = fmt.Sprintf(`{"id":%q,"object":"model","created":1,"owned_by":"fake"}`, n)
	}
	return Answer(200, "application/json", `{"object":"list","data":[`+strings.Join(rows, ",")+`]}`)
}

// Routes returns a script that chooses by "METHOD /path" or "/path", without the query; what isn't named gets a 404.
func Routes(table map[string]Script) Script {
	missing := Answer(404, "application/json", `{"error":{"message":"not found","code":404}}`)
	return func(x *Exchange) {
		path, _, _ := strings.Cut(x.Target, "?")
		for _, key := range []string{x.Method + " " + path, path} {
			if s, ok := table[key]; ok {
				s(x)
				return
			}
		}
		missing(x)
	}
}
