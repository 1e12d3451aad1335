package service

import "time"

// RunState is how far a run has come.
type RunState string

// The states.
const (
	StateQueued    RunState = "queued"    // has no place
	StateRunning   RunState = "running"   // was sent to a node
	StateDetached  RunState = "detached"  // a background run whose node's connection was lost
	StateComplete  RunState = "complete"  // ended well
	StateError     RunState = "error"     // ended with a failure
	StateCancelled RunState = "cancelled" // was ended by somebody's wish
	StateRecovered RunState = "recovered" // a background run of an earlier edge process, live or ended: known by its node's word
)

// RunView is one run or tunnel as APIs show it; the JSON names are settled. It holds nothing that went in or came out.
type RunView struct {
	RunID      string     `json:"run_id"`
	Kind       string     `json:"kind"` // run or tunnel
	State      RunState   `json:"state"`
	Live       bool       `json:"live"` // has no outcome yet
	Background bool       `json:"background"`
	Principal  string     `json:"principal"`
	SessionID  string     `json:"session_id"`
	Model      string     `json:"model"` // that a tunnel asked for
	Adapter    string     `json:"adapter"`
	Target     string     `json:"target"`
	Node       string     `json:"node"` // of the last attempt
	Generation uint64     `json:"connection_generation"`
	Attempts   int        `json:"attempts"`
	CreatedAt  time.Time  `json:"created_at"`
	PlacedAt   *time.Time `json:"placed_at"` // when it last got a place
	EndedAt    *time.Time `json:"ended_at"`

	QueuedMS     int64      `json:"queue_ms"`
	FirstByteMS  int64      `json:"first_byte_ms"`
	DurationMS   int64      `json:"duration_ms"`
	BytesIn      int64      `json:"bytes_in"`
	BytesOut     int64      `json:"bytes_out"`
	Usage        *UsageView `json:"usage"` // null = unknown
	FinishReason string     `json:"finish_reason"`
	Code         string     `json:"code"`   // "" while it is live, ok when it succeeded
	Origin       string     `json:"origin"` // of the failure
	Error        string     `json:"error"`  // its text
}

// UsageView counts tokens; null is unknown.
type UsageView struct {
	Input     *int64 `json:"input"`
	Output    *int64 `json:"output"`
	Cached    *int64 `json:"cached"`
	Reasoning *int64 `json:"reasoning"`
}

// Run returns the run with this id, if it is live or among those that ended last.
func (s *Service) Run(runID string) (RunView, bool) { panic("not yet") }

// Runs returns the live runs and those that ended last, the newest first.
func (s *Service) Runs() []RunView { panic("not yet") }
