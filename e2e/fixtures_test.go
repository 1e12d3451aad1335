package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
)

// refusedHere are the recorded requests that the surfaces answer by themselves: with which status, and why the provider
// doesn't see them.
var refusedHere = []struct {
	names  string // of both providers' recordings, without the directory; a star takes the rest
	status int
	why    string
}{
	{"chat-400-invalid-json", 400, "the model must be found before a node is chosen, so the body must be JSON"},
	{"gzip-request-body", 400, "the model can't be found in a compressed body"},
	{"cors-forbidden-origin", 403, "a foreign page may not call a listener without keys (OL-03 has the case with a key)"},
	{"404-path", 404, "not a path of the surface"},
	{"405-or-404-method", 405, "the surface knows the path, but not so"},
	{"copy", 403, "models are managed where they are"},
	{"delete*", 403, "the same"},
	{"native-pull*", 403, "the same"},
	{"version*", 200, "the edge says which API it speaks"},
	{"tags*", 200, "the edge lists what its nodes offer"},
	{"ollama-0.17.4/gzip-asked", 200, "the same: it asks for /api/tags"},
	{"host-header-foreign", 200, "the same"},
	{"ps*", 200, "the same of what is loaded"},
	{"native-chat-400-invalid-json", 400, "the model must be found before a node is chosen, so the body must be JSON"},
	{"native-chat-400-empty-body", 400, "the same"},
	{"options-cors", 405, "the edge answers browsers itself, by cors.origins"},
	{"root*", 200, "the edge says that it is there"},
	{"models*", 200, "the edge lists what its nodes offer"},
	{"model", 404, "the same for one model; the provider of this test lists none"},
	{"model-404", 404, "the same"},
	{"503-loading-health", 404, notForCallers},
	{"503-slot-busy", 404, notForCallers},
	{"health", 404, notForCallers},
	{"metrics", 404, notForCallers},
	{"slots", 404, notForCallers},
	{"props", 404, "the same; the node asks for it itself"},
	{"native-completion-stream*", 404, "llama.cpp's own API isn't a surface"},
	{"503-loading", 400, noModel},
	{"chat-server-killed-midstream", 400, noModel},
	{"chat-stream-queued-no-bytes-4s", 400, noModel},
	{"chat-stream-sse-ping", 400, noModel},
}

// noModel is why a request is refused that llama-server, which has one model only, answers. With a model it passes.
const noModel = "the body names no model"

// notForCallers is why a request isn't one of a surface's.
const notForCallers = "what a server says of itself isn't its callers' business"

// refusal returns the row of refusedHere for a recording, -1 = there is none.
func refusal(name string) (row, status int, why string) {
	_, short, _ := strings.Cut(name, "/")
	for i, row := range refusedHere {
		prefix, star := strings.CutSuffix(row.names, "*")
		if name == row.names || short == row.names || star && strings.HasPrefix(short, prefix) {
			return i, row.status, row.why
		}
	}
	return -1, 0, ""
}

// recordings are all there are, by provider.
func recordings(t *testing.T) map[string][]*fakeprovider.Fixture {
	t.Helper()
	all, err := fakeprovider.LoadFixtures(func(string, string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	byProvider := map[string][]*fakeprovider.Fixture{}
	for _, f := range all {
		provider, _, _ := strings.Cut(f.Name, "/")
		byProvider[provider] = append(byProvider[provider], f)
	}
	if len(all) != 151 || len(byProvider) != 2 {
		t.Fatalf("%d recordings of %d providers", len(all), len(byProvider))
	}
	return byProvider
}

// No row of refusedHere says of a recording what isn't so any more.
func TestEachReasonIsAboutARecording(t *testing.T) {
	used := map[int]bool{}
	for _, list := range recordings(t) {
		for _, f := range list {
			row, _, _ := refusal(f.Name)
			used[row] = true
		}
	}
	for i, row := range refusedHere {
		if !used[i] {
			t.Errorf("no recording is meant by %q", row.names)
		}
	}
}

// Every recording goes through edge and node, in all three dialects, or is one that the edge answers by itself: what the
// real provider sent is what the caller gets, byte for byte, and what was cut is cut.
func TestRecordingsPassAsTheyAre(t *testing.T) {
	adapters := map[string]string{"llamacpp-0.7.0": "kind: openai, allow_paths: [/v1/messages, /v1/messages/count_tokens]", "ollama-0.17.4": "kind: ollama"}
	for provider, list := range recordings(t) {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			server := fakeprovider.New(t, behindLists(ok))
			r := newRigWith(t, server, setup{Options: harness.Options{
				Adapters: fmt.Sprintf("[{name: gpu, %s, base_url: %q, max_concurrency: 4}]", adapters[provider], server.URL())}})
			passed, refused := 0, 0
			for _, f := range list {
				request := f.Request
				if row, status, why := refusal(f.Name); row >= 0 {
					wantRefused(t, r, f, status, why)
					if refused++; why != noModel {
						continue
					}
					request = withModel(request)
				}
				replay(t, r, f, request)
				passed++
			}
			t.Logf("%d recordings passed through, %d were answered by the edge", passed, refused)
		})
	}
}

// wantRefused asks for what the surface answers by itself.
func wantRefused(t *testing.T, r *rig, f *fakeprovider.Fixture, status int, why string) {
	t.Helper()
	n := len(r.seen())
	a, err := harness.Ask(r.HTTP(), string(f.Request), limit)
	if err != nil || a.StatusCode != status {
		t.Errorf("%s: %v, %v; want %d, since %s", f.Name, a, err, status, why)
	}
	if len(r.seen()) != n {
		t.Errorf("%s: the provider got it, although %s", f.Name, why)
	}
}

// withModel adds a model to a recorded request, and nothing else.
func withModel(request []byte) []byte {
	head, body, _ := strings.Cut(string(request), "\r\n\r\n")
	longer := `{"model":"tiny",` + strings.TrimPrefix(body, "{")
	head = strings.Replace(head, fmt.Sprintf("Content-Length: %d", len(body)), fmt.Sprintf("Content-Length: %d", len(longer)), 1)
	return []byte(head + "\r\n\r\n" + longer)
}

// replay asks for a recording as often as it was asked for when it was made.
func replay(t *testing.T, r *rig, f *fakeprovider.Fixture, request []byte) {
	t.Helper()
	parsed, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
	if err != nil {
		t.Fatal(err)
	}
	sent, err := io.ReadAll(parsed.Body)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := recorded(f)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range answers {
		script := f.Replay(0.02)
		r.provider.Use(behindLists(func(x *fakeprovider.Exchange) {
			x.Number = i + 1 // of the recording's connection; the node has its own
			script(x)
		}))
		// A recording that ended closes its connection; the next request mustn't meet it half closed (HT-14).
		harness.Until(t, limit, "the last connection is closed", func() bool { _, open := r.provider.Connections(); return open == 0 })
		n := len(r.seen())
		a := r.ask(string(request))
		if want == nil { // the provider closed instead of answering
			if a.StatusCode != 502 || !bytes.Contains(a.Bytes, []byte(`"code":"upstream_truncated"`)) {
				t.Errorf("%s, request %d: got %d %s", f.Name, i+1, a.StatusCode, a.Bytes)
			}
			continue
		}
		compare(t, fmt.Sprintf("%s, request %d", f.Name, i+1), a, want)
		got := r.seen()[n:]
		if len(got) != 1 || !bytes.Equal(got[0].Received(), sent) {
			t.Errorf("%s: the provider got %d requests; want one, with the recorded body", f.Name, len(got))
			continue
		}
		sameHead(t, f.Name, got[0], parsed)
	}
}

// sameHead compares the head that a provider got with the one that the caller sent, but for what each hop says itself.
func sameHead(t *testing.T, name string, got *fakeprovider.Exchange, sent *http.Request) {
	t.Helper()
	if got.Method != sent.Method || got.Target != sent.RequestURI {
		t.Errorf("%s: the provider was asked for %s %s", name, got.Method, got.Target)
	}
	if strings.HasPrefix(got.Target, "/api/show") {
		return // the edge asks for it itself
	}
	own := []string{"Authorization", "X-Api-Key", "Origin", "Connection", "Expect", "Content-Length", "Transfer-Encoding"}
	theirs := http.Header{}
	for _, header := range []http.Header{got.Header, sent.Header} {
		rest := header.Clone()
		for _, line := range own {
			rest.Del(line)
		}
		if len(theirs) == 0 {
			theirs = rest
		} else if diff := cmp.Diff(rest, theirs); diff != "" {
			t.Errorf("%s: sent (-), arrived (+):\n%s", name, diff)
		}
	}
}

func compare(t *testing.T, name string, a, want *harness.Answer) {
	t.Helper()
	if a.StatusCode != want.StatusCode || fmt.Sprint(a.Header["Content-Type"]) != fmt.Sprint(want.Header["Content-Type"]) {
		t.Errorf("%s: got %d %q, want %d %q", name, a.StatusCode, a.Header["Content-Type"], want.StatusCode, want.Header["Content-Type"])
	}
	if !bytes.Equal(a.Bytes, want.Bytes) {
		t.Errorf("%s: got body %s, want %s", name, sum(a.Bytes), sum(want.Bytes))
	}
	if (a.Cut != nil) != (want.Cut != nil) {
		t.Errorf("%s: the body ended with %v, the provider's with %v", name, a.Cut, want.Cut)
	}
	if a.Cut != nil && (!errors.Is(a.Cut, io.ErrUnexpectedEOF) || bytes.HasSuffix(a.Raw, []byte("0\r\n\r\n"))) {
		t.Errorf("%s: the cut body ended with %v", name, a.Cut)
	}
}

// recorded returns the answers of a recording, one for each request: nil where the provider only closed.
func recorded(f *fakeprovider.Fixture) ([]*harness.Answer, error) {
	request, _, err := f.Parsed()
	if err != nil {
		return nil, err
	}
	var answers []*harness.Answer
	rest := f.Response
	for _, part := range f.Parts {
		size := 0
		for _, read := range part.Reads {
			size += read.N
		}
		if size == 0 {
			answers = append(answers, nil)
			continue
		}
		a, err := parse(rest[:size], request)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		answers, rest = append(answers, a), rest[size:]
	}
	return answers, nil
}

// parse reads the final answer in raw bytes.
func parse(raw []byte, request *http.Request) (*harness.Answer, error) {
	br := bufio.NewReader(bytes.NewReader(raw))
	for {
		response, err := http.ReadResponse(br, request)
		if err != nil {
			return nil, err
		}
		if response.StatusCode == http.StatusContinue {
			continue
		}
		a := &harness.Answer{Response: response, Raw: raw}
		a.Bytes, a.Cut = io.ReadAll(response.Body)
		return a, nil
	}
}

// Fault 19: a provider's connection that ends after k bytes of its answer: in order for every k, with a reset for some.
// Whatever the caller gets is a prefix of the answer, and it looks complete only when it is.
func TestAnswerCutAfterEveryByte(t *testing.T) {
	f, err := fakeprovider.LoadFixture("llamacpp-0.7.0/chat-stream-tool")
	if err != nil {
		t.Fatal(err)
	}
	request, _, err := f.Parsed()
	if err != nil {
		t.Fatal(err)
	}
	for reset, stride := range map[bool]int{false: 2, true: 7} {
		for half := range 2 {
			t.Run(fmt.Sprintf("reset=%v/%d", reset, half), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, ok, setup{})
				for k := half; k <= len(f.Response) && !t.Failed(); k += stride {
					r.provider.Use(fakeprovider.CutAfter(f.Response, k, reset))
					want, _ := parse(f.Response[:k], request) // nil without a whole head
					cutAt(t, r.ask(string(f.Request)), want, fmt.Sprintf("cut after %d of %d bytes", k, len(f.Response)), reset)
					if k/stride%4 == 3 { // an adapter that fails again and again is left alone for a while
						r.provider.Use(ok)
						wantWhole(t, r.ask(string(f.Request)), 200, `{"object":"chat.completion"}`)
						r.AwaitEnded(limit) // so that it counts before the next failure
					}
				}
			})
		}
	}
}

func cutAt(t *testing.T, a, want *harness.Answer, name string, reset bool) {
	t.Helper()
	if a.StatusCode == http.StatusBadGateway { // a reset may throw away a head that was there
		if want != nil && !reset || a.Cut != nil || !bytes.Contains(a.Bytes, []byte(`"code":"upstream_truncated"`)) {
			t.Errorf("%s: got %d, %v, %s", name, a.StatusCode, a.Cut, a.Bytes)
		}
		return
	}
	switch {
	case want == nil:
		t.Errorf("%s, inside the head: got %d, %v, %s", name, a.StatusCode, a.Cut, a.Bytes)
	case reset && a.Cut != nil: // and the end of a body
		if !bytes.HasPrefix(want.Bytes, a.Bytes) {
			t.Errorf("%s: the caller got what the provider never sent: %s", name, a.Bytes)
		}
	default:
		compare(t, name, a, want)
	}
}
