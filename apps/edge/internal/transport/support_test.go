package transport_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"iop/apps/edge/internal/admission"
	"iop/apps/edge/internal/edgetest"
	"iop/apps/edge/internal/events"
	"iop/apps/edge/internal/node"
	"iop/packages/go/config"
	"iop/packages/go/patience"
	pb "iop/proto/iop"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs f alone, on fake time.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	patience.Alone(t, func(t *testing.T) { patience.Bubble(t, f) })
}

// nodes makes records of enabled nodes with four places each.
func nodes(ids ...string) []config.NodeRecord {
	var recs []config.NodeRecord
	for _, id := range ids {
		recs = append(recs, edgetest.Record(id, 4))
	}
	return recs
}

// inMemory starts an edge on a listener in memory, for use inside a bubble.
func inMemory(t *testing.T, o edgetest.Options) (*edgetest.Edge, *edgetest.Listener, *log) {
	t.Helper()
	l := edgetest.Listen()
	o.Listener = l
	if o.Nodes == nil {
		o.Nodes = nodes("a", "b")
	}
	e := edgetest.Start(t, o)
	return e, l, follow(e)
}

// register registers on a fresh connection in memory and fails the test unless it gets an answer.
func register(t *testing.T, l *edgetest.Listener, hello *pb.RegisterRequest) (net.Conn, *pb.RegisterResponse) {
	t.Helper()
	c := l.Dial()
	t.Cleanup(func() { _ = c.Close() })
	resp, err := edgetest.Register(c, hello)
	if err != nil {
		t.Fatal(err)
	}
	return c, resp
}

// wantRefused checks a refusal and that the edge closes the connection after it.
func wantRefused(t *testing.T, c net.Conn, resp *pb.RegisterResponse, reason pb.RegisterReason) {
	t.Helper()
	if resp.GetAccepted() || resp.GetReason() != reason || resp.GetReasonText() == "" {
		t.Errorf("answer %v, want a refusal with %v", resp, reason)
	}
	wantClosed(t, c)
}

// wantClosed checks that the peer has closed c, or does so well before the handshake's limit would close it.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || isTimeout(err) {
		t.Errorf("read %d bytes, %v: want the end of the connection", n, err)
	}
}

func isTimeout(err error) bool {
	te, ok := err.(net.Error)
	return ok && te.Timeout()
}

// log follows what an edge publishes.
type log struct {
	sub  *events.Subscription
	seen []events.Event
}

func follow(e *edgetest.Edge) *log { return &log{sub: e.Bus.Subscribe(8192)} }

// drain takes what was published so far.
func (l *log) drain() {
	for {
		select {
		case e := <-l.sub.C:
			l.seen = append(l.seen, e)
		default:
			return
		}
	}
}

// count counts the events of this kind and code so far; code "" is any.
func (l *log) count(kind events.Kind, code string) int {
	l.drain()
	n := 0
	for _, e := range l.seen {
		if e.Kind == kind && (code == "" || e.Code == code) {
			n++
		}
	}
	return n
}

// want waits for an event of this kind and code that wasn't waited for before.
func (l *log) want(t *testing.T, kind events.Kind, code string) events.Event {
	t.Helper()
	timeout := time.NewTimer(patience.Limit)
	defer timeout.Stop()
	for {
		select {
		case e := <-l.sub.C:
			l.seen = append(l.seen, e)
			if e.Kind == kind && e.Code == code {
				return e
			}
		case <-timeout.C:
			t.Fatalf("no event %v %s; there were %v", kind, code, l.seen)
		}
	}
}

// safeBuffer is a log that a test reads while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// eventually polls until ok says so.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	patience.Until(t, what, ok)
}

// spy is a scheduler that writes down what it is told, and passes it on.
type spy struct {
	node.Scheduler
	mu    sync.Mutex
	calls []string
	last  map[string]admission.Node
}

func (s *spy) wrap(next node.Scheduler) node.Scheduler {
	s.Scheduler, s.last = next, make(map[string]admission.Node)
	return s
}

func (s *spy) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *spy) Publish(n admission.Node) {
	s.mu.Lock()
	s.last[n.ID] = n
	s.mu.Unlock()
	s.note("publish %s %d %v", n.ID, n.Generation, n.Dispatchable)
	s.Scheduler.Publish(n)
}

func (s *spy) Adopt(id string, generation uint64, runs []admission.Adopted) {
	s.note("adopt %s %d %d", id, generation, len(runs))
	s.Scheduler.Adopt(id, generation, runs)
}

func (s *spy) Ended(id string, generation uint64, runID string, attempt uint32) bool {
	known := s.Scheduler.Ended(id, generation, runID, attempt)
	s.note("ended %s %d %s %v", id, generation, runID, known)
	return known
}

func (s *spy) Fence(id string, generation uint64) {
	s.note("fence %s %d", id, generation)
	s.Scheduler.Fence(id, generation)
}

func (s *spy) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.calls...)
}

// published is what the scheduler was last told of a node; in a bubble only. It is told a moment after others see it.
func (s *spy) published(id string) admission.Node {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last[id]
}
