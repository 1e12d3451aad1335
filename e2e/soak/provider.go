package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"iop/e2e/fakeprovider"
)

// ledgerFile is where providers note each prompt that they begin to execute: one line, one write, so that a provider
// that is killed has noted what it began.
const ledgerFile = "executed.txt"

// order is what a prompt tells the provider to do, as the prompt's first words.
type order struct {
	mark   string // of this prompt, and of no other
	pieces int
	pause  time.Duration // before each piece
	size   int           // of each piece, in bytes
}

// words are the prompt's.
func (o order) words() string {
	return fmt.Sprintf("soak %s %d %d %d .", o.mark, o.pieces, o.pause.Milliseconds(), o.size)
}

// piece is the nth piece of the answer: it names its prompt, so that no answer is taken for another's.
func (o order) piece(n int) string {
	head := fmt.Sprintf("%s/%d ", o.mark, n)
	return head + strings.Repeat("x", max(0, o.size-len(head)))
}

// text is the whole answer.
func (o order) text() string {
	var b strings.Builder
	for n := range o.pieces {
		b.WriteString(o.piece(n))
	}
	return b.String()
}

func orderOf(text string) (o order, err error) {
	var word string
	var pause int64
	_, err = fmt.Sscan(text, &word, &o.mark, &o.pieces, &pause, &o.size)
	o.pause = time.Duration(pause) * time.Millisecond
	return o, err
}

// provider speaks all three dialects. It is a process of its own, so that it can be stopped and killed.
type provider struct {
	ledger *os.File
	active atomic.Int64 // requests in work
}

func serveProvider(listen, ledger string) error {
	file, err := os.OpenFile(ledger, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	line, _ := json.Marshal(map[string]string{"message": "provider is listening", "http": listener.Addr().String()})
	fmt.Fprintf(os.Stderr, "%s\n", line)
	return (&http.Server{Handler: &provider{ledger: file}}).Serve(listener)
}

// ServeHTTP implements http.Handler.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d := fakeprovider.DialectOf(r.URL.Path); d != nil && r.Method == http.MethodPost {
		p.active.Add(1)
		defer p.active.Add(-1)
		p.execute(w, r, d)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/soak/active":
		fmt.Fprint(w, p.active.Load())
	case "/v1/models":
		io.WriteString(w, `{"object":"list","data":[{"id":"soak","object":"model"}]}`)
	case "/api/version":
		io.WriteString(w, `{"version":"0.9.9"}`)
	case "/api/tags":
		io.WriteString(w, `{"models":[{"name":"soak:latest","model":"soak:latest","digest":"1"}]}`)
	case "/api/ps":
		io.WriteString(w, `{"models":[]}`)
	default:
		http.NotFound(w, r)
	}
}

func (p *provider) execute(w http.ResponseWriter, r *http.Request, d fakeprovider.Dialect) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the request was cut, and nothing was begun
	}
	asked, err := d.Read(body)
	if err != nil || len(asked.Messages) == 0 || len(asked.Messages[0].Content) == 0 {
		http.Error(w, d.Refusal(400, fmt.Sprint(err)), http.StatusBadRequest)
		return
	}
	o, err := orderOf(asked.Messages[0].Content[0].Text)
	if err != nil {
		http.Error(w, d.Refusal(400, err.Error()), http.StatusBadRequest)
		return
	}
	fmt.Fprintf(p.ledger, "%s\n", o.mark)
	said := &fakeprovider.Said{Model: asked.Model, Finish: "stop", Usage: &fakeprovider.Usage{Input: 7, Output: int64(o.pieces)}}
	for n := range o.pieces {
		said.Pieces = append(said.Pieces, fakeprovider.Piece{Text: o.piece(n)})
	}
	if !asked.Stream {
		if wait(r, o.pause*time.Duration(o.pieces)) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, d.Whole(said))
		}
		return
	}
	w.Header().Set("Content-Type", d.StreamType())
	flush := http.NewResponseController(w)
	for _, piece := range d.Stream(said, asked) {
		if !wait(r, o.pause) {
			return
		}
		if _, err := io.WriteString(w, piece); err != nil || flush.Flush() != nil {
			return
		}
	}
}

// wait waits; false = the client left.
func wait(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}
