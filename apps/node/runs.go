package node

import (
	"context"
	"time"

	"iop/apps/node/internal/store"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// RunsQuery says which executions [Runs] lists; the zero value lists the latest.
type RunsQuery struct {
	Limit  int    // 0 = 100
	Status string // one of [RunStatuses], "" = any
}

// Execution is one execution of the node's record, under the names that the log has.
type Execution struct {
	RunID      string     `json:"run_id"`
	Attempt    uint32     `json:"attempt"`
	Edge       string     `json:"edge"`
	Generation uint64     `json:"connection_generation"`
	Kind       string     `json:"kind"`
	Adapter    string     `json:"adapter"`
	Target     string     `json:"target,omitempty"`
	SessionID  string     `json:"session_id,omitempty"`
	Background bool       `json:"background,omitempty"`
	Status     string     `json:"status"`
	Code       string     `json:"code,omitempty"` // of what isn't running or complete
	Created    time.Time  `json:"created"`
	Started    *time.Time `json:"started,omitempty"` // when the provider was called
	Ended      *time.Time `json:"ended,omitempty"`
	Input      *int64     `json:"input_tokens,omitempty"` // absent = unknown; the next three too
	Output     *int64     `json:"output_tokens,omitempty"`
	Cached     *int64     `json:"cached_tokens,omitempty"`
	Reasoning  *int64     `json:"reasoning_tokens,omitempty"`
	BytesIn    int64      `json:"bytes_in"`
	BytesOut   int64      `json:"bytes_out"`
	Reported   *bool      `json:"reported,omitempty"` // of a background run: the edge knows its end
}

// RunStatuses returns the statuses that an execution can have.
func RunStatuses() []string {
	var out []string
	for _, s := range store.Statuses() {
		out = append(out, string(s))
	}
	return out
}

// Runs lists the executions of the record of the node that cfg configures, the latest first. The node may be running;
// nothing is changed.
func Runs(ctx context.Context, cfg *config.Node, q RunsQuery) ([]Execution, error) {
	path, err := store.Path(cfg.DataDir, "")
	if err != nil {
		return nil, err
	}
	r, err := store.OpenReader(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	rows, err := r.List(ctx, store.Query{Limit: q.Limit, Status: store.Status(q.Status)})
	if err != nil {
		return nil, err
	}
	out := make([]Execution, 0, len(rows))
	for i := range rows {
		out = append(out, runOf(&rows[i]))
	}
	return out, nil
}

func runOf(r *store.Row) Execution {
	out := Execution{
		RunID: r.RunID, Attempt: r.Attempt, Edge: r.Edge, Generation: r.Generation, Kind: r.Kind.String(),
		Adapter: r.Adapter, Target: r.Target, SessionID: r.SessionID, Background: r.Background, Status: string(r.Status),
		Created: r.Created, Started: known(r.Started), Ended: known(r.Ended), Input: r.Usage.Input, Output: r.Usage.Output,
		Cached: r.Usage.Cached, Reasoning: r.Usage.Reasoning, BytesIn: r.BytesIn, BytesOut: r.BytesOut,
	}
	if r.Code != execution.CodeOK {
		out.Code = r.Code.String()
	}
	if r.Background {
		out.Reported = &r.Reported
	}
	return out
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
