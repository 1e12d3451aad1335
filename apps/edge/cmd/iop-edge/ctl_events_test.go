package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/packages/go/patience"
)

// screen is what a command prints, read while it is written.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// streams is an edge whose connections for events each follow a script.
type streams struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string // path and Last-Event-ID of each
}

func newStreams(t *testing.T, scripts ...func(w http.ResponseWriter, r *http.Request)) *streams {
	s := &streams{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		n := len(s.asked)
		s.asked = append(s.asked, r.URL.RequestURI()+" "+r.Header.Get("Last-Event-ID"))
		s.mu.Unlock()
		if n >= len(scripts) {
			n = len(scripts) - 1
		}
		scripts[n](w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *streams) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

// says sends text, and goes on to the next script when hold is false.
func says(hold bool, text string) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		if hold {
			<-r.Context().Done()
		}
	}
}

func (s *streams) follower(output string, silence time.Duration, out, errs *screen) *follower {
	return &follower{ctl: &ctl{admin: s.URL, output: output}, path: "/admin/v1/events?", out: out, err: errs, silence: silence, pause: time.Millisecond}
}

// following runs a follower until stop is called, which returns what it returned.
func (s *streams) following(t *testing.T, output string, silence time.Duration) (out, errs *screen, stop func() error) {
	out, errs = &screen{}, &screen{}
	f := s.follower(output, silence, out, errs)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.follow(ctx) }()
	t.Cleanup(cancel)
	return out, errs, func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(patience.Limit):
			t.Fatal("it goes on following")
			return nil
		}
	}
}

// until waits until a text is on the screen.
func (s *screen) until(t *testing.T, text string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience.Limit); !strings.Contains(s.String(), text); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%q doesn't come:\n%s", text, s)
		}
	}
}

const (
	fencedEvent = "retry: 1000\n\nid: ab-7\nevent: fenced\ndata: {\"id\":\"ab-7\",\"at\":\"2026-11-29T13:06:29Z\",\"kind\":\"fenced\",\"node\":\"gpu-1\",\"connection_generation\":7,\"code\":\"lost\",\"text\":\"EOF\"}\n\n: beat\n\n"
	endedEvent  = "id: ab-8\nevent: run_ended\ndata: {\"id\":\"ab-8\",\"at\":\"2026-11-29T13:06:30.5Z\",\"kind\":\"run_ended\",\"node\":\"gpu-1\",\"connection_generation\":7,\"adapter\":\"llama\"," +
		"\"run_id\":\"r\",\"attempt\":2,\"principal\":\"alice\",\"model\":\"m\",\"after_ms\":1500,\"code\":\"ok\"}\n\n"
)

// It goes on by itself over lost connections, from where it was, and says what is missing.
func TestCtlEvents(t *testing.T) {
	s := newStreams(t,
		says(false, fencedEvent),
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		says(false, "event: missed\ndata: {\"kind\":\"missed\",\"missed\":12,\"why\":\"forgotten\"}\n\n"+endedEvent),
		says(true, "event: missed\ndata: {\"kind\":\"missed\",\"missed\":null,\"why\":\"restarted\"}\n\n"),
	)
	out, errs, stop := s.following(t, "table", patience.Limit)
	out.until(t, "restarted")
	if err := stop(); err != nil {
		t.Error(err)
	}
	at := func(s string) string {
		t0, _ := time.Parse(time.RFC3339Nano, s)
		return t0.Local().Format("15:04:05.000")
	}
	want := at("2026-11-29T13:06:29Z") + " fenced               node=gpu-1 generation=7 code=lost EOF\n" +
		"… 12 events are missing here: they were too long ago\n" +
		at("2026-11-29T13:06:30.5Z") + " run_ended            node=gpu-1 generation=7 adapter=llama run=r attempt=2 principal=alice model=m code=ok after=1.5s\n" +
		"… an unknown number of events are missing here: the edge was restarted\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out, want)
	}
	path := "/admin/v1/events? "
	if got := strings.Join(s.requests(), ", "); got != path+", "+path+"ab-7, "+path+"ab-7, "+path+"ab-8" {
		t.Errorf("asked %s", got)
	}
	for _, part := range []string{"the connection to the edge was lost; trying again", "the edge answered 503 Service Unavailable; trying again", "connected again"} {
		if !strings.Contains(errs.String(), part) {
			t.Errorf("it doesn't say %q:\n%s", part, errs)
		}
	}
}

func TestCtlEventsJSON(t *testing.T) {
	s := newStreams(t, says(true, fencedEvent+"event: missed\ndata: {\"kind\":\"missed\",\"missed\":3,\"why\":\"slow\"}\n\n"))
	out, errs, stop := s.following(t, "json", patience.Limit)
	out.until(t, "slow")
	if err := stop(); err != nil || errs.String() != "" {
		t.Errorf("%v %s", err, errs)
	}
	want := `{"id":"ab-7","at":"2026-11-29T13:06:29Z","kind":"fenced","node":"gpu-1","connection_generation":7,"code":"lost","text":"EOF"}` + "\n" +
		`{"kind":"missed","missed":3,"why":"slow"}` + "\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out, want)
	}
}

// A connection on which nothing comes any more is given up.
func TestCtlEventsNoticeSilence(t *testing.T) {
	patience.Widen(t, 200*time.Millisecond, func(silence time.Duration) (keptUp bool) {
		s := newStreams(t, says(true, fencedEvent), says(true, ""), says(true, endedEvent))
		out, errs, done := &screen{}, &screen{}, make(chan error, 1)
		f := s.follower("table", silence, out, errs)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { done <- f.follow(ctx) }()
		patience.Until(t, "the third connection says something, or there was no first", func() bool {
			return strings.Contains(out.String(), "run_ended") || len(done) == 1
		})
		cancel()
		err := patience.Receive(t, "it stops", done)
		t.Logf("%v %s", err, errs)
		// A connection that was given up before the edge had it is one more.
		return f.connected && err == nil && strings.Count(errs.String(), "the edge has fallen silent; trying again") == 2
	})
}

// What another try wouldn't change ends it.
func TestCtlEventsEnd(t *testing.T) {
	refuse := func(status int) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":{"message":"an unknown kind","code":"bad_request"}}`)
		}
	}
	for name, s := range map[string]*streams{"at first": newStreams(t, refuse(400)), "later": newStreams(t, says(false, fencedEvent), refuse(401)),
		"crowded": newStreams(t, refuse(503))} {
		code, _, errs := (&fakeAdmin{Server: s.Server}).ctl("events", "--kind", "a,b", "--kind", "c", "--node", "n", "--last", "5")
		if code != 1 || !strings.HasSuffix(errs, "iop-edge: bad_request: an unknown kind\n") {
			t.Errorf("%s: %d %s", name, code, errs)
		}
		if got := s.requests()[0]; got != "/admin/v1/events?kind=a%2Cb%2Cc&last=5&node=n " {
			t.Errorf("%s: asked %s", name, got)
		}
	}
	s := newStreams(t, refuse(400))
	if code, _, errs := (&fakeAdmin{Server: s.Server}).ctl("events", "--admin", nobody); code != 1 || !strings.Contains(errs, "is listen.admin on, and is this its address?") {
		t.Errorf("nobody there: %d %s", code, errs)
	}
}

// What nodes and callers chose can't steer a terminal.
func TestCtlEventsSteerNoTerminal(t *testing.T) {
	s := newStreams(t, says(true, `data: {"kind":"ready","node":"\u001b[2J\u009b31m\u202ex","text":"\r\ny"}`+"\n\n"))
	out, _, stop := s.following(t, "table", patience.Limit)
	out.until(t, "y\n")
	if err := stop(); err != nil || strings.ContainsAny(out.String(), "\x1b\u009b\u202e\r") {
		t.Errorf("%v %q", err, out)
	}
}
