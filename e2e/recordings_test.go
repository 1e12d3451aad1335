package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// chatRecording is what a real provider answered to a chat, and what is to be understood of it.
type chatRecording struct {
	*fakeprovider.Fixture
	status int
	told   heard  // by a reader of the provider's own dialect
	code   string // of the failure that it is, "" = the answer is whole
}

// chatRecordings are those of a path.
func chatRecordings(t *testing.T, path string) []*chatRecording {
	t.Helper()
	fixtures, err := fakeprovider.LoadFixtures(func(method, p string) bool { return method == "POST" && p == path })
	if err != nil {
		t.Fatal(err)
	}
	s := speeches()[slices.IndexFunc(speeches(), func(s speech) bool { return s.path == path })]
	var out []*chatRecording
	for _, f := range fixtures {
		status, header, body, whole, err := f.Answer()
		if err != nil {
			t.Fatal(f.Name, err)
		}
		r := &chatRecording{Fixture: f, status: status}
		out = append(out, r)
		if status != 200 {
			r.code = "upstream_error"
			continue
		}
		read := s.whole
		if kind := header.Get("Content-Type"); strings.HasPrefix(kind, s.media) {
			read = s.stream
		}
		r.told, err = read(body, false)
		switch {
		case err != nil && whole:
			t.Fatalf("%s: the test can't read it: %v", f.Name, err)
		case r.told.Failed != "":
			r.code = "upstream_error"
		case !whole || !r.told.Whole:
			r.code = "upstream_truncated"
		}
	}
	return out
}

// Every recorded chat, taken for a run, is what its own dialect's readers make of it: the same text, reasoning, calls, end
// and counts in each caller's dialect, whole and as a stream; and what was refused, cut or broken off is a failure there,
// and never clean.
func TestRecordingsAsRuns(t *testing.T) {
	for _, c := range []struct {
		kind, path                   string
		whole, refused, cut, reports int // recordings
	}{
		{"openai", "/v1/chat/completions", 42, 16, 4, 0}, {"anthropic", "/v1/messages", 9, 2, 0, 0}, {"ollama", "/api/chat", 9, 5, 1, 1},
	} {
		list := chatRecordings(t, c.path)
		t.Run(c.kind, func(t *testing.T) {
			got := [4]int{}
			for _, r := range list {
				switch {
				case r.code == "":
					got[0]++
				case r.status != 200:
					got[1]++
				case r.code == "upstream_truncated":
					got[2]++
				default:
					got[3]++
				}
			}
			if want := [4]int{c.whole, c.refused, c.cut, c.reports}; got != want {
				t.Errorf("%v recordings are whole, refused, cut, and report an error; want %v", got, want)
			}
			k := kinds()[slices.IndexFunc(kinds(), func(k kind) bool { return k.name == c.kind })]
			for _, s := range speeches() {
				if slices.Contains(k.carries, s.path) {
					continue
				}
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					p := newPair(t, s, k, harness.Options{}, 4)
					for _, r := range list {
						for _, stream := range []bool{true, false} {
							p.runs(t, r, chatOf(stream))
						}
					}
				})
			}
		})
	}
}

// runs asks for a run that a recording answers.
func (p *pair) runs(t *testing.T, r *chatRecording, q *fakeprovider.Asked) {
	t.Helper()
	what := fmt.Sprintf("%s, stream %v", r.Name, q.Stream)
	p.says(r.Again())
	a := p.ask(p.request(q))
	line := p.ended(a.Header)
	switch {
	case r.code == "":
		h, err := p.read(a, q.Stream, true)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		want := r.told
		want.Calls = slices.Clone(want.Calls)
		for i := range want.Calls {
			want.Calls[i].Arguments = compacted(want.Calls[i].Arguments)
		}
		if u := want.Usage; u != nil {
			usage := *u
			if want.Usage = &usage; strings.HasPrefix(p.path, "/api/") {
				usage.Cached = 0
			}
			wantLog(t, line, map[string]any{"code": "ok", "input_tokens": u.Input, "output_tokens": u.Output})
		} else {
			noUsage(t, line)
		}
		same(t, what, h, want)
	case q.Stream && r.status == 200:
		p.broken(t, &fault{name: what, code: r.code}, r.told.Text, a)
	default:
		p.wantFailure(t, a, 502, r.code)
		wantLog(t, line, map[string]any{"code": r.code, "origin": "provider", "attempts": 1})
		if r.status != 200 && !strings.Contains(string(a.Bytes), fmt.Sprint(r.status)) {
			t.Errorf("%s: it doesn't say what the provider answered: %s", what, a.Bytes)
		}
	}
}
