package adaptertest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// Normalized is what the suite has to know of the way in which a dialect carries normalized runs.
type Normalized struct {
	// Owns reports whether the answer to a recorded request is one that a run may get.
	Owns func(method, path string) bool
	// Recordings says for every recording that the dialect owns what a run makes of it.
	Recordings map[string]Outcome
	// Cut names recordings, streamed and whole, that are small enough to be cut at every byte.
	Cut []string
	// Ended reports whether the beginning of a streamed body holds the dialect's own end.
	Ended func(body []byte) bool
	// Variants returns the same stream in other forms that mean the same, by name; see [SSEVariants].
	Variants func(body []byte) map[string][]byte
	// ContentType is that of a streamed answer.
	ContentType string
	// Say returns the event that tells a piece of text, End those that end an answer well, with a finish reason.
	Say func(text string) string
	End string
	// Streams are bodies that real providers send and no recording has.
	Streams map[string]Stream
	// Limit is how many bytes of one event are read.
	Limit int
}

// Stream is a body, and what a run makes of it.
type Stream struct {
	Body string
	Want Outcome
}

// RunNormalized runs the suite against adapters whose provider is elsewhere.
func RunNormalized(t *testing.T, build Build, n Normalized) {
	s := &runs{build: build, Normalized: n}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"recordings", s.recordings}, {"streams", s.streams}, {"splits", s.splits}, {"variants", s.variants},
		{"cut anywhere", s.cutAnywhere}, {"characters", s.characters}, {"long lines", s.longLines}, {"ends", s.ends},
		{"refusals", s.refusals}, {"cancel", s.cancel}, {"silence", s.silence}, {"emitter", s.emitter},
		{"garbage", s.garbage}, {"requests", s.requests}, {"secrets", s.secrets}, {"at once", s.atOnce}, {"connect", s.connect},
		{"keys", s.keys},
	} {
		t.Run(part.name, part.run)
	}
}

type runs struct {
	build Build
	Normalized
}

func (s *runs) adapter(t *testing.T, p *fakeprovider.Provider) execution.Executor {
	t.Helper()
	return s.at(t, p.URL(), zerolog.Nop())
}

func (s *runs) at(t *testing.T, url string, log zerolog.Logger) execution.Executor {
	t.Helper()
	a, ok := s.build(t, url, log).(execution.Executor)
	if !ok {
		t.Fatal("the adapter runs nothing")
	}
	t.Cleanup(a.Close)
	return a
}

// whole is a streamed answer that ends well, chunked or with its length.
func (s *runs) whole(body string) fakeprovider.Script {
	return fakeprovider.Answer(200, s.ContentType, body)
}

func (s *runs) head() string {
	return "HTTP/1.1 200 OK\r\nContent-Type: " + s.ContentType + "\r\nTransfer-Encoding: chunked\r\n\r\n"
}

// chunked returns text as one chunk of a body.
func chunked(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }

// recordings: every recorded answer becomes the right events and the right end, by one request. (ST-10, ST-18, issue 3)
func (s *runs) recordings(t *testing.T) {
	all, err := fakeprovider.LoadFixtures(s.Owns)
	if err != nil || len(all) == 0 {
		t.Fatal(len(all), err)
	}
	for _, f := range all {
		t.Run(f.Name, func(t *testing.T) {
			want, ok := s.Recordings[f.Name]
			if !ok {
				t.Fatal("has no row in the table")
			}
			p := fakeprovider.New(t, f.Replay(0))
			got, _, err := Execute(t, t.Context(), s.adapter(t, p), Ask("m", "hi"))
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%v\n%s", err, d)
			}
			if n := len(p.Exchanges()); n != 1 {
				t.Errorf("%d requests", n)
			}
		})
	}
	if len(all) != len(s.Recordings) {
		t.Errorf("%d recordings, %d rows", len(all), len(s.Recordings))
	}
}

// streams: the same for what no recording has, whole and byte by byte.
func (s *runs) streams(t *testing.T) {
	for name, k := range s.Streams {
		t.Run(name, func(t *testing.T) {
			p := fakeprovider.New(t, s.whole(k.Body))
			got, first, err := Execute(t, t.Context(), s.adapter(t, p), Ask("m", "hi"))
			if d := cmp.Diff(k.Want, got); d != "" {
				t.Errorf("%v\n%s", err, d)
			}
			p.Use(fakeprovider.Events(0, strings.Split(k.Body, "")...))
			_, again, err := Execute(t, t.Context(), s.adapter(t, p), Ask("m", "hi"))
			if d := cmp.Diff(first.Events(), again.Events()); d != "" {
				t.Errorf("in pieces: %v\n%s", err, d)
			}
		})
	}
}

func (s *runs) load(t *testing.T, name string) (response, body []byte, status int, header http.Header) {
	t.Helper()
	f, err := fakeprovider.LoadFixture(name)
	if err != nil {
		t.Fatal(err)
	}
	status, header, body, _, err = f.Answer()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range f.Parts[0].Reads {
		n += r.N
	}
	return f.Response[:n], body, status, header
}

// splits: how an answer is cut into writes doesn't matter: event for event the same. (ST-03, ST-24)
func (s *runs) splits(t *testing.T) {
	for _, name := range s.Cut {
		response, _, _, _ := s.load(t, name)
		p := fakeprovider.New(t, nil)
		a := s.adapter(t, p)
		var first []execution.Event
		for seed := range uint64(200) {
			p.Use(fakeprovider.Pieces(response, seed))
			_, r, err := Execute(t, t.Context(), a, Ask("m", "hi"))
			if seed == 0 {
				first = r.Events()
			}
			if d := cmp.Diff(first, r.Events()); d != "" || err != nil {
				t.Fatalf("%s, seed %d: %v\n%s", name, seed, err, d)
			}
		}
	}
}

// variants: the same stream in its other forms gives the same events. (ST-07)
func (s *runs) variants(t *testing.T) {
	bodies := map[string]string{"said": s.Say("a \"b\", {c}\n") + s.Say("é") + s.End}
	for name, k := range s.Streams {
		bodies[name] = k.Body
	}
	for _, name := range s.Cut {
		if _, body, _, header := s.load(t, name); header.Get("Content-Type") == s.ContentType {
			bodies[name] = string(body)
		}
	}
	p := fakeprovider.New(t, nil)
	a := s.adapter(t, p)
	for name, body := range bodies {
		p.Use(s.whole(body))
		want, first, _ := Execute(t, t.Context(), a, Ask("m", "hi"))
		for form, other := range s.Variants([]byte(body)) {
			p.Use(s.whole(string(other)))
			got, r, err := Execute(t, t.Context(), a, Ask("m", "hi"))
			if d := cmp.Diff(want, got) + cmp.Diff(first.Events(), r.Events()); d != "" {
				t.Errorf("%s as %s: %v\n%s", name, form, err, d)
			}
		}
	}
}

// cutAnywhere: an answer that ends after k bytes, for every k, by a broken connection and by a clean end: an error, and
// never a completion unless the dialect's own end was there. (ST-17, ST-18)
func (s *runs) cutAnywhere(t *testing.T) {
	for _, name := range s.Cut {
		_, body, _, header := s.load(t, name)
		kind := header.Get("Content-Type")
		p := fakeprovider.New(t, s.whole(string(body)))
		a := s.adapter(t, p)
		want, _, err := Execute(t, t.Context(), a, Ask("m", "hi"))
		if err != nil {
			t.Fatal(name, err)
		}
		for k := range len(body) {
			for _, clean := range []bool{false, true} {
				length := len(body)
				if clean {
					length = k
				}
				p.Use(fakeprovider.Raw(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, length, body[:k])))
				got, _, err := Execute(t, t.Context(), a, Ask("m", "hi"))
				code := execution.CodeUpstreamTruncated
				if kind == s.ContentType && s.Ended(body[:k]) {
					code = execution.CodeOK
				}
				if got.Code != code || !strings.HasPrefix(want.Text, got.Text) || !strings.HasPrefix(want.Reasoning, got.Reasoning) || len(got.Calls) > len(want.Calls) {
					t.Fatalf("%s cut after %d of %d bytes (clean: %v): %v, %+v", name, k, len(body), clean, err, got)
				}
			}
		}
	}
}

// characters: they may be cut anywhere. (ST-03)
func (s *runs) characters(t *testing.T) {
	const text = "那个 🌍 naïve \u0000\u2028"
	p := fakeprovider.New(t, func(x *fakeprovider.Exchange) {
		x.Body()
		x.Print(s.head())
		for _, b := range []byte(s.Say(text) + s.End) {
			x.Print(chunked(string([]byte{b})))
		}
		x.EndChunks()
	})
	if got, _, err := Execute(t, t.Context(), s.adapter(t, p), Ask("m", "hi")); err != nil || got.Text != text {
		t.Errorf("%v: %q", err, got.Text)
	}
}

// longLines: 5 MiB in one event arrive, what is over the limit is an error that names it, and what follows a long line
// is still read. (ST-04)
func (s *runs) longLines(t *testing.T) {
	long := strings.Repeat("0123456789abcdef", 5<<16)
	p := fakeprovider.New(t, s.whole(s.Say(long)+s.Say("next")+s.End))
	a := s.adapter(t, p)
	if got, _, err := Execute(t, t.Context(), a, Ask("m", "hi")); err != nil || got.Text != long+"next" {
		t.Errorf("%v, %d bytes of text", err, len(got.Text))
	}
	p.Use(s.whole(s.Say("first") + s.Say(strings.Repeat("x", s.Limit)) + s.End))
	got, _, err := Execute(t, t.Context(), a, Ask("m", "hi"))
	if got.Code != execution.CodeAdapterDecode || got.Text != "first" || !strings.Contains(fmt.Sprint(err), fmt.Sprint(s.Limit)) {
		t.Errorf("%v after %d bytes of text", err, len(got.Text))
	}
}

// ends: what the connection does before and after the dialect's own end. (ST-17, ST-18, faults row 19)
func (s *runs) ends(t *testing.T) {
	say := s.Say("a") + s.Say("b")
	for name, k := range map[string]struct {
		script fakeprovider.Script
		code   execution.Code
		text   string
	}{
		"clean, nothing said":      {s.whole(""), execution.CodeUpstreamTruncated, ""},
		"clean, without an end":    {s.whole(say), execution.CodeUpstreamTruncated, "ab"},
		"reset, without an end":    {fakeprovider.CutAfter([]byte(s.head()+chunked(say)), 1<<20, true), execution.CodeUpstreamTruncated, ""},
		"reset after the end":      {fakeprovider.CutAfter([]byte(s.head()+chunked(say+s.End)), 1<<20, false), execution.CodeOK, "ab"},
		"silence after the end":    {fakeprovider.Silent(s.head() + chunked(say+s.End)), execution.CodeOK, "ab"},
		"broken framing after it":  {fakeprovider.Raw([]byte(s.head() + chunked(say+s.End) + "nonsense\r\n")), execution.CodeOK, "ab"},
		"broken framing before it": {fakeprovider.Raw([]byte(s.head() + chunked(say) + "nonsense\r\n" + chunked(s.End))), execution.CodeUpstreamError, "ab"},
	} {
		p := fakeprovider.New(t, k.script)
		req := Ask("m", "hi")
		req.Timers.Idle = waitLimit
		got, _, err := Execute(t, t.Context(), s.adapter(t, p), req)
		if got.Code != k.code || !strings.HasSuffix(got.Text, k.text) {
			t.Errorf("%s: %v, text %q", name, err, got.Text)
		}
		Until(t, func() bool { _, open := p.Connections(); return open == 0 })
	}
}
