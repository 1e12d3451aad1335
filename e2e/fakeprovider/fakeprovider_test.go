package fakeprovider

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dial(t *testing.T, p *Provider) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestRecordsEveryByteOfAKeptConnection(t *testing.T) {
	p := New(t, Answer(200, "text/plain", "ok"))
	c := dial(t, p)
	br := bufio.NewReader(c)
	heads := []string{
		"POST /a?x=1%202 HTTP/1.1\r\nhost:  odd.Case\r\nContent-Length: 3\r\n\r\n",
		"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
	}
	bodies := []string{"abc", "3\r\nxyz\r\n0\r\n\r\n"}
	for i := range heads {
		_, _ = io.WriteString(c, heads[i]+bodies[i])
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if b, _ := io.ReadAll(resp.Body); string(b) != "ok" {
			t.Fatalf("got %q", b)
		}
	}
	got := p.Exchanges()
	if len(got) != 2 {
		t.Fatalf("%d exchanges", len(got))
	}
	for i, want := range []string{"abc", "xyz"} {
		if string(got[i].Head) != heads[i] || string(got[i].Received()) != want || got[i].Number != i+1 || got[i].Conn != 1 {
			t.Errorf("exchange %d: %q %q", i, got[i].Head, got[i].Received())
		}
	}
	if opened, _ := p.Connections(); opened != 1 {
		t.Errorf("%d connections", opened)
	}
}

func TestGoneSeesTheClientLeave(t *testing.T) {
	left := make(chan bool, 1)
	p := New(t, func(x *Exchange) { left <- !x.Pause(time.Minute) })
	c := dial(t, p)
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	_ = c.Close()
	if !<-left {
		t.Error("pause ran out")
	}
}

func TestWatchedConnectionServesTheNextRequest(t *testing.T) {
	p := New(t, func(x *Exchange) {
		x.Pause(time.Millisecond)
		x.Reply(200, "text/plain", "ok")
	})
	c := dial(t, p)
	br := bufio.NewReader(c)
	_, _ = io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: h\r\n\r\n", 3))
	for range 3 {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

func TestEndings(t *testing.T) {
	whole := "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
	cases := map[string]struct {
		script Script
		want   string
		reset  bool
	}{
		"raw":    {Raw([]byte(whole)), whole, false},
		"cut":    {CutAfter([]byte(whole), 20, false), whole[:20], false},
		"reset":  {CutAfter([]byte(whole), 0, true), "", true},
		"pieces": {Pieces([]byte(whole), 7), whole, false},
		"idle":   {func(x *Exchange) { x.IdleLimit(time.Millisecond); x.Print(whole) }, whole, false},
	}
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			c := dial(t, New(t, k.script))
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
			_ = c.(*net.TCPConn).CloseWrite() // nothing follows: a whole answer leaves the connection open. One that is reset may be so already
			got, err := io.ReadAll(c)
			if string(got) != k.want || (err != nil) != k.reset {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestTLS(t *testing.T) {
	p := NewTLS(t, Answer(200, "text/plain", "ok"))
	c, err := tls.Dial("tcp", p.Addr(), &tls.Config{RootCAs: p.Roots()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
}

func TestFixturesAreConsistent(t *testing.T) {
	all, err := LoadFixtures(func(string, string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 151 {
		t.Errorf("%d fixtures, want 151", len(all))
	}
	cut := 0
	for _, f := range all {
		sum := 0
		for _, part := range f.Parts {
			for _, r := range part.Reads {
				sum += r.N
			}
		}
		if sum != len(f.Response) {
			t.Errorf("%s: reads of %d bytes, response of %d", f.Name, sum, len(f.Response))
		}
		_, _, _, whole, err := f.Answer()
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if !whole {
			cut++
		}
	}
	if cut != 4 {
		t.Errorf("%d fixtures are cut, want 4", cut)
	}
}

func TestReplaySendsTheRecordingPerRequest(t *testing.T) {
	f, err := LoadFixture("ollama-0.17.4/keep-alive-twice")
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, New(t, f.Replay(0.001)))
	_, _ = c.Write(f.Request)
	_, _ = c.Write(f.Request)
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, f.Response) {
		t.Error(cmp.Diff(string(f.Response), string(got)))
	}
}
