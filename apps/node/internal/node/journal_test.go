package node_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/node"
	"iop/apps/node/internal/nodetest"
	"iop/apps/node/internal/store"
	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// list returns the rows that are in the file, the latest first.
func list(t *testing.T, j *store.Journal) []store.Row {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), nodetest.Limit)
	defer cancel()
	if err := j.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	rows, err := j.List(ctx, store.Query{})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Runs and tunnels are recorded with how they ended; what was refused isn't.
func TestExecutionsAreRecorded(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	r := newRig(t, &nodetest.Adapter{
		OnTunnel: func(_ context.Context, _ *execution.TunnelRequest, sink execution.TunnelSink) error {
			_ = sink.Head(http.StatusOK, nil)
			_ = sink.Body([]byte("four"))
			_ = sink.Usage(counts(1, 2))
			return execution.Failf(execution.CodeUpstreamTruncated, execution.OriginProvider, "cut")
		},
		OnExecute: func(ctx context.Context, req *execution.Request, emit execution.Emit) (execution.Completion, error) {
			if req.Target == "hang" {
				return nodetest.HangRun(ctx, req, emit)
			}
			done, err := nodetest.Say(emit, "three", "ok")
			done.Usage = counts(5, 6)
			return done, err
		}}, recorded(j))
	r.Start("tunnel").Collect()
	r.StartRun("run", func(q *pb.RunRequest) { q.SessionId = "s-1" }).Collect()
	hang := r.StartRun("cancelled", nodetest.Background, func(q *pb.RunRequest) { q.Target = "hang" })
	hang.Accepted()
	nodetest.Eventually(t, "the adapter is called", func() bool { return r.adapter.Calls.Load() == 3 })
	if rows := list(t, j); rows[0].RunID != "cancelled" || rows[0].Status != store.StatusRunning || rows[0].Started.IsZero() {
		t.Errorf("rows = %+v", rows)
	}
	r.rejectsRun(r.StartRun("cancelled"), execution.CodeDuplicateRun)
	r.cancel("cancelled")
	for _, id := range []string{"tunnel", "run", "cancelled"} {
		r.RunEnd(id)
	}
	hang.Collect()
	r.atRest()
	rows := list(t, j)
	if len(rows) != 3 {
		t.Fatalf("%d rows: %+v", len(rows), rows)
	}
	for i, want := range []struct {
		id     string
		kind   execution.Kind
		status store.Status
		code   execution.Code
		out    int64
		bytes  int64
	}{
		{"cancelled", execution.KindRun, store.StatusCancelled, execution.CodeCancelled, 0, 0},
		{"run", execution.KindRun, store.StatusComplete, execution.CodeOK, 6, 7},
		{"tunnel", execution.KindTunnel, store.StatusError, execution.CodeUpstreamTruncated, 2, 4},
	} {
		row := rows[i]
		if row.RunID != want.id || row.Kind != want.kind || row.Status != want.status || row.Code != want.code || row.BytesOut != want.bytes ||
			row.Edge != "edge:1" || row.Attempt != 1 || row.Generation != 7 || row.Adapter != "a" || row.Ended.IsZero() || row.Started.IsZero() {
			t.Errorf("row %d = %+v, want %+v", i, row, want)
		}
		if want.out == 0 && row.Usage.Known() || want.out != 0 && (row.Usage.Output == nil || *row.Usage.Output != want.out) {
			t.Errorf("row %d: usage %+v", i, row.Usage)
		}
	}
	if !rows[0].Background || rows[1].SessionID != "s-1" || rows[1].Background {
		t.Errorf("rows = %+v", rows)
	}
}

// An execution whose adapter wasn't called has no start.
func TestWhatNeverReachedTheProviderHasNoStart(t *testing.T) {
	j, _ := openJournal(t, t.TempDir())
	r := newRig(t, &nodetest.Adapter{}, recorded(j))
	r.OpenRun(r.RunOpen("r1", 0)).End().Collect()
	r.RunEnd("r1")
	if rows := list(t, j); rows[0].Code != execution.CodeBadRequest || !rows[0].Started.IsZero() {
		t.Errorf("rows = %+v", rows)
	}
	r.atRest()
}

// block makes the journal in dir unwritable, as another program does that holds its lock, until the returned function
// is called.
func block(t *testing.T, dir string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(dir, "iop.db"))
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	deadline := time.Now().Add(nodetest.Limit)
	for _, err = db.Exec("BEGIN IMMEDIATE"); err != nil; _, err = db.Exec("BEGIN IMMEDIATE") {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	release = sync.OnceFunc(func() {
		if _, err := db.Exec("ROLLBACK"); err != nil {
			t.Error(err)
		}
		db.Close()
	})
	t.Cleanup(release)
	return release
}

// SQ-08, faults rows 39 and 40, design §11: a store that fails is told to the edge, delays no terminal and loses no row
// that still fits; it is told when it works again.
func TestFailingStoreIsToldAndDelaysNothing(t *testing.T) {
	dir := t.TempDir()
	changes := make(chan func(*rig), 100)
	j, err := store.Open(context.Background(), store.Config{Dir: dir, Log: zerolog.Nop(), OnState: func(degraded bool, reason string) {
		changes <- func(r *rig) { r.x.StoreChanged(degraded, reason) }
	}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = j.Run(context.Background()) }()
	t.Cleanup(func() { _ = j.Close(); <-ended })
	r := newRig(t, &nodetest.Adapter{}, recorded(j))
	release := block(t, dir)
	const runs = 60
	began := time.Now()
	for i := range runs {
		id := fmt.Sprint("r", i)
		if got := r.StartRun(id).Collect(); got.Complete == nil {
			t.Errorf("got %q %v", got.Kinds, got.Err)
		}
		r.RunEnd(id)
	}
	if took := time.Since(began); took > nodetest.Limit { // if each waited for the lock, it would be a second a run
		t.Errorf("%d runs took %v with a store that fails", runs, took)
	}
	nodetest.Receive(t, "the store is degraded", changes)(r)
	event := r.Await("an event", func(m *pb.NodeControl) bool { return m.GetEvent() != nil }).GetEvent()
	if event.GetKind() != pb.EventKind_EVENT_KIND_STORE_DEGRADED || event.GetCode() != "store_degraded" || event.GetText() == "" {
		t.Errorf("event = %v", event)
	}
	degraded := func(s *pb.NodeStatus) bool { return s.GetStoreState() == pb.StoreState_STORE_STATE_DEGRADED }
	r.Status("degraded", degraded)
	r.again() // a new connection learns of it, too
	r.Status("degraded", degraded)
	release()
	nodetest.Receive(t, "the store works again", changes)(r)
	r.Status("ok", func(s *pb.NodeStatus) bool { return s.GetStoreState() == pb.StoreState_STORE_STATE_OK })
	if rows := list(t, j); len(rows) != runs || rows[0].Status != store.StatusComplete {
		t.Errorf("%d rows after the failure", len(rows))
	}
	r.atRest()
}

// Faults row 41: a damaged journal that was set aside is told on the first connection, once.
func TestSetAsideIsToldOnce(t *testing.T) {
	r := newRig(t, &nodetest.Adapter{}, func(s *setup) { s.before = func(x *node.Executor) { x.StoreSetAside("set aside") } })
	told := func(m *pb.NodeControl) bool {
		return m.GetEvent().GetKind() == pb.EventKind_EVENT_KIND_STORE_DEGRADED && m.GetEvent().GetCode() == "store_set_aside"
	}
	r.Await("the event", told)
	r.again()
	r.cancel("nobody") // everything before its answer has arrived
	r.cancel("nobody")
	if n := r.Seen(told); n != 0 {
		t.Errorf("told %d times on the second connection", n)
	}
}

// CP-04: places come back under callers that leave, while the store writes nothing at all.
func TestPlacesComeBackWithABlockedStore(t *testing.T) {
	dir := t.TempDir()
	j, _ := openJournal(t, dir)
	r := newRig(t, &nodetest.Adapter{OnExecute: nodetest.HangRun}, recorded(j))
	release := block(t, dir)
	for i := range 400 {
		run := r.StartRun(fmt.Sprint("r", i))
		if i%3 > 0 {
			run.Accepted()
		}
		run.Close()
		nodetest.Eventually(t, "a place is free", func() bool { return r.inFlight() < 4 })
	}
	nodetest.Eventually(t, "all have come and gone", func() bool { // the last may not have begun when it is closed
		r.seen.mu.Lock()
		defer r.seen.mu.Unlock()
		return len(r.seen.ended)+len(r.seen.refused) == 400 && r.inFlight() == 0
	})
	var good sync.WaitGroup
	r.adapter.OnExecute = nil
	for i := range 4 {
		run := r.StartRun(fmt.Sprint("good", i))
		good.Go(func() {
			if got := run.Collect(); got.Complete == nil {
				t.Errorf("got %q %v", got.Kinds, got.Err)
			}
		})
	}
	good.Wait()
	release()
	r.atRest()
}
