package admin

import (
	"net/http"
	"slices"
	"time"

	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
)

// How many runs a snapshot has.
const (
	mostLive  = 200
	mostEnded = 50
)

// snapshotView is all that the console draws, taken in one go; its parts look as they do at their own endpoints.
type snapshotView struct {
	At       time.Time       `json:"at"`       // by the Edge's clock, as all other times; ages are told by it
	EventID  string          `json:"event_id"` // what was published after this event may not be in it
	Version  string          `json:"version"`  // of the Edge
	Reasons  []string        `json:"reasons"`  // why the Edge takes no work; none = it does
	Warnings []string        `json:"warnings"` // what deserves attention, for people
	Nodes    []node.NodeView `json:"nodes"`
	Queue    queueView       `json:"queue"`
	Slots    []SlotView      `json:"slots"`
	Live     runsView        `json:"live"`  // those that began first, the oldest first
	Ended    runsView        `json:"ended"` // those that ended last, the newest first
}

// runsView is a bounded list of runs.
type runsView struct {
	Total int               `json:"total"`
	Runs  []service.RunView `json:"runs"`
}

// snapshot answers GET /admin/v1/snapshot.
func (h *handler) snapshot(w http.ResponseWriter, _ *http.Request) {
	v := snapshotView{EventID: h.showID(h.cfg.Events.Stats().Published), At: time.Now(), Version: h.cfg.Version}
	runs := h.cfg.Runs()
	v.Nodes, v.Queue, v.Slots = h.nodeViews(), h.queueOf(runs), h.slotViews()
	v.Reasons = append([]string{}, h.cfg.NotReady()...)
	v.Warnings = h.warnings(v.Nodes, &v.Queue)
	v.Live, v.Ended = splitRuns(runs)
	h.write(w, http.StatusOK, v)
}

// splitRuns takes the list apart that has the newest first.
func splitRuns(runs []service.RunView) (live, ended runsView) {
	live.Runs, ended.Runs = []service.RunView{}, []service.RunView{}
	for i := range runs {
		into, most := &ended, mostEnded
		if runs[i].Live {
			into, most = &live, len(runs)
		}
		if into.Total++; len(into.Runs) < most {
			into.Runs = append(into.Runs, runs[i])
		}
	}
	// Who is called because something hangs looks for what began first.
	slices.Reverse(live.Runs)
	live.Runs = live.Runs[:min(len(live.Runs), mostLive)]
	return live, ended
}
