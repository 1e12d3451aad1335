package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// callLimit is longer than anything that is promised to a caller may take: the queue's wait, the dead limit, the
	// provider's silence and its answer.
	callLimit = 100 * time.Second
	// backgroundLimit is the same for a background run, which may be detached.
	backgroundLimit = 150 * time.Second
)

// callers ask until ctx ends, and return when all answers are in.
func callers(ctx context.Context, w *world, b *book, o options) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / o.rate))
	defer tick.Stop()
	var all sync.WaitGroup
	for i := range o.callers {
		r := rand.New(rand.NewPCG(o.seed, uint64(i)+uint64(b.epoch())<<32))
		c := &caller{w: w, b: b, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, DisableCompression: true}}}
		all.Go(func() {
			defer c.client.CloseIdleConnections()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				a := newAsk(r, fmt.Sprintf("m%d-%d-%d", b.epoch(), i, n))
				begun := time.Now()
				outcome, wrong := c.call(a)
				b.answered(a, outcome, wrong, time.Since(begun))
			}
		})
	}
	all.Wait()
	b.nextEpoch()
}

// caller is one of those who ask.
type caller struct {
	w      *world
	b      *book
	client *http.Client
}

// The outcomes that a caller sees without a word from the edge.
const (
	served   = "served"
	cut      = "cut"       // in the middle of an answer
	noAnswer = "no answer" // not even a head
	left     = "left"      // the caller itself
)

// call asks and judges the answer. wrong says which promise was broken, "" = none.
func (c *caller) call(a ask) (outcome, wrong string) {
	// Not the load's context: what has begun is answered.
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	hurry := ctx
	if a.leave > 0 {
		var leave context.CancelFunc
		hurry, leave = context.WithTimeout(ctx, a.leave)
		defer leave()
	}
	if a.cancel > 0 {
		defer c.cancelLater(ctx, a)()
	}
	path, body := a.request()
	// Without a GetBody the client can't send it again on its own.
	r, err := http.NewRequestWithContext(hurry, http.MethodPost, "http://"+c.w.http+path, io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		return "", err.Error()
	}
	r.ContentLength = int64(len(body))
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(r)
	if err != nil {
		return unanswered(ctx, hurry, err)
	}
	defer resp.Body.Close()
	got, err := c.takeBody(resp.Body, a)
	switch {
	case ctx.Err() != nil:
		return "hung", fmt.Sprintf("the answer didn't end within %v", callLimit)
	case hurry.Err() != nil:
		return left, ""
	}
	if resp.StatusCode == http.StatusAccepted && a.way == background && err == nil {
		return c.follow(a)
	}
	return judge(a, resp.StatusCode, got, err)
}

func unanswered(ctx, hurry context.Context, err error) (outcome, wrong string) {
	switch {
	case ctx.Err() != nil:
		return "hung", fmt.Sprintf("no answer within %v", callLimit)
	case hurry.Err() != nil:
		return left, ""
	}
	if _, timeout := errors.AsType[net.Error](err); !timeout && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return noAnswer, err.Error()
	}
	return noAnswer, ""
}

// takeBody reads an answer at the caller's pace. What came before an error is returned with it.
func (c *caller) takeBody(body io.Reader, a ask) ([]byte, error) {
	var all bytes.Buffer
	piece := make([]byte, 32<<10)
	for n := 0; ; n++ {
		k, err := body.Read(piece)
		all.Write(piece[:k])
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return all.Bytes(), err
		}
		if a.slow {
			<-time.After(20 * time.Millisecond)
		}
		if a.stalls && n == 3 {
			<-time.After(8 * time.Second) // longer than write_idle
		}
	}
}

// judge looks at an answer that came to its end, or was cut.
func judge(a ask, status int, body []byte, err error) (outcome, wrong string) {
	if status != http.StatusOK {
		if err != nil {
			return cut, ""
		}
		var m told
		if json.Unmarshal(body, &m) != nil || m.Error == nil {
			return fmt.Sprint(status), fmt.Sprintf("status %d without an error object: %.200q", status, body)
		}
		code := codeIn(m.Error)
		return fmt.Sprintf("%d %s", status, code), unexpected(status, code)
	}
	got := a.read(body, err == nil)
	whole := got.text.String() == a.order.text()
	switch {
	case got.nonsense != "":
		return "nonsense", got.nonsense
	case got.good+got.bad > 1:
		return "terminals", fmt.Sprintf("%d terminals", got.good+got.bad)
	case got.good == 1 && !whole:
		return "not whole", fmt.Sprintf("%d of %d bytes, and a terminal that says that this is all", got.text.Len(), len(a.order.text()))
	case got.good == 1:
		return served, "" // also when the connection broke behind it
	case err != nil:
		return cut, ""
	case got.bad == 1:
		return "in its stream: " + got.code, unexpected(0, got.code)
	}
	return "no terminal", fmt.Sprintf("the answer ended cleanly after %d of %d bytes without a terminal", got.text.Len(), len(a.order.text()))
}

// unexpected says of a failure that no fault of this program explains it.
func unexpected(status int, code string) string {
	switch code {
	case "internal", "adapter_panic", "protocol", "bad_request", "adapter_decode", "duplicate_run", "unauthorized", "not_found":
		return "no fault explains " + code
	}
	if status == http.StatusBadRequest || status == http.StatusInternalServerError {
		return fmt.Sprintf("no fault explains status %d", status)
	}
	return ""
}

// cancelLater cancels a run by the API; what it returns waits for that.
func (c *caller) cancelLater(ctx context.Context, a ask) (done func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if pause(ctx, a.cancel) == nil {
			_ = post(ctx, c.w.http, "/iop/v1/runs/"+a.runID()+"/cancel", "") // it may not be there, or be over
		}
	}()
	return func() { <-ended }
}

// follow asks for a background run until it has ended.
func (c *caller) follow(a ask) (outcome, wrong string) {
	ctx, cancel := context.WithTimeout(context.Background(), backgroundLimit)
	defer cancel()
	begun := c.w.edge.starts()
	var view struct {
		State, Code string
		Live        bool
	}
	unknown := 0
	for pause(ctx, 500*time.Millisecond) == nil {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.w.http+"/iop/v1/runs/"+a.runID(), nil)
		if err != nil {
			return "", err.Error()
		}
		resp, err := c.client.Do(r)
		if err != nil {
			continue // the edge is away
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		switch {
		case err != nil:
		case resp.StatusCode == http.StatusNotFound:
			// An edge that was started again learns of the run from its node, when that is back. If that died, too,
			// nobody knows of it any more.
			if unknown++; unknown > 60 {
				if c.w.edge.starts() == begun {
					return "forgotten", "the edge forgot a background run without having been started again"
				}
				return "forgotten", ""
			}
		case json.Unmarshal(text, &view) != nil:
			return "nonsense", fmt.Sprintf("%.200q", text)
		case !view.Live:
			return "background: " + view.Code, unexpected(0, view.Code)
		}
	}
	return "hung", fmt.Sprintf("a background run had no outcome after %v; last it was %q", backgroundLimit, view.State)
}
