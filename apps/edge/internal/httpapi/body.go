package httpapi

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"iop/apps/edge/internal/dialect"
	"iop/packages/go/execution"
)

// firstPiece is the memory that a body gets before any of it has arrived. A caller has to send bytes to make the edge
// hold more than that.
const firstPiece = 8 << 10

// bodies reads request bodies under one byte budget.
type bodies struct {
	limit    int64 // of one body
	inMemory int64 // of one body; what is longer goes to a file
	budget   int64 // of all together
	idle     time.Duration
	rate     int64 // bytes a second
	dir      string

	used atomic.Int64
}

func newBodies(cfg Config) *bodies {
	return &bodies{limit: cfg.Limits.Body, inMemory: min(cfg.Limits.BodyInMemory, cfg.Limits.Body),
		budget: cfg.Limits.BodyMemory, idle: cfg.BodyIdle, rate: cfg.BodyRate, dir: cfg.TempDir}
}

// body is a whole request body, in memory or in an unlinked file. It implements service.Body.
type body struct {
	owner  *bodies
	memory []byte   // when file is nil
	file   *os.File // has no name any more: the kernel frees it with the descriptor, also after a crash
	size   int64
	held   int64 // of the budget
}

// Size implements service.Body.
func (b *body) Size() int64 { return b.size }

// ReadAt implements service.Body.
func (b *body) ReadAt(p []byte, off int64) (int, error) {
	if b.file != nil {
		return b.file.ReadAt(p, off)
	}
	if off < 0 || off >= int64(len(b.memory)) {
		return 0, io.EOF
	}
	n := copy(p, b.memory[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// close gives the body's share of the budget back. Nobody may read it any more.
func (b *body) close() {
	b.owner.used.Add(-b.held)
	b.held, b.memory = 0, nil
	if b.file != nil {
		// Nothing was promised to be on disk: an error changes nothing for anybody.
		_ = b.file.Close()
	}
}

var (
	errBudget = errors.New("request bodies are at their budget")
	errStore  = errors.New("request body can't be stored")
)

// read takes the whole body of a request before anything else happens with it: a half-read body would wait in the
// queue, and net/http tells that a caller left only once its body was read (HT-12). The caller closes what it returns.
func (s *bodies) read(w http.ResponseWriter, r *http.Request) (*body, *refusal) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, badRequest("", "request body: compressed bodies aren't taken; send it without Content-Encoding")
	}
	if r.ContentLength > s.limit {
		return nil, s.tooLarge()
	}
	b := &body{owner: s}
	rc := http.NewResponseController(w)
	src := &pacedReader{r: http.MaxBytesReader(w, r.Body, s.limit), rc: rc, idle: s.idle, rate: s.rate, began: time.Now()}
	if err := b.fill(src, r.ContentLength); err != nil {
		b.close()
		return nil, s.refusal(r, err, src.trickles)
	}
	// From here on net/http waits for the caller's next request or its leaving, for as long as the answer takes.
	_ = rc.SetReadDeadline(time.Time{})
	return b, nil
}

func (s *bodies) tooLarge() *refusal {
	return refuseCode(execution.CodeBodyTooLarge, execution.OriginCaller,
		fmt.Sprintf("request body: longer than this edge's limit of %d bytes (limits.body)", s.limit))
}

func (s *bodies) refusal(r *http.Request, err error, trickles bool) *refusal {
	var (
		tooLong *http.MaxBytesError
		network *net.OpError
	)
	switch {
	case errors.As(err, &tooLong):
		return s.tooLarge()
	case errors.Is(err, errBudget), errors.Is(err, errStore):
		return overloaded(err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		text := fmt.Sprintf("request body: nothing of it came for %s", s.idle)
		if trickles {
			text = fmt.Sprintf("request body: it came slower than %d bytes a second", s.rate)
		}
		ref := refuseCode(execution.CodeClientSlow, execution.OriginCaller, text)
		ref.status = http.StatusRequestTimeout
		return ref
	case errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &network), r.Context().Err() != nil:
		return refuseCode(execution.CodeClientGone, execution.OriginCaller, "the caller left while it sent its request")
	}
	return badRequest("", "request body: its chunked encoding is broken")
}

func overloaded(cause error) *refusal {
	ref := refuseCode(execution.CodeOverloaded, execution.OriginEdge,
		"the edge holds as many request bodies as it may; try again later")
	ref.cause = cause
	return ref
}

// valueCost is what a value of a body takes when it is read as a run, in bytes beside its own: the members of a message
// are strings and lists, and a node is sent them as messages of their own.
const valueCost = 192

// text returns the whole body, for who reads it as a run; it isn't to be changed. What is made of it is about as large
// and has a cost for each value, and so is what a node is sent of that: all of it counts against the budget until the
// body is closed.
func (b *body) text() ([]byte, *refusal) {
	if ref := b.takeForRun(2*b.size, 0); ref != nil {
		return nil, ref
	}
	text := b.memory
	if b.file != nil {
		text = make([]byte, b.size)
		if _, err := b.ReadAt(text, 0); err != nil && err != io.EOF {
			return nil, scanRefusal(err)
		}
	}
	return text, b.takeForRun(valueCost*dialect.Values(text), 2*b.size)
}

// takeForRun reserves n bytes for a body that is read as a run, beside those that it has reserved as one already.
func (b *body) takeForRun(n, before int64) *refusal {
	if b.size+before+n > b.owner.budget {
		return refuseCode(execution.CodeBodyTooLarge, execution.OriginCaller,
			fmt.Sprintf("request body: as a run it needs more than the edge's budget of %d bytes (limits.body_memory)", b.owner.budget))
	}
	if err := b.take(n); err != nil {
		return overloaded(err)
	}
	return nil
}

// take reserves n bytes of the budget.
func (b *body) take(n int64) error {
	if b.owner.used.Add(n) > b.owner.budget {
		b.owner.used.Add(-n)
		return errBudget
	}
	b.held += n
	return nil
}

// collect reserves what an event adds to an answer that is collected before it is written: what it says, and the same
// again where the answer is put together. It is given back with the body. An error is a *execution.Failure.
func (b *body) collect(e execution.Event) error {
	n := len(e.Text) + len(e.ToolCall.Arguments)
	if n == 0 || b.take(2*int64(n)) == nil {
		return nil
	}
	return execution.Failf(execution.CodeOverloaded, execution.OriginEdge,
		"the edge holds as many requests and answers as it may (limits.body_memory); ask for a stream, which isn't held")
}

// fill reads src to its end, into memory first. length is what the caller declared, -1 = nothing.
func (b *body) fill(src io.Reader, length int64) error {
	// One byte more than the body, so that its end is seen without another piece.
	most := b.owner.inMemory + 1
	size := min(firstPiece, most)
	if length >= 0 {
		size = min(length+1, size)
	}
	for {
		if err := b.grow(size); err != nil {
			return err
		}
		for len(b.memory) < cap(b.memory) {
			n, err := src.Read(b.memory[len(b.memory):cap(b.memory)])
			b.memory = b.memory[:len(b.memory)+n]
			if err == io.EOF {
				b.size = int64(len(b.memory))
				return nil
			}
			if err != nil {
				return err
			}
		}
		if int64(cap(b.memory)) >= most {
			return b.spill(src)
		}
		size = min(4*size, most)
	}
}

func (b *body) grow(size int64) error {
	if err := b.take(size - int64(cap(b.memory))); err != nil {
		return err
	}
	larger := make([]byte, len(b.memory), size)
	copy(larger, b.memory)
	b.memory = larger
	return nil
}

// spill moves what was read to a file and reads the rest into it, with the memory as its buffer.
func (b *body) spill(src io.Reader) error {
	buffer := int64(cap(b.memory))
	if err := b.openFile(); err != nil {
		return fmt.Errorf("%w: %w", errStore, err)
	}
	piece := b.memory
	for {
		if err := b.take(int64(len(piece))); err != nil {
			return err
		}
		if _, err := b.file.Write(piece); err != nil {
			return fmt.Errorf("%w: %w", errStore, err)
		}
		b.size += int64(len(piece))
		n, err := src.Read(b.memory[:cap(b.memory)])
		piece = b.memory[:n]
		if err == io.EOF && n == 0 {
			break
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	b.memory = nil
	b.held -= buffer
	b.owner.used.Add(-buffer)
	return nil
}

func (b *body) openFile() error {
	f, err := os.CreateTemp(b.owner.dir, "iop-body-*")
	if err != nil {
		return err
	}
	b.file = f
	return os.Remove(f.Name())
}

// pacedReader bounds each pause of a request body, and how slowly it may come on average once some time has passed: a
// slow uplink may take its time, and nobody may hold a connection and memory with a byte now and then.
type pacedReader struct {
	r     io.Reader
	rc    *http.ResponseController
	idle  time.Duration
	rate  int64 // bytes a second
	began time.Time

	total    int64
	deadline time.Time
	trickles bool // the deadline in force is that of the rate
}

// rateAfter is how long a body may come as slowly as it likes.
const rateAfter = 30 * time.Second

// Read implements io.Reader.
func (p *pacedReader) Read(b []byte) (int, error) {
	now := time.Now()
	due, owed := now.Add(p.idle), p.began.Add(max(rateAfter, time.Duration(p.total/p.rate)*time.Second))
	trickles := owed.Before(due)
	if trickles {
		due = owed
	}
	// Not at each read: a deadline costs more than a small one. So it is set a little late.
	if slack := p.idle / 64; due.Sub(p.deadline) > -slack/2 || trickles != p.trickles {
		p.deadline, p.trickles = due.Add(slack), trickles
		// Without deadlines (a test's recorder) there is nothing to bound.
		_ = p.rc.SetReadDeadline(p.deadline)
	}
	n, err := p.r.Read(b)
	p.total += int64(n)
	return n, err
}

// aliased is a body in which the bytes of the model's value are replaced, and nothing else (HT-09). It copies nothing.
type aliased struct {
	of         *body
	start, end int64 // what is replaced
	value      []byte
}

// Size implements service.Body.
func (a *aliased) Size() int64 { return a.of.size - (a.end - a.start) + int64(len(a.value)) }

// ReadAt implements service.Body.
func (a *aliased) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, io.EOF
	}
	read := 0
	if off < a.start && len(p) > 0 {
		n, err := a.of.ReadAt(p[:min(int64(len(p)), a.start-off)], off)
		read += n
		if err != nil {
			return read, err // the body goes on behind start: this is no end
		}
	}
	if at := off + int64(read) - a.start; read < len(p) && at >= 0 && at < int64(len(a.value)) {
		read += copy(p[read:], a.value[at:])
	}
	if read == len(p) {
		return read, nil
	}
	n, err := a.of.ReadAt(p[read:], off+int64(read)-int64(len(a.value))+(a.end-a.start))
	return read + n, err
}
