//go:build e2e

package process

import (
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"iop/e2e/procs"
)

const embedded = "[{name: loopback, kind: loopback, max_concurrency: 4}]"

// journal lists the node's own record as `iop-node runs` shows it.
func (s *site) journal() map[string]journalRow {
	s.t.Helper()
	out, err := exec.Command(filepath.Join(bin, "iop-node"), "runs", "-c", s.Path("node.yaml"), "--json").Output()
	if err != nil {
		s.t.Fatalf("iop-node runs: %v", err)
	}
	var list struct{ Runs []journalRow }
	if err := json.Unmarshal(out, &list); err != nil {
		s.t.Fatalf("%s: %v", out, err)
	}
	rows := map[string]journalRow{}
	for _, row := range list.Runs {
		rows[row.RunID] = row
	}
	return rows
}

type journalRow struct {
	RunID  string `json:"run_id"`
	Kind   string `json:"kind"`
	Status string `json:"status"`
	Code   string `json:"code"`
}

func (s *site) runs(method, path, body string) (int, string) {
	s.t.Helper()
	request, err := http.NewRequest(method, "http://"+s.HTTP+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// Fault 42 and the record of a node that is killed: what ran is interrupted, what had ended keeps its end, and the edge
// is told of the background run's end by the node that came back.
func TestJournalOfAKilledNode(t *testing.T) {
	s := newSite(t, procs.SiteConfig{Adapters: embedded})
	ask := func(id, text, extra string) string {
		return `{"adapter":"loopback","target":"loopback","run_id":"` + id + `","messages":[{"role":"user","content":"hi loopback: ` + text + `"}]` + extra + `}`
	}
	if status, body := s.runs("POST", "/iop/v1/runs", ask("done", "tokens=3", "")); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	if status, body := s.runs("POST", "/iop/v1/runs", ask("back", "tokens=400 delay=50ms", `,"background":true`)); status != 202 {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, limit, "the run is in the journal", func() bool { return s.journal()["back"].Status == "running" })
	if err := s.Node.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Node.Done()
	eventually(t, limit, "the edge has seen the node go", func() bool {
		_, body := s.runs("GET", "/iop/v1/runs/back", "")
		return strings.Contains(body, `"state":"detached"`)
	})
	s.restartNode()
	rows := s.journal()
	if rows["done"].Status != "complete" || rows["back"].Status != "interrupted" {
		t.Errorf("the journal after the kill: %+v", rows)
	}
	eventually(t, limit, "the edge knows that the run is over", func() bool {
		_, body := s.runs("GET", "/iop/v1/runs/back", "")
		return strings.Contains(body, `"live":false`)
	})
	s.settled()
}
