package store

import (
	"strings"
	"time"
	"unicode/utf8"

	"iop/packages/go/execution"
)

// Status is how far an execution came: it runs, or how it ended.
type Status string

// The statuses. All but the first and the last are execution's own, under the same names.
const (
	StatusRunning     Status = "running"
	StatusComplete    Status = "complete"
	StatusError       Status = "error"
	StatusCancelled   Status = "cancelled"
	StatusAbandoned   Status = "abandoned"
	StatusInterrupted Status = "interrupted" // the node died before it could say how the execution ended
)

// StatusOf returns the status of an execution that ended as s.
func StatusOf(s execution.Status) Status { return Status(s.String()) }

// Statuses returns every status, for those who let people choose one.
func Statuses() []Status {
	return []Status{StatusRunning, StatusComplete, StatusError, StatusCancelled, StatusAbandoned, StatusInterrupted}
}

// final reports whether s is a status that an execution can end with.
func (s Status) final() bool {
	switch s {
	case StatusComplete, StatusError, StatusCancelled, StatusAbandoned, StatusInterrupted:
		return true
	}
	return false
}

// maxText is the longest string of a row in bytes; what is longer is cut. Names come from callers, and ten thousand
// rows in the queue must stay small.
const maxText = 512

// Row is what the journal keeps of one execution. It has no field for a prompt, an output, a header or an error text,
// because the file outlives the request and is read by whoever may read the node's directory.
type Row struct {
	ID int64 // the row's number in its file; later executions have higher ones
	Execution
	Outcome
	Reported bool // of a background run: the edge has acknowledged its end
}

// Execution is what is known of an execution when it begins.
type Execution struct {
	Edge       string // the edge that asked for it; run ids are told apart by edge
	RunID      string
	Attempt    uint32
	Generation uint64 // the connection generation that it came over
	Kind       execution.Kind
	Adapter    string
	Target     string
	SessionID  string
	Background bool
	Created    time.Time // zero = now
}

// Progress is what can be said of an execution while it runs. A zero or nil field says nothing new.
type Progress struct {
	Started  time.Time // when the provider was called
	Usage    execution.Usage
	BytesIn  int64 // request body bytes that reached the node
	BytesOut int64 // response body bytes that the provider gave
}

// Outcome is how an execution ended.
type Outcome struct {
	Progress
	Status Status
	Code   execution.Code // CodeOK when Status is complete
	Ended  time.Time      // zero = now
}

// merge takes over what q says.
func (p *Progress) merge(q Progress) {
	if !q.Started.IsZero() {
		p.Started = q.Started
	}
	if q.BytesIn != 0 {
		p.BytesIn = q.BytesIn
	}
	if q.BytesOut != 0 {
		p.BytesOut = q.BytesOut
	}
	for _, count := range []struct {
		to   **int64
		from *int64
	}{
		{&p.Usage.Input, q.Usage.Input},
		{&p.Usage.Output, q.Usage.Output},
		{&p.Usage.Cached, q.Usage.Cached},
		{&p.Usage.Reasoning, q.Usage.Reasoning},
	} {
		if count.from != nil {
			*count.to = count.from
		}
	}
}

// bounded returns x with every string cut to maxText.
func (x Execution) bounded() Execution {
	for _, s := range []*string{&x.Edge, &x.RunID, &x.Adapter, &x.Target, &x.SessionID} {
		*s = cut(*s)
	}
	return x
}

// cut shortens s to at most maxText bytes of valid UTF-8, without a character cut in two.
func cut(s string) string {
	if len(s) <= maxText && utf8.ValidString(s) {
		return s
	}
	s = strings.ToValidUTF8(s[:min(len(s), maxText+utf8.UTFMax)], "\uFFFD")
	end := 0
	for i, r := range s {
		if next := i + utf8.RuneLen(r); next <= maxText {
			end = next
		}
	}
	return s[:end]
}

// Query says which rows to list. The zero Query lists the latest rows.
type Query struct {
	Limit  int       // 0 = 100; at most MaxLimit
	Status Status    // "" = any
	Since  time.Time // created then or later; zero = any
}

// MaxLimit is how many rows one Query lists at most.
const MaxLimit = 10_000

const defaultLimit = 100

func (q Query) limit() int {
	if q.Limit <= 0 {
		return defaultLimit
	}
	return min(q.Limit, MaxLimit)
}
