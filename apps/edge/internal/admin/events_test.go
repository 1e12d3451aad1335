package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/apps/edge/internal/events"
	"iop/packages/go/patience"
)

// told is one event as a follower reads it.
type told struct {
	id, name string
	data     string
	eventView
	lost missedView
}

// followed is what a follower has of a stream.
type followed struct {
	t      *testing.T
	cancel context.CancelFunc
	resp   *http.Response
	lines  *bufio.Scanner
}

// follow begins to follow events of a real server.
func follow(t *testing.T, server *httptest.Server, query, last string) *followed {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/admin/v1/events"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	resp, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	f := &followed{t: t, cancel: cancel, resp: resp, lines: bufio.NewScanner(resp.Body)}
	if resp.StatusCode == 200 {
		if f.lines.Scan(); f.lines.Text() != "retry: 1000" {
			t.Fatalf("it begins with %q", f.lines.Text())
		}
	}
	return f
}

// next reads one event; comments and empty lines don't count.
func (f *followed) next() (e told) {
	f.t.Helper()
	for f.lines.Scan() {
		name, value, _ := strings.Cut(f.lines.Text(), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.name = value
		case "data":
			e.data = value
			if err := json.Unmarshal([]byte(value), &e.eventView); err != nil {
				f.t.Fatalf("%s: %v", value, err)
			}
			if err := json.Unmarshal([]byte(value), &e.lost); err != nil {
				f.t.Fatalf("%s: %v", value, err)
			}
			return e
		}
	}
	f.t.Fatalf("the stream ended: %v", f.lines.Err())
	return e
}

// served is a rig behind a real server.
func served(t *testing.T) (*rig, *httptest.Server) {
	g := newRig(t, here)
	server := httptest.NewServer(g.h)
	t.Cleanup(server.Close)
	return g, server
}

func TestEventsAreFollowed(t *testing.T) {
	g, server := served(t)
	f := follow(t, server, "", "")
	if f.resp.Header.Get("Content-Type") != "text/event-stream" || f.resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", f.resp.Header)
	}
	at := time.Date(2026, 11, 29, 13, 6, 29, 0, time.UTC)
	g.bus.Publish(events.Event{At: at, Kind: events.KindFenced, NodeID: "gpu-1", Generation: 7, Code: "lost", Text: "EOF\nand\x1b more"})
	g.bus.Publish(events.Event{At: at, Kind: events.KindRunEnded, NodeID: "gpu-1", Adapter: "llama", Generation: 7, RunID: "r", Attempt: 2,
		Principal: "alice", Model: "m", Code: "ok", After: 1500 * time.Millisecond})
	one, two := f.next(), f.next()
	if one.name != "fenced" || one.data != `{"id":"`+one.id+`","at":"2026-11-29T13:06:29Z","kind":"fenced","node":"gpu-1","connection_generation":7,"code":"lost","text":"EOF\nand\u001b more"}` {
		t.Errorf("%+v", one)
	}
	if two.name != "run_ended" || two.data != `{"id":"`+two.id+`","at":"2026-11-29T13:06:29Z","kind":"run_ended","node":"gpu-1","connection_generation":7,"adapter":"llama",`+
		`"run_id":"r","attempt":2,"principal":"alice","model":"m","after_ms":1500,"code":"ok"}` {
		t.Errorf("%+v", two)
	}
	if !strings.HasSuffix(one.id, "-1") || !strings.HasSuffix(two.id, "-2") || one.id[:9] != two.id[:9] {
		t.Errorf("ids %s and %s", one.id, two.id)
	}
}

// A follower that comes back gets what it hasn't had, and is told when that isn't all.
func TestEventsAreResumed(t *testing.T) {
	g, server := served(t)
	f := follow(t, server, "", "")
	g.bus.Publish(events.Event{Kind: events.KindReady, NodeID: "n1"})
	first := f.next()
	f.cancel()
	g.bus.Publish(events.Event{Kind: events.KindReady, NodeID: "n2"})
	g.bus.Publish(events.Event{Kind: events.KindReady, NodeID: "n3"})
	f = follow(t, server, "", first.id)
	for _, want := range []string{"n2", "n3"} {
		if e := f.next(); e.Node != want {
			t.Errorf("%+v, want %s", e, want)
		}
	}
	// With its filter, too.
	if e := follow(t, server, "?node=n3", first.id).next(); e.Node != "n3" {
		t.Errorf("%+v", e)
	}
	for range 5000 {
		g.bus.Publish(events.Event{Kind: events.KindRunPlaced})
	}
	f = follow(t, server, "", first.id)
	if e := f.next(); e.name != "missed" || e.id != "" || e.data != `{"kind":"missed","missed":904,"why":"forgotten"}` {
		t.Errorf("%+v", e)
	}
	if e := f.next(); e.Node != "n2" {
		t.Errorf("then %+v", e)
	}
	// Events of nodes are remembered longer than those of runs, and who wants no others has missed none.
	if e := follow(t, server, "?kind=node", first.id).next(); e.Node != "n2" {
		t.Errorf("of nodes: %+v", e)
	}
	// Another process had other events: nobody knows how many were missed, and all of this one's are new.
	for _, id := range []string{"ABCDEFGH-1", "nonsense", "1", first.id + "x", strings.TrimSuffix(first.id, "1") + "-1"} {
		f = follow(t, server, "?kind=node", id)
		if e := f.next(); e.name != "missed" || e.data != `{"kind":"missed","missed":null,"why":"restarted"}` {
			t.Errorf("%s: %+v", id, e)
		}
		if e := f.next(); e.Node != "n1" {
			t.Errorf("%s: then %+v", id, e)
		}
	}
}

func TestEventsAreFiltered(t *testing.T) {
	for query, want := range map[string]string{
		"?last=10":                                   "1 2 3 4 5",
		"?last=2":                                    "4 5",
		"?last_each=1":                               "4 5",
		"?last_each=2":                               "1 3 4 5",
		"?last=10&kind=run":                          "2 3 4",
		"?last=10&kind=node":                         "1 5",
		"?last=10&kind=node,run":                     "1 2 3 4 5",
		"?last=10&kind=ready,run":                    "1 2 3 4",
		"?last=10&kind=run_ended":                    "3 4",
		"?last=10&kind=ready&kind=run_placed":        "1 2",
		"?last=10&node=b":                            "3 4 5",
		"?last=10&run=r1&node=b":                     "3",
		"?last=10&principal=alice,bob":               "2 3 4",
		"?last=10&principal=bob&kind=node,run_ended": "4",
		"?last=1&kind=node":                          "5",
		"?last=0":                                    "",
	} {
		g, server := served(t)
		for _, e := range []events.Event{
			{Kind: events.KindReady, NodeID: "a"},
			{Kind: events.KindRunPlaced, NodeID: "a", RunID: "r1", Principal: "alice"},
			{Kind: events.KindRunEnded, NodeID: "b", RunID: "r1", Principal: "alice"},
			{Kind: events.KindRunEnded, NodeID: "b", RunID: "r2", Principal: "bob"},
			{Kind: events.KindFenced, NodeID: "b"},
		} {
			g.bus.Publish(e)
		}
		f := follow(t, server, query, "")
		// One of them is what each query wants.
		g.bus.Publish(events.Event{Kind: events.KindRunEnded, NodeID: "b", RunID: "r1", Principal: "bob", Code: "mark"})
		g.bus.Publish(events.Event{Kind: events.KindReady, NodeID: "b", Code: "mark"})
		var got []string
		for range strings.Fields(want) {
			e := f.next()
			got = append(got, e.id[strings.LastIndex(e.id, "-")+1:])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
		if e := f.next(); e.Code != "mark" {
			t.Errorf("%s: then %+v", query, e)
		}
		f.cancel()
	}
}

func TestEventsRefuseWhatTheyDontKnow(t *testing.T) {
	g := newRig(t, here)
	many := strings.Repeat("a,", maxFilter) + "a"
	for query, says := range map[string]string{
		"?kind=nothing": "unknown kind", "?kind=": "unknown kind", "?kind=ready,unknown": "unknown kind", "?last=-1": "last must be", "?last=x": "last must be",
		"?last=1,2": "last must be", "?last_each=x": "last_each must be", "?last=5001": "last must be", "?nodes=a": "may have kind, node", "?node=" + many: "64 values", "?%zz": "well-formed",
	} {
		if resp, body := g.ask("GET", "/admin/v1/events"+query, here); resp.StatusCode != 400 || !strings.Contains(body, says) {
			t.Errorf("%s: %s %s", query, resp.Status, body)
		}
	}
	if log := g.log.String(); strings.Contains(log, "nothing") || strings.Contains(log, "nodes") {
		t.Errorf("what was asked is in the log: %s", log)
	}
}

// EV-02: a follower that reads slowly loses events, is told how many where it lost them, and slows nobody. The counts
// are exact.
func TestSlowFollowersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, here)
		near, far := net.Pipe() // holds nothing itself
		l := &oneConn{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		l.conns <- far
		server := NewServer(g.h)
		go func() { _ = server.Serve(l) }()
		fmt.Fprintf(near, "GET /admin/v1/events HTTP/1.1\r\nHost: %s\r\n\r\n", here)
		resp, err := http.ReadResponse(bufio.NewReader(near), nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		const published = 20 * 500
		for range published {
			g.bus.Publish(events.Event{Kind: events.KindRunEnded})
		}
		dropped := g.bus.Stats().Dropped
		if dropped < published-followBuffer-100 || dropped >= published {
			t.Errorf("dropped %d of %d", dropped, published)
		}
		type counts struct{ received, missed uint64 }
		done := make(chan counts)
		go func() {
			var n counts
			for lines := bufio.NewScanner(resp.Body); lines.Scan() && !strings.Contains(lines.Text(), `"code":"last"`); {
				var v missedView
				switch data, is := strings.CutPrefix(lines.Text(), "data: "); {
				case !is:
				case strings.HasPrefix(data, `{"kind":"missed"`):
					if json.Unmarshal([]byte(data), &v) == nil && v.Why == "slow" {
						n.missed += *v.Missed
					}
				default:
					n.received++
				}
			}
			done <- n
		}()
		synctest.Wait() // it has what was buffered
		g.bus.Publish(events.Event{Kind: events.KindRunEnded, Code: "last"})
		if n := <-done; n.missed != dropped || n.received+n.missed != published || g.bus.Stats().Dropped != dropped {
			t.Errorf("%+v; the bus dropped %d of %d", n, dropped, published)
		}
		near.Close()
		server.Close()
		time.Sleep(time.Minute)
	})
}

// oneConn is a listener.
type oneConn struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { close(l.done); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// The server's limits for short answers don't end one that lasts; a reader that takes nothing is gone after a while, and
// a silent edge says that it is there.
func TestFollowingLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, here)
		near, far := net.Pipe()
		l := &oneConn{conns: make(chan net.Conn, 1), done: make(chan struct{})}
		l.conns <- far
		server := NewServer(g.h)
		go func() { _ = server.Serve(l) }()
		fmt.Fprintf(near, "GET /admin/v1/events HTTP/1.1\r\nHost: %s\r\n\r\n", here)
		resp, err := http.ReadResponse(bufio.NewReader(near), nil)
		if err != nil {
			t.Fatal(err)
		}
		read, beats := bufio.NewReader(resp.Body), 0
		for start := time.Now(); time.Since(start) < 10*time.Minute; {
			line, err := read.ReadString('\n')
			if err != nil {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			if line == ": beat\n" {
				beats++
			}
		}
		if beats != 40 {
			t.Errorf("%d beats in ten minutes", beats)
		}
		if n := g.bus.Stats().Subscribers; n != 1 {
			t.Errorf("%d subscribers", n)
		}
		time.Sleep(2 * time.Minute) // takes nothing any more
		if n := g.bus.Stats().Subscribers; n != 0 {
			t.Errorf("%d subscribers although the only reader is stuck", n)
		}
		near.Close()
		server.Close()
		time.Sleep(time.Minute)
	})
}

func TestFollowersAreBounded(t *testing.T) {
	_, server := served(t)
	var all []*followed
	for range maxFollowers {
		all = append(all, follow(t, server, "", ""))
	}
	if f := follow(t, server, "", ""); f.resp.StatusCode != 503 {
		t.Errorf("one too many: %s", f.resp.Status)
	}
	all[0].cancel()
	for deadline := time.Now().Add(patience.Limit); ; {
		f := follow(t, server, "", "")
		if f.resp.StatusCode == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("one left, and still: %s", f.resp.Status)
		}
	}
}
