package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"iop/packages/go/patience"
)

func scanText(text string) (request, error) {
	return (&scanner{piece: []byte(text)}).request()
}

// scanPieces scans text as it would lie on disk, with a window of n bytes.
func scanPieces(text string, n int) (request, error) {
	return (&scanner{src: strings.NewReader(text), piece: make([]byte, 0, n)}).request()
}

func TestScanFindsModelAndStream(t *testing.T) {
	for _, tt := range []struct{ text, model, span string }{
		{`{"model":"m"}`, "m", `"m"`},
		{` { "messages" : [ { "model" : "inner" } ] , "model"	:
 "outer" , "stream" : true } `, "outer", `"outer"`},
		{`{"\u006dodel":"a\u0020b"}`, "a b", `"a\u0020b"`},
		{`{"x":{"model":1,"y":[{},[],{"model":"no"}]},"model":"org/name:tag","n":-0.5e+10}`, "org/name:tag", `"org/name:tag"`},
		{`{"model":"한국어 🙂"}`, "한국어 🙂", `"한국어 🙂"`},
	} {
		for _, n := range []int{0, 1, 2, 7, 4096} {
			q, err := scanText(tt.text)
			if n > 0 {
				q, err = scanPieces(tt.text, n)
			}
			if err != nil || q.model != tt.model {
				t.Fatalf("window %d of %s: model %q, err %v", n, tt.text, q.model, err)
			}
			if got := tt.text[q.start:q.end]; got != tt.span {
				t.Errorf("window %d of %s: span %q", n, tt.text, got)
			}
			if want := strings.Contains(tt.text, `"stream"`); q.stream != want {
				t.Errorf("window %d of %s: stream %v", n, tt.text, q.stream)
			}
		}
	}
}

// CP-02: what is refused here never asks for a place.
func TestScanRefuses(t *testing.T) {
	for _, tt := range []struct{ text, says, param string }{
		{``, "empty", ""},
		{" \n\t", "empty", ""},
		{`hello`, "invalid JSON at byte 0", ""},
		{`[1]`, "not a JSON object", ""},
		{`"model"`, "not a JSON object", ""},
		{`[1,`, "ends too early", ""},
		{`{"model":"m"`, "ends too early", ""},
		{`{"model":"m"} x`, "data after", ""},
		{`{"model":"m"}{"model":"n"}`, "data after", ""},
		{`{"model":"m",}`, "invalid JSON at byte 13", ""},
		{`{"model":"m","a":01}`, "invalid JSON", ""},
		{`{"model":"m","a":"` + "\x01" + `"}`, "invalid JSON", ""},
		{`{}`, "no model", "model"},
		{`{"messages":[]}`, "no model", "model"},
		{`{"model":null}`, "not a string", "model"},
		{`{"model":["a"]}`, "not a string", "model"},
		{`{"model":""}`, "empty", "model"},
		{`{"model":"a","model":"b"}`, "twice", "model"},
		{`{"model":"a","m\u006fdel":"b"}`, "twice", "model"},
		{`{"model":"a","Model":"b"}`, "only in case", "model"},
		{`{"MODEL":"b"}`, "only in case", "model"},
		{`{"model":"` + strings.Repeat("x", 257) + `"}`, "longer than 256", "model"},
		{`{"model":"` + strings.Repeat(`\u0041`, 257) + `"}`, "longer than 256", "model"},
		{`{"model":"a` + "\xff" + `"}`, "not valid UTF-8", "model"},
		{`{"model":"\ud800"}`, "not valid UTF-8", "model"},
		{`{"model":"a\u0000"}`, "control character", "model"},
		{strings.Repeat("[", 20000), "nested deeper", ""},
		{`{"model":"m","x":` + strings.Repeat(`{"a":`, 20000), "nested deeper", ""},
	} {
		for _, n := range []int{0, 1, 5} {
			_, err := scanText(tt.text)
			if n > 0 {
				_, err = scanPieces(tt.text, n)
			}
			var bad *scanError
			if !errors.As(err, &bad) || !strings.Contains(bad.text, tt.says) || bad.param != tt.param {
				t.Errorf("window %d of %.40q: %v", n, tt.text, err)
			}
		}
	}
}

func TestScanReportsReadErrors(t *testing.T) {
	broken := errors.New("disk")
	s := &scanner{src: io.MultiReader(strings.NewReader(`{"a":"b`), errReader{broken}), piece: make([]byte, 0, 4)}
	if _, err := s.request(); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestScanOfLargeTextKeepsNothing(t *testing.T) {
	text := `{"messages":[{"content":"` + strings.Repeat("QUJD", 1<<20) + `"}],"model":"m"}`
	src := strings.NewReader(text)
	patience.Allocations(t, 16, 3, func() {
		src.Reset(text)
		s := &scanner{src: src, piece: make([]byte, 0, scanPiece)}
		if q, err := s.request(); err != nil || q.model != "m" {
			t.Fatal(q, err)
		}
	})
}

// oracle is what encoding/json makes of a text: the same request, or a refusal.
func oracle(data []byte) (q request, ok bool) {
	if !json.Valid(data) || bytes.TrimLeft(data, " \t\r\n")[0] != '{' {
		return q, false
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return q, false
	}
	for dec.More() {
		token, err := dec.Token()
		if err != nil {
			return q, false
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return q, false
		}
		key := token.(string)
		switch {
		case key == "stream":
			q.stream = string(raw) == "true"
		case key == "model":
			end := dec.InputOffset()
			var name string
			if q.model != "" || raw[0] != '"' || json.Unmarshal(raw, &name) != nil || !utf8.Valid(raw) || !validModel(name) {
				return q, false
			}
			q.model, q.start, q.end = name, end-int64(len(raw)), end
		case strings.EqualFold(key, "model"):
			return q, false
		}
	}
	return q, q.model != ""
}

// FuzzScan holds the scanner against encoding/json, in memory and through a window of a few bytes.
func FuzzScan(f *testing.F) {
	for _, text := range []string{
		`{"model":"m","stream":true}`, `{"model":"m","stream":true,"stream":null}`, `{"a":[1,2.5e-3,"\u00e9\\",{}],"model":"x"}`,
		`{"\u006d\u006f\u0064\u0065\u006c":"m"}`, `{"model":"a","Model":"b"}`, "{\"model\":\"\xff\"}", `{"model":"\ud83d\ude42"}`,
		`[]`, `{"model":1}`, `{"model":"m"}x`, `{"a":-,"model":"m"}`, "\ufeff{}", `{"model":"m","a":[}`, `{"a":tru,"model":"m"}`,
	} {
		f.Add([]byte(text), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, window uint8) {
		want, ok := oracle(data)
		for name, scan := range map[string]func() (request, error){
			"memory": func() (request, error) { return scanText(string(data)) },
			"window": func() (request, error) { return scanPieces(string(data), int(window%64)+1) },
		} {
			got, err := scan()
			if (err == nil) != ok {
				t.Fatalf("%s: encoding/json says %v, the scanner %v", name, ok, err)
			}
			if ok && got != want {
				t.Fatalf("%s: encoding/json says %+v, the scanner %+v", name, want, got)
			}
		}
	})
}
