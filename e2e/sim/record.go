package sim

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"iop/apps/node"
	"iop/packages/go/config"
)

// dataDir is where a node's record lies.
func (n *nodeHost) dataDir() string { return filepath.Join(n.w.dir, n.host) }

// A crash leaves the files as they are at that moment. The program that is told to end at once by [node.Options].Kill would
// still close them in order; its files are thrown away.
func (n *nodeHost) freeze() {
	n.crashes = append(n.crashes, n.w.now())
	if err := os.CopyFS(n.dataDir()+".crashed", os.DirFS(n.dataDir())); err != nil {
		n.w.breach("I5", "the record of %s can't be read: %v", n.host, err)
	}
}

// thaw is the disk of a machine that crashed, after it.
func (n *nodeHost) thaw() {
	err := os.RemoveAll(n.dataDir())
	if err == nil {
		err = os.Rename(n.dataDir()+".crashed", n.dataDir())
	}
	if err != nil {
		n.w.breach("I5", "the record of %s can't be put back: %v", n.host, err)
	}
}

// recordTime is how long something may be known before it is on disk: a crash may take it along.
const recordTime = 2 * time.Second

// lost reports whether a node crashed between two moments, or so soon after that what happened isn't on disk.
func (n *nodeHost) lost(from, until time.Duration) bool {
	for _, at := range n.crashes {
		if at >= from && at <= until+recordTime {
			return true
		}
	}
	return false
}

// judgeRecords holds what the nodes have on disk against what happened (I5).
func (w *world) judgeRecords() {
	for _, n := range w.hosts {
		rows, err := node.Runs(context.Background(), &config.Node{DataDir: n.dataDir()}, node.RunsQuery{Limit: 10_000})
		if err != nil {
			w.breach("I5", "the record of %s can't be read: %v", n.host, err)
			continue
		}
		w.judgeRows(n, rows)
		w.judgeRecorded(n, rows)
	}
}

type rowKey struct {
	edge, run  string
	generation uint64
	attempt    uint32
}

// judgeRows looks at each row of a node by itself.
func (w *world) judgeRows(n *nodeHost, rows []node.Execution) {
	seen := map[rowKey]bool{}
	for i := range rows {
		r := &rows[i]
		key := rowKey{r.Edge, r.RunID, r.Generation, r.Attempt}
		switch j := w.jobs[r.RunID]; {
		case seen[key]:
			w.breach("I5", "%s has %s twice", n.host, r.RunID)
		case j == nil:
			w.breach("I5", "%s has %s, which nobody asked for", n.host, r.RunID)
		case n.crashed && r.Status == "running": // it never ran again
		case r.Status == "running" || r.Ended == nil:
			w.breach("I5", "%s has ended and %s is %s in its record", n.host, r.RunID, r.Status)
		case r.Status == "interrupted" && !n.lost(r.Created.Sub(w.history.start), w.now()):
			w.breach("I5", "%s never crashed under %s, which is interrupted in its record", n.host, r.RunID)
		case r.Status == "complete" && j.fails() && r.Started != nil:
			w.breach("I5", "%s is complete in the record of %s though its provider was %s", r.RunID, n.host, j.mode)
		case r.Background && r.Status != "interrupted" && !w.twins[n.id] && r.Reported != nil && !*r.Reported && !n.lost(0, w.now()) && !w.restarted(r.Edge):
			w.breach("I5", "%s ended at %s and no edge was told so", r.RunID, n.host)
		}
		seen[key] = true
	}
}

// restarted reports whether an edge had several lives.
func (w *world) restarted(host string) bool {
	for _, e := range w.edges {
		if e.host == host {
			return e.life > 1
		}
	}
	return false
}

// fails reports whether no answer of the job's provider can be whole.
func (j *job) fails() bool {
	switch j.mode {
	case silent, refused:
		return true
	case cut, stalling, panicking:
		return j.pieces > 0
	}
	return false
}

// judgeRecorded looks whether what a node did is in its record.
func (w *world) judgeRecorded(n *nodeHost, rows []node.Execution) {
	status := map[string]map[string]bool{}
	for i := range rows {
		r := &rows[i]
		if status[r.RunID] == nil {
			status[r.RunID] = map[string]bool{}
		}
		status[r.RunID][r.Status] = true
	}
	for _, call := range w.providers.calls {
		if call.host == n.host && status[call.job.id] == nil && !n.lost(call.begun, call.ended) {
			w.breach("I5", "%s called a provider for %s and has no record of it", n.host, call.job.id)
		}
	}
	for _, c := range w.callers {
		if c.outcome == nil || !c.outcome.OK() || !w.ran(c.job.id, n) || n.lost(c.began, c.done) {
			continue
		}
		if !status[c.job.id]["complete"] {
			w.breach("I5", "%s ended well at its caller, and in the record of %s as %v", c.job.id, n.host, status[c.job.id])
		}
	}
}

// ran reports whether a job reached its provider at that machine.
func (w *world) ran(job string, n *nodeHost) bool {
	for _, call := range w.providers.calls {
		if call.job.id == job && call.host == n.host && call.execution > 0 {
			return true
		}
	}
	return false
}
