package tracing

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"iop/packages/go/config"
	"iop/packages/go/patience"
)

func TestDelivery(t *testing.T) {
	tracer, r := started(t, func(c *Config) {
		c.Gzip, c.Headers = true, map[string]config.Secret{"X-Key": config.NewSecret("k")}
	})
	tracer.Start(Context{}, Internal, "x").End()
	tracer.Close(nil)
	if len(r.Spans()) != 1 {
		t.Fatalf("%d spans arrived", len(r.Spans()))
	}
	if h := r.Headers()[0]; h.Get("X-Key") != "k" || h.Get("Content-Encoding") != "gzip" {
		t.Errorf("posted with %v", h)
	}
}

// Spans arrive without anybody's doing, and a receiver that was busy gets them later.
func TestDeliveryIsTriedAgain(t *testing.T) {
	tracer, r := started(t, func(c *Config) { c.Delay = time.Millisecond })
	var tries atomic.Int32
	r.Answer(func(w http.ResponseWriter, _ *http.Request) {
		tries.Add(1)
		r.Answer(nil)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	arrived := r.Arrived()
	tracer.Start(Context{}, Internal, "x").End()
	patience.Receive(t, "the span", arrived)
	if tries.Load() != 1 || len(r.Spans()) != 1 {
		t.Errorf("%d tries were refused, %d spans arrived", tries.Load(), len(r.Spans()))
	}
}

// A receiver that sends on gets the headers, whoever it sends to doesn't.
func TestNoRedirects(t *testing.T) {
	var elsewhere atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Store(true) }))
	defer other.Close()
	tracer, r := started(t, func(c *Config) { c.Headers = map[string]config.Secret{"X-Key": config.NewSecret("k")} })
	r.Answer(func(w http.ResponseWriter, req *http.Request) {
		http.Redirect(w, req, other.URL, http.StatusTemporaryRedirect)
	})
	tracer.Start(Context{}, Internal, "x").End()
	tracer.Close(nil)
	if elsewhere.Load() {
		t.Error("a redirect was followed")
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

// roundTrip is a way to a receiver.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// hopeless returns a tracer, in a bubble, whose receiver does what way says.
func hopeless(t *testing.T, way roundTrip) (*Tracer, *lines) {
	t.Helper()
	log := &lines{}
	tracer, err := Open(&Config{Endpoint: "http://receiver.test/v1/traces", Service: "test",
		Headers: map[string]config.Secret{"X-Key": config.NewSecret("canary")}}, zerolog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	tracer.client.http.Transport = way
	return tracer, log
}

func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A receiver that takes a post and never answers: spans are made without a wait, many more than fit into the queue, and
// the end isn't held up for more than two seconds.
func TestReceiverThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, log := hopeless(t, hangs)
		begin := time.Now()
		for range 5000 {
			tracer.Start(Context{}, Internal, "x").End()
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("spans waited %v for their receiver", took)
		}
		time.Sleep(time.Second)
		begin = time.Now()
		tracer.Close(nil)
		if took := time.Since(begin); took > closeLimit {
			t.Errorf("the end took %v", took)
		}
		synctest.Wait()
		if n := len(log.all()); n != 1 {
			t.Errorf("%d lines in the log, want 1: %v", n, log.all())
		}
	})
}

// Who has no time to close loses what there is, and doesn't wait.
func TestCloseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, _ := hopeless(t, hangs)
		tracer.Start(Context{}, Internal, "x").End()
		atOnce := make(chan struct{})
		close(atOnce)
		begin := time.Now()
		tracer.Close(atOnce)
		if took := time.Since(begin); took != 0 {
			t.Errorf("the end took %v", took)
		}
	})
}

// A receiver that isn't there isn't waited for at the end, however much there is for it.
func TestCloseWithoutReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		tracer, _ := hopeless(t, func(*http.Request) (*http.Response, error) { tries++; return nil, errors.New("connection refused") })
		for range 2000 {
			tracer.Start(Context{}, Internal, "x").End()
		}
		begin := time.Now()
		tracer.Close(nil)
		if took := time.Since(begin); took != 0 || tries < 2 {
			t.Errorf("the end took %v and %d tries", took, tries)
		}
	})
}

// A receiver that isn't there, for ten minutes: the log says so once a minute at most, says how much was lost, and
// never what the headers hold.
func TestReceiverThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, log := hopeless(t, func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") })
		for range 600 {
			tracer.Start(Context{}, Internal, "x").End()
			time.Sleep(time.Second)
		}
		tracer.Close(nil)
		synctest.Wait()
		all := log.all()
		if n := len(all); n < 2 || n > 10 {
			t.Errorf("%d lines in the log of ten minutes", n)
		}
		if text := strings.Join(all, "\n"); strings.Contains(text, "canary") || !strings.Contains(text, `"spans_lost":`) {
			t.Errorf("the log says %s", text)
		}
	})
}
