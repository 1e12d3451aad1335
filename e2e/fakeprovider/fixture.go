package fakeprovider

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Fixture is a recorded exchange with a real provider, as e2e/testdata/fixtures/README.md describes it.
type Fixture struct {
	Name     string // "llamacpp-0.7.0/chat-stream"
	Request  []byte // every byte that was sent
	Response []byte // every byte that was received
	Parts    []Part // one per request on the connection
}

// Part is what the provider sent after one request.
type Part struct {
	Reads []Read
	End   bool // the provider closed the connection
}

// Read is one piece as it arrived, At after the request.
type Read struct {
	At time.Duration
	N  int
}

// FixtureDir returns the directory of the fixtures, found from the working directory of a test upwards.
func FixtureDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		path := filepath.Join(dir, "e2e", "testdata", "fixtures")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("fixtures: no e2e/testdata/fixtures above the working directory")
		}
		dir = up
	}
}

// LoadFixtures returns every fixture of the directory whose request goes to a path that match accepts.
func LoadFixtures(match func(method, path string) bool) ([]*Fixture, error) {
	dir, err := FixtureDir()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.timing"))
	if err != nil {
		return nil, err
	}
	var out []*Fixture
	for _, file := range files {
		f, err := load(dir, file)
		if err != nil {
			return nil, err
		}
		words := strings.SplitN(string(f.Request), " ", 3)
		path, _, _ := strings.Cut(words[1], "?")
		if match(words[0], path) {
			out = append(out, f)
		}
	}
	return out, nil
}

// LoadFixture returns one fixture by its name.
func LoadFixture(name string) (*Fixture, error) {
	dir, err := FixtureDir()
	if err != nil {
		return nil, err
	}
	return load(dir, filepath.Join(dir, filepath.FromSlash(name)+".timing"))
}

func load(dir, timing string) (*Fixture, error) {
	base := strings.TrimSuffix(timing, ".timing")
	name, err := filepath.Rel(dir, base)
	if err != nil {
		return nil, err
	}
	f := &Fixture{Name: filepath.ToSlash(name)}
	if f.Request, err = readMaybeZipped(base + ".req"); err != nil {
		return nil, err
	}
	if f.Response, err = readMaybeZipped(base + ".resp"); err != nil {
		return nil, err
	}
	notes, err := os.ReadFile(timing)
	if err != nil {
		return nil, err
	}
	f.Parts, err = parseTiming(string(notes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	return f, nil
}

func readMaybeZipped(path string) ([]byte, error) {
	if b, err := os.ReadFile(path); err == nil {
		return b, nil
	}
	file, err := os.Open(path + ".gz")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	zr, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(zr)
}

func parseTiming(notes string) ([]Part, error) {
	parts := []Part{{}}
	for line := range strings.Lines(notes) {
		line = strings.TrimSpace(line)
		at, what, _ := strings.Cut(line, " ")
		last := &parts[len(parts)-1]
		switch {
		case line == "# same connection, request again":
			parts = append(parts, Part{})
		case line == "" || at == "#" || what == "client closed":
		case what == "EOF":
			last.End = true
		default:
			ms, err := strconv.ParseFloat(at, 64)
			if err != nil {
				return nil, err
			}
			n, err := strconv.Atoi(what)
			if err != nil {
				return nil, err
			}
			last.Reads = append(last.Reads, Read{At: time.Duration(ms * float64(time.Millisecond)), N: n})
		}
	}
	return parts, nil
}

// Parsed returns the recorded request as net/http reads it, and its body.
func (f *Fixture) Parsed() (*http.Request, []byte, error) {
	req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(f.Request)))
	if err != nil {
		return nil, nil, err
	}
	body, err := io.ReadAll(req.Body)
	return req, body, err
}

// Answer returns the first response of the recording: status, headers, and its body without framing. whole is false
// when the recording ends inside the body.
func (f *Fixture) Answer() (status int, header http.Header, body []byte, whole bool, err error) {
	req, _, err := f.Parsed()
	if err != nil {
		return 0, nil, nil, false, err
	}
	br := bufio.NewReader(bytes.NewReader(f.Response))
	for {
		resp, err := http.ReadResponse(br, req)
		if err != nil {
			return 0, nil, nil, false, err
		}
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header, body, err == nil, nil
	}
}

// Replay returns a script that sends the recording in the pieces in which it arrived. Pauses are multiplied by scale;
// with 0 there are none. A recording that was cut ends the connection.
func (f *Fixture) Replay(scale float64) Script {
	_, _, _, whole, err := f.Answer()
	cut := err != nil || !whole
	return func(x *Exchange) {
		x.Body()
		rest, part := f.Response, Part{}
		for i := range min(x.Number, len(f.Parts)) {
			part = f.Parts[i]
			if i == x.Number-1 {
				break
			}
			for _, r := range part.Reads {
				rest = rest[r.N:]
			}
		}
		var at time.Duration
		for _, r := range part.Reads {
			if wait := time.Duration(float64(r.At-at) * scale); wait > 0 && !x.Pause(wait) {
				return
			}
			at = r.At
			if _, err := x.Write(rest[:r.N]); err != nil {
				return
			}
			rest = rest[r.N:]
		}
		if part.End || cut || x.Number >= len(f.Parts) {
			x.Close()
		}
	}
}

// Again returns a script that answers each request with the recording's first answer, as [Raw] does.
func (f *Fixture) Again() Script {
	n := 0
	for _, r := range f.Parts[0].Reads {
		n += r.N
	}
	return Raw(f.Response[:n])
}
