package upstream

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
)

// MaxRefusal is how much of an answer that refuses a request is worth reading.
const MaxRefusal = 64 << 10

// maxRetryAfter is the longest wait that a provider's word is taken for.
const maxRetryAfter = 24 * time.Hour

// Refused is the failure of a request that the provider answered with a status other than success. body is the
// answer's, as much of it as there is; what it says of the reason is told, without anything that looks like a key.
func Refused(status int, header http.Header, body []byte) *execution.Failure {
	f := execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "provider answered %d", status)
	if text := bodyText(header, body); text != "" {
		f.Text += ": " + text
	}
	if status >= 300 && status < 400 {
		f.Text += "; redirects aren't followed, set base_url to where it leads"
	}
	f.Text = shorten(f.Text, execution.MaxFailureText)
	f.UpstreamStatus = status
	f.RetryAfter = retryAfter(header.Get("Retry-After"), time.Now())
	return f
}

// Reported is the failure of an answer under a success status in which the provider reports an error; object is the
// value of its "error" member.
func Reported(status int, object []byte) *execution.Failure {
	f := execution.Failf(execution.CodeUpstreamError, execution.OriginProvider, "provider reports an error")
	if text := errorText(object, 0); text != "" {
		f.Text = shorten(f.Text+": "+text, execution.MaxFailureText)
	}
	f.UpstreamStatus = status
	return f
}

// IsError reports whether the value of an "error" member says that there is one: some providers put a null there.
func IsError(value []byte) bool {
	switch string(bytes.TrimSpace(value)) {
	case "", "null", "false", `""`, "{}", "[]", "0":
		return false
	}
	return true
}

// bodyText returns what a refusing body says, in one line.
func bodyText(header http.Header, body []byte) string {
	if text := errorText(body, 0); text != "" {
		return text
	}
	if kind := header.Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") {
		return "" // a web page, or bytes
	}
	return redact(string(body))
}

// errorText returns what a JSON value says of an error: itself, or a member that the dialects put it in.
func errorText(value []byte, depth int) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return redact(text)
	}
	if text = typedText(value); text != "" {
		return text
	}
	var object map[string]json.RawMessage
	if depth > 2 || json.Unmarshal(value, &object) != nil {
		return ""
	}
	for _, name := range []string{"error", "message", "detail", "msg"} {
		if found := errorText(object[name], depth+1); len(object[name]) > 0 && found != "" {
			return found
		}
	}
	return ""
}

// typedText returns what an error of the Messages API says, with its word for the kind: overloaded_error tells more than
// "Overloaded".
func typedText(value []byte) string {
	var e struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(value, &e) != nil || e.Type != "error" || e.Error.Type == "" || e.Error.Message == "" {
		return ""
	}
	return redact(e.Error.Type + ": " + e.Error.Message)
}

// redact makes a provider's text fit to be shown: one line, valid, and without words that look like keys.
func redact(text string) string {
	text = text[:min(len(text), 4*execution.MaxFailureText)]
	words := strings.FieldsFunc(strings.ToValidUTF8(text, "?"), func(r rune) bool { return r <= ' ' || r == 0x7f })
	for i, word := range words {
		if i > 0 && strings.EqualFold(words[i-1], "bearer") && len(word) >= minMarked && strings.ContainsAny(word, digits) {
			words[i] = "[redacted]"
			continue
		}
		words[i] = redactKeys(word)
	}
	return strings.Join(words, " ")
}

// redactKeys replaces the parts of a word that look like keys: what begins as those of known services do, and runs of
// letters and digits that are too long to be a name.
func redactKeys(word string) string {
	out, rest := "", word
	for rest != "" {
		n := strings.IndexFunc(rest, func(r rune) bool { return !keyRune(r) })
		switch {
		case n < 0:
			n = len(rest)
		case n == 0:
			_, n = utf8.DecodeRuneInString(rest)
		}
		if looksLikeKey(rest[:n]) {
			out += "[redacted]"
		} else {
			out += rest[:n]
		}
		rest = rest[n:]
	}
	return out
}

func keyRune(r rune) bool {
	return '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || strings.ContainsRune("_-*.+~", r)
}

// The least lengths of what is taken for a key: with a prefix that says so, and without.
const (
	minMarked   = 8
	minUnmarked = 32
	digits      = "0123456789"
)

func looksLikeKey(s string) bool {
	for _, prefix := range []string{"sk-", "sk_", "pk-", "pk_", "rk_", "hf_", "gsk_", "xai-", "ghp_", "gho_", "github_", "AIza", "AKIA", "eyJ", "iop1."} {
		if strings.HasPrefix(s, prefix) && len(s) >= minMarked {
			return true
		}
	}
	for run := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '-' || r == '.' }) {
		if len(run) >= minUnmarked && strings.ContainsAny(run, digits) {
			return true
		}
	}
	return false
}

// shorten cuts s to at most n bytes, between characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	n -= len("…")
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// retryAfter reads the header of that name: seconds or a date; 0 is not told.
func retryAfter(value string, now time.Time) time.Duration {
	if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(maxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now).Round(time.Second), 0), maxRetryAfter)
}

// Compressed is the failure of an answer that can't be read because of its encoding, nil if it can. (ST-10)
func Compressed(status int, header http.Header) *execution.Failure {
	encoding := header.Get("Content-Encoding")
	if encoding == "" || strings.EqualFold(encoding, "identity") {
		return nil
	}
	f := execution.Failf(execution.CodeAdapterDecode, execution.OriginProvider,
		"provider's answer is compressed (%s), which wasn't asked for", shorten(redact(encoding), 32))
	f.UpstreamStatus = status
	return f
}
