package upstream_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/apps/node/internal/adapters/upstream"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

func TestRefusedTellsWhatTheProviderSays(t *testing.T) {
	asJSON := http.Header{"Content-Type": {"application/json"}}
	for body, want := range map[string]string{
		`{"error":{"message":"model 'nope' not found","type":"api_error","code":null}}`:   ": model 'nope' not found",
		`{"error":"model 'nope' not found"}`:                                              ": model 'nope' not found",
		`{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`:     ": overloaded_error: Overloaded",
		`{"object":"error","message":"bad","code":400}`:                                   ": bad",
		`{"detail":"Not Found"}`:                                                          ": Not Found",
		`{"error":{"error":{"error":{"error":"too deep"}}}}`:                              "",
		`{"error":{"code":7}}`:                                                            "",
		`{"error":{"message":"a\n\tb\u0000c "}}`:                                          ": a b c",
		`{"error":{"message":"` + strings.Repeat("é", 400) + `"}}`:                        ": " + strings.Repeat("é", 243) + "…",
		`{"error":{"message":"Incorrect API key provided: sk-proj-abc***xyz. See docs"}}`: ": Incorrect API key provided: [redacted] See docs",
		`{"error":{"message":"header 'Authorization: Bearer abc.def9' is wrong"}}`:        ": header 'Authorization: Bearer [redacted] is wrong",
		`{"error":{"message":"missing bearer token"}}`:                                    ": missing bearer token",
		`{"error":{"message":"no Qwen/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M here"}}`:     ": no Qwen/Qwen2.5-Coder-32B-Instruct-GGUF:Q4_K_M here",
		`{"error":{"message":"token=0123456789abcdef0123456789abcdef!"}}`:                 ": token=[redacted]!",
		`{"error":{"message":"(AIzaSyA-1234567)"}}`:                                       ": ([redacted])",
		"not JSON": "",
		"":         "",
	} {
		f := upstream.Refused(404, asJSON, []byte(body))
		if f.Text != "provider answered 404"+want || f.Code != execution.CodeUpstreamError || f.Origin != execution.OriginProvider ||
			f.UpstreamStatus != 404 || f.NothingSent || len(f.Text) > execution.MaxFailureText || !utf8.ValidString(f.Text) {
			t.Errorf("%s\n%+v\nwant %q", body, f, want)
		}
	}
	plain := http.Header{"Content-Type": {"text/plain; charset=utf-8"}}
	if f := upstream.Refused(404, plain, []byte("404 page\xff not found\n")); f.Text != "provider answered 404: 404 page? not found" {
		t.Error(f.Text)
	}
	if f := upstream.Refused(502, http.Header{"Content-Type": {"text/html"}}, []byte("<html>")); f.Text != "provider answered 502" {
		t.Error(f.Text)
	}
	if f := upstream.Refused(301, nil, nil); !strings.Contains(f.Text, "set base_url") {
		t.Error(f.Text)
	}
}

func TestRetryAfter(t *testing.T) {
	soon := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
	for value, want := range map[string][2]time.Duration{
		"7": {7 * time.Second, 7 * time.Second}, "": {}, "-1": {}, "soon": {}, "1.5": {}, "99999999999999999999": {},
		"9999999999": {24 * time.Hour, 24 * time.Hour}, soon: {80 * time.Second, 91 * time.Second}, "Sun, 06 Nov 1994 08:49:37 GMT": {},
	} {
		if got := upstream.Refused(429, http.Header{"Retry-After": {value}}, nil).RetryAfter; got < want[0] || got > want[1] {
			t.Errorf("%q: %v, want %v", value, got, want)
		}
	}
}

func TestReportedErrors(t *testing.T) {
	for value, want := range map[string]string{
		`{"message":"boom","code":500}`: ": boom", `"boom"`: ": boom", `7`: "", `{"x":1}`: "", `true`: "",
		`{"message":"key sk-0123456789"}`: ": key [redacted]",
	} {
		f := upstream.Reported(200, []byte(value))
		if !upstream.IsError([]byte(value)) || f.Text != "provider reports an error"+want || f.UpstreamStatus != 200 || f.Code != execution.CodeUpstreamError {
			t.Errorf("%s: %+v", value, f)
		}
	}
	for _, value := range []string{"", "null", " null ", `""`, "false", "{}", "[]", "0"} {
		if upstream.IsError([]byte(value)) {
			t.Errorf("%q is taken for an error", value)
		}
	}
}

// Whatever a provider answers: no panic, a bounded and valid text, and no key.
func FuzzRefused(f *testing.F) {
	f.Add([]byte(`{"error":{"message":"x sk-0123456789"}}`), "text/plain", "7")
	f.Add([]byte("\xff bearer a1234567"), "application/json", "Sun, 06 Nov 1994 08:49:37 GMT")
	f.Fuzz(func(t *testing.T, body []byte, kind, after string) {
		got := upstream.Refused(500, http.Header{"Content-Type": {kind}, "Retry-After": {after}}, body)
		if len(got.Text) > execution.MaxFailureText || !utf8.ValidString(got.Text) || strings.ContainsAny(got.Text, "\n\r\x00") || got.RetryAfter < 0 {
			t.Fatalf("%+v", got)
		}
		got = upstream.Reported(200, append(body, " sk-0123456789"...))
		if strings.Contains(got.Text, "sk-0123456789") {
			t.Fatal(got.Text)
		}
	})
}

// enough is a sink that stops at a mark.
type enough struct {
	*adaptertest.Recorder
	mark string
}

func (e enough) Body(p []byte) error {
	if err := e.Recorder.Body(p); err != nil {
		return err
	}
	if bytes.Contains(e.Bytes(), []byte(e.mark)) {
		return fmt.Errorf("seen it: %w", upstream.ErrEnough)
	}
	return nil
}

// A sink that has enough ends the exchange well. On https:// the connection is kept when the end comes with the mark;
// nobody waits for an end that doesn't come.
func TestEnough(t *testing.T) {
	const mark = "data: [DONE]\n\n"
	stream := func(after func(x *fakeprovider.Exchange)) fakeprovider.Script {
		return func(x *fakeprovider.Exchange) {
			x.Body()
			x.BeginStream(200, "text/event-stream")
			x.Chunk(mark)
			after(x)
		}
	}
	cases := map[string]struct {
		script fakeprovider.Script
		tls    bool
		want   int // connections for 3 requests
	}{
		"https, whole":   {stream(func(x *fakeprovider.Exchange) { x.EndChunks() }), true, 1},
		"https, silence": {stream(func(x *fakeprovider.Exchange) { <-x.Gone() }), true, 3},
		"https, more":    {stream(func(x *fakeprovider.Exchange) { x.Chunk(strings.Repeat("x", 9000)); x.EndChunks() }), true, 3},
		"https, cut":     {stream(func(x *fakeprovider.Exchange) { x.Close() }), true, 3},
		"http, whole":    {stream(func(x *fakeprovider.Exchange) { x.EndChunks() }), false, 3},
		"http, silence":  {stream(func(x *fakeprovider.Exchange) { <-x.Gone() }), false, 3},
		"http, length":   {fakeprovider.Answer(200, "text/event-stream", mark), false, 1},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			start := fakeprovider.New
			if k.tls {
				start = fakeprovider.NewTLS
			}
			p := start(t, k.script)
			c := client(t, p.URL(), func(cfg *upstream.Config) { cfg.RootCAs = p.Roots() })
			c.KeepIdle(time.Minute)
			c.NoRest()
			if k.want == 1 {
				c.AwaitEnd(patience.Limit)
			}
			for range 3 {
				began := time.Now()
				r := adaptertest.NewRecorder()
				if err := c.Tunnel(t.Context(), chat(), enough{r, mark}); err != nil || string(r.Bytes()) != mark {
					t.Fatalf("%v, %q", err, r.Bytes())
				}
				if took := time.Since(began); took > patience.Limit/2 {
					t.Errorf("it took %v", took)
				}
			}
			if opened, _ := p.Connections(); opened != k.want {
				t.Errorf("%d connections, want %d", opened, k.want)
			}
		})
	}
}
