package credential

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"iop/packages/go/patience"
)

func scannerOf(t testing.TB, value string) *Scanner {
	t.Helper()
	k, err := newKey(make([]byte, installSize), []byte(value))
	check(t, err)
	return &Scanner{key: k}
}

// repeated are ways in which a provider repeats a key.
func repeated(key string) map[string]string {
	quoted, _ := json.Marshal("a" + key + "b")
	var plain strings.Builder
	e := json.NewEncoder(&plain)
	e.SetEscapeHTML(false)
	_ = e.Encode(key)
	return map[string]string{
		"as it is": key, "in a sentence": "Incorrect API key provided: " + key + ". You can find", "as a header": "Authorization: Bearer " + key,
		"in a query": "/v1?x=1&key=" + url.QueryEscape(key) + "&y", "in a path": url.PathEscape(key), "in a lower-case query": strings.ToLower(url.QueryEscape("&&")) + lowerEscapes(key),
		"in JSON": string(quoted), "in JSON of another kind": strings.ReplaceAll(plain.String(), "/", `\/`), "in JSON without HTML": plain.String(),
		"base64": base64.StdEncoding.EncodeToString([]byte("Bearer " + key)), "base64 of 1 before": base64.StdEncoding.EncodeToString([]byte("x" + key + "yz")),
		"base64 of 2 before": base64.URLEncoding.EncodeToString([]byte("xx" + key)), "in HTML": html.EscapeString(key), "in a template": strings.ReplaceAll(html.EscapeString(key), "+", "&#43;"),
		"in Gson's JSON": strings.NewReplacer("=", `\u003d`, "'", `\u0027`).Replace(jsonOf(key)),
		"basic auth":     base64.RawURLEncoding.EncodeToString([]byte("user:" + key + ":x")),
	}
}

func jsonOf(key string) string {
	b, _ := json.Marshal(key)
	return string(b)
}

func lowerEscapes(key string) string {
	var b strings.Builder
	for _, c := range []byte(key) {
		if e := url.QueryEscape(string(c)); len(e) > 1 {
			b.WriteString(strings.ToLower(e))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// CR-05, E46 the edge's half: whichever way a key comes back, in a header, a text or a body, it is found.
func TestScannerFinds(t *testing.T) {
	for _, key := range []string{keyA, "12345678", `a"b\c/d<e>f&g+h=i`, strings.Repeat("/+", 2048), "aaaaaaaaab", "abababababac"} {
		s := scannerOf(t, key)
		for name, text := range repeated(key) {
			if !s.Text(text) || !s.Text(text+text[:1]) || !s.Head(http.Header{"X": {"a", text}}) {
				t.Errorf("%.12q %s isn't found", key, name)
			}
			body := scannerOf(t, key)
			out, reflected := body.Pass([]byte("data: " + text + "\n\n"))
			if !reflected || len(out) > 0 || len(body.Rest()) > 0 {
				t.Errorf("%.12q %s in a body: %d bytes got out", key, name, len(out))
			}
		}
		for name, text := range repeated(key[:min(len(key), 64)]) {
			body := scannerOf(t, key[:min(len(key), 64)])
			text = "data: " + text + "\n\n"
			begins, ends := 0, len(text)+1 // of the form that is complete first
			for _, form := range body.key.forms() {
				if at := strings.Index(text, string(form)); at >= 0 && at+len(form) < ends {
					begins, ends = at, at+len(form)
				}
			}
			got, found := 0, false
			for i := 0; i < len(text) && !found; i++ {
				var out []byte
				out, found = body.Pass([]byte(text[i : i+1]))
				got += len(out)
			}
			if !found || got > begins {
				t.Errorf("%.12q %s, byte by byte: found %v, %d bytes got out of %d before it", key, name, found, got, begins)
			}
		}
		if !s.Head(http.Header{http.CanonicalHeaderKey("x-" + key): {""}}) {
			t.Errorf("%.12q as a name isn't found", key)
		}
		for _, text := range []string{"", "nothing", key[:len(key)-1], key[1:], key[1:] + key[:len(key)-1]} {
			if strings.Contains(text, key) {
				continue
			}
			if s.Text(text) || s.Head(http.Header{"X-Request-Id": {text}}) {
				t.Errorf("%.12q is found in %.40q", key, text)
			}
		}
	}
}

// However a body is cut into pieces: without the key it comes through whole and in order; with it nothing of the key that
// is more than what everybody knows gets out.
func TestScannerPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	alphabet := "ab"
	for round := range 3000 {
		key := make([]byte, 8+rng.IntN(6))
		for i := range key {
			key[i] = alphabet[rng.IntN(2)]
		}
		body := make([]byte, rng.IntN(60))
		for i := range body {
			body[i] = alphabet[rng.IntN(2)]
		}
		with := round%2 == 0
		if with {
			at := rng.IntN(len(body) + 1)
			body = bytes.Join([][]byte{body[:at], key, body[at:]}, nil)
		}
		first := bytes.Index(body, key)
		s := scannerOf(t, string(key))
		var got []byte
		found := false
		for rest := body; len(rest) > 0 && !found; {
			n := 1 + rng.IntN(len(rest))
			piece := bytes.Clone(rest[:n])
			rest = rest[n:]
			var out []byte
			out, found = s.Pass(piece)
			got = append(got, out...)
			clear(piece)
		}
		if !found {
			got = append(got, s.Rest()...)
		}
		if found != (first >= 0) || !found && !bytes.Equal(got, body) || found && (len(got) > first || !bytes.HasPrefix(body, got)) {
			t.Fatalf("key %s in %s: found %v, out %s", key, body, found, got)
		}
	}
}

// Only the first 64 KiB are looked at, and what begins in them to its end; nothing is lost or held beyond.
func TestScannerStops(t *testing.T) {
	for name, c := range map[string]struct {
		before int
		found  bool
	}{
		"within": {scanned - 100, true}, "across": {scanned - 5, true}, "one byte": {scanned - 1, true}, "behind": {scanned + 4096, false},
	} {
		body := append(bytes.Repeat([]byte("x"), c.before), keyA+"and more"...)
		s := scannerOf(t, keyA)
		var got []byte
		found := false
		for i := 0; i < len(body) && !found; i += 7 {
			out, reflected := s.Pass(body[i:min(i+7, len(body))])
			got, found = append(got, out...), reflected
		}
		if !found {
			got = append(got, s.Rest()...)
		}
		if found != c.found || !found && !bytes.Equal(got, body) || found && len(got) > c.before {
			t.Errorf("%s: found %v, %d of %d bytes out", name, found, len(got), len(body))
		}
	}
	s := scannerOf(t, keyA)
	if s.Pass(bytes.Repeat([]byte("x"), scanned)); !s.done {
		t.Error("looks on behind the first 64 KiB")
	}
	// A provider that always writes the beginning of the key is held up no longer than that.
	s = scannerOf(t, keyA)
	total := 0
	for range 20 << 10 {
		out, _ := s.Pass([]byte(keyA[:7]))
		total += len(out)
	}
	if !s.done || total < 19<<10*7 {
		t.Errorf("still looking, %d bytes out", total)
	}
}

// Looking takes no memory for each piece, and beyond the first 64 KiB nothing at all.
func TestScannerAllocates(t *testing.T) {
	s := scannerOf(t, keyA)
	piece, halves := bytes.Repeat([]byte("tokens "), 10), [2][]byte{[]byte("data " + keyA[:9]), []byte("x more")}
	s.Pass(halves[0]) // makes room once
	s.Pass(halves[1])
	patience.Allocations(t, 0, 100, func() {
		s.seen = 0 // or it stops looking after so many runs
		s.Pass(piece)
		s.Pass(halves[0])
		s.Pass(halves[1])
	})
	h := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"abc"}}
	patience.Allocations(t, 0, 100, func() { s.Head(h); s.Text("overloaded") })
	(&Scanner{}).Pass(piece)
	if (&Scanner{}).Head(h) || (&Scanner{}).Text(keyA) {
		t.Error("nothing is found")
	}
}

func BenchmarkScanner(b *testing.B) {
	for _, size := range []int{80, 16 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := scannerOf(b, keyA)
			p := bytes.Repeat([]byte("s"), size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				s.seen = 0
				s.Pass(p)
			}
		})
	}
}
