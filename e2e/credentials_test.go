package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/e2e/harness"
	"iop/packages/go/config"
)

// principals is the configuration of one caller with this key.
func principals(key string) string {
	return fmt.Sprintf("[{id: alice, key_hashes: [%x]}]", config.HashSecret(key))
}

// CR-01, redirects
func TestRedirectIsReturnedAndNotFollowed(t *testing.T) {
	t.Parallel()
	sink := harness.NewSilent(t)
	location := "http://" + sink.Addr().String() + "/v1/chat/completions"
	r := newRig(t, nil, setup{Options: harness.Options{Principals: principals("caller-key-1")}})
	for _, status := range []int{301, 302, 303, 307, 308} {
		r.provider.Use(fakeprovider.Answer(status, "text/html", "moved", "Location: "+location))
		a := r.ask(chat("Authorization: Bearer caller-key-1"))
		wantWhole(t, a, status, "moved")
		if a.Header.Get("Location") != location || bytes.Contains(a.Raw, []byte("caller-key-1")) {
			t.Errorf("the caller got\n%s", a.Raw)
		}
	}
	if n := len(r.seen()); n != 5 {
		t.Errorf("the provider saw %d requests", n)
	}
}

// CR-03, without a provider secret (slots come later)
func TestCallersKeysStayAtTheEdge(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{Options: harness.Options{Principals: principals("client-1")}})
	private := []string{"x-api-key: client-1", "api-key: client-1", "X_Api_Key: client-2", "Cookie: session=client-2", "Cookie2: client-2",
		"Proxy-Authorization: Basic client-2", "X-Goog-Api-Key: client-2", "X-Auth-Token: client-2", "X-IOP-Session: client-2"}
	a := r.ask(chat(append(private, "Authorization: Bearer client-1", "OpenAI-Organization: kept")...))
	wantWhole(t, a, 200, `{"object":"chat.completion"}`)
	// The same key in the other places where the edge takes one.
	for _, name := range []string{"x-api-key", "api-key"} {
		wantWhole(t, r.ask(chat(name+": client-1")), 200, `{"object":"chat.completion"}`)
	}
	for _, x := range r.seen() {
		if bytes.Contains(x.Head, []byte("client-")) {
			t.Errorf("the provider got\n%s", x.Head)
		}
	}
	if got := r.seen()[0].Header.Get("Openai-Organization"); got != "kept" {
		t.Errorf("a header that is nobody's key didn't pass: %q", got)
	}
}

// CR-07, the callers' half
func TestRefusedKeyIsRepeatedNowhere(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{Options: harness.Options{Principals: principals("right-key-0123456789")}})
	const secret = "Wr0ngSecret"
	for name, header := range map[string]string{
		"unknown":           "Authorization: Bearer " + secret,
		"two blanks":        "Authorization: Bearer  " + secret,
		"leading tab":       "Authorization: \tBearer\t" + secret,
		"folded line":       "Authorization: Bearer " + secret + "\r\n " + secret,
		"carriage return":   "Authorization: Bearer " + secret + "\r" + secret,
		"NUL":               "Authorization: Bearer " + secret + "\x00" + secret,
		"8 KiB":             "Authorization: Bearer " + strings.Repeat(secret, 745),
		"over the limit":    "Authorization: Bearer " + strings.Repeat(secret, 6000),
		"another scheme":    "Authorization: Basic " + secret,
		"no scheme":         "Authorization: " + secret,
		"x-api-key":         "x-api-key: " + secret,
		"two keys":          "api-key: right-key-0123456789\r\napi-key: " + secret,
		"the right one, +1": "Authorization: Bearer right-key-0123456789x" + secret,
	} {
		a := r.ask(chat(header))
		switch a.StatusCode {
		case http.StatusUnauthorized:
			if a.Header.Get("WWW-Authenticate") == "" || !bytes.Contains(a.Bytes, []byte(`"code":"unauthorized"`)) {
				t.Errorf("%s: %s", name, a.Raw)
			}
		case http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge: // not HTTP, or too long
		default:
			t.Errorf("%s: got %d", name, a.StatusCode)
		}
		if hasPartOf(a.Raw, secret) {
			t.Errorf("%s: the answer repeats the key:\n%s", name, a.Raw)
		}
	}
	for _, l := range []*harness.Log{r.Log, r.node.Log} {
		if log := l.Tail(1 << 30); hasPartOf([]byte(log), secret) || strings.Contains(log, "right-key") {
			t.Errorf("a log repeats a key:\n%s", log)
		}
	}
	if n := len(r.seen()); n != 0 {
		t.Errorf("the provider saw %d requests", n)
	}
}

// hasPartOf reports whether any 8 characters of secret stand in text.
func hasPartOf(text []byte, secret string) bool {
	for i := range len(secret) - 7 {
		if bytes.Contains(text, []byte(secret[i:i+8])) {
			return true
		}
	}
	return false
}

// CR-09
func TestCallerCannotNameTheHost(t *testing.T) {
	t.Parallel()
	sink := harness.NewSilent(t)
	evil := sink.Addr().String()
	r := newRig(t, ok, setup{})
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"} {
		post := func(target, body string, headers ...string) string {
			return harness.Post(target, body, headers...)
		}
		refused := map[string]string{
			"absolute":        post("http://"+evil+path, chatBody),
			"absolute, TLS":   post("https://"+evil+path, chatBody),
			"other scheme":    post("file://"+evil+path, chatBody),
			"doubled slash":   post("//"+evil+path, chatBody),
			"dots":            post("/v1/..//"+evil, chatBody),
			"user":            post("/@"+evil+path, chatBody),
			"user, no slash":  post("@"+evil+path, chatBody),
			"backslash":       post(`/\`+evil+path, chatBody),
			"escaped slashes": post("/%2f%2f"+evil+path, chatBody),
		}
		for name, request := range refused {
			if a := r.ask(request); a.StatusCode/100 != 4 {
				t.Errorf("%s %s: got %d", path, name, a.StatusCode)
			}
		}
		if n := len(r.seen()); n != 0 {
			t.Fatalf("the provider got\n%s", r.seen()[0].Head)
		}
	}

	fields := fmt.Sprintf(`{"model":"m","base_url":"http://%[1]s","api_base":"http://%[1]s","url":"http://%[1]s","host":"%[1]s"}`, evil)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"} {
		n := len(r.seen())
		a := r.ask(harness.Post(path, fields, "Host: "+evil, "X-Forwarded-Host: "+evil, "Forwarded: host="+evil,
			"X-Forwarded-Server: "+evil, "X-Original-URL: http://"+evil+"/", "X-Portkey-Custom-Host: http://"+evil))
		wantWhole(t, a, 200, `{"object":"chat.completion"}`)
		got := r.seen()[n]
		if got.Host != r.provider.Addr() || got.Target != path {
			t.Errorf("the provider got\n%s", got.Head)
		}
		for _, name := range []string{"X-Forwarded-Host", "Forwarded", "X-Forwarded-Server"} {
			if got.Header.Get(name) != "" {
				t.Errorf("the provider got %s", name)
			}
		}
		sameBody(t, got.Received(), fields)
	}
	for _, path := range []string{"/v1/models", "/v1/models/m"} { // answered by the edge
		if a := r.ask("GET http://" + evil + path + " HTTP/1.1\r\nHost: " + evil + "\r\n\r\n"); a.StatusCode != 400 {
			t.Errorf("%s: got %d", path, a.StatusCode)
		}
	}
}

// HT-15 through the OpenAI surface: a provider must see none of what two programs could read differently, nor a path
// that the surface doesn't have.
func TestPathsThatNobodyMayAskFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, ok, setup{})
	for _, path := range []string{
		"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/API/delete", "/api/delete?", `/api/\delete`,
		"/v1/chat/../chat/completions", "/v1/%2e%2e/v1/chat/completions", "//v1/chat/completions", "/v1%2fchat/completions",
		"/v1/chat%2fcompletions", "/v1/chat%2f..%2fcompletions", "/V1/chat/completions", "/v1/Chat/Completions",
		`/v1/\chat/completions`, "/v1/chat//completions", "/v1/chat/./completions", "/v1/chat/completions/", "/v1/chat/completions;x=1",
		"/v1/chat/completions%00", "/v1/chat/completions%3f", "/v1/chat/completions#x", "/./v1/chat/completions",
		"/v1/models/../chat/completions", "/v1/models/%2e%2e/chat/completions", "/v1/audio/speech", "/v1/messages", "*",
	} {
		a := r.ask(harness.Post(path, chatBody))
		switch a.StatusCode {
		case http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed:
		default:
			t.Errorf("%s: got %d", path, a.StatusCode)
		}
	}
	if seen := r.seen(); len(seen) != 0 {
		t.Errorf("the provider got\n%s", seen[0].Head)
	}
}
