package diagnose

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/packages/go/doctor"
	"iop/packages/go/program"
)

// nodeStatus is what a running node says of itself, as far as it is looked at.
type nodeStatus struct {
	Version  string `json:"version"`
	Draining bool   `json:"draining"`
	Links    []struct {
		Edge       string     `json:"edge"`
		State      string     `json:"state"`
		Generation uint64     `json:"generation"`
		LastError  string     `json:"last_error"`
		NextDial   *time.Time `json:"next_dial"`
		RTT        float64    `json:"rtt_ms"`
	} `json:"links"`
	Adapters []struct {
		Edge      string `json:"edge"`
		Name      string `json:"name"`
		Available bool   `json:"available"`
		Reason    string `json:"reason"`
	} `json:"adapters"`
	Store *struct {
		State  string `json:"state"`
		Reason string `json:"reason"`
		Lost   uint64 `json:"lost"`
	} `json:"store"`
}

// has reports whether the node has a connection of that generation.
func (s *nodeStatus) has(generation uint64) bool {
	for i := range s.Links {
		if s.Links[i].Generation == generation {
			return true
		}
	}
	return false
}

// maxStatus bounds what is read of a running node.
const maxStatus = 16 << 20

// running asks the node that runs here, if one does.
func (x *examination) running(ctx context.Context) []doctor.Finding {
	const check = "node"
	listen := x.cfg.Admin.Listen
	_, port, _ := net.SplitHostPort(listen)
	if listen == "" || port == "0" {
		return []doctor.Finding{doctor.Skip(check, "set admin.listen to an address like 127.0.0.1:7444 to have doctor look at the running node, too",
			"whether a node runs here isn't known: admin.listen names no port")}
	}
	status := new(nodeStatus)
	answered, err := get(ctx, listen, "/admin/v1/status", status)
	switch {
	case err != nil && !answered && reachable(listen):
		return []doctor.Finding{doctor.Failed(check, "see whether the node hangs: its log says what it did last, kill -QUIT what it waits for; then restart it",
			"something listens at admin.listen (%s), and doesn't answer", listen)}
	case err != nil && !answered:
		x.absent.Store(true)
		return []doctor.Finding{doctor.Skip(check, "", "no node runs here: nothing answers at admin.listen (%s)", listen)}
	case err != nil || len(status.Links) == 0:
		return []doctor.Finding{doctor.Failed(check, "stop it, or choose another port for admin.listen: the node doesn't start while the port is taken",
			"something else than a node answers at admin.listen (%s)", listen)}
	}
	x.runs.Store(status)
	return x.judge(status)
}

// judge says how a running node is.
func (x *examination) judge(s *nodeStatus) []doctor.Finding {
	all := []doctor.Finding{doctor.Well("node", "a node of version %s runs here", s.Version)}
	if s.Version != x.opts.Version {
		all[0] = doctor.Warn("node", "restart the node to have it run what is installed", "the node that runs here is of version %s, this program of %s", s.Version, x.opts.Version)
	}
	for i := range s.Links {
		l := &s.Links[i]
		if !slices.ContainsFunc(x.cfg.Edges, func(e string) bool { return strings.EqualFold(e, l.Edge) }) {
			all = append(all, doctor.Warn("link "+l.Edge, "restart the node: it reads its file when it starts", "the running node dials %s, which the file doesn't name any more", l.Edge))
		}
		switch l.State {
		case "serving":
			all = append(all, doctor.Well("link "+l.Edge, "the node's link is up (connection %d, round trip %.1f ms)", l.Generation, l.RTT))
		case "draining", "stopped":
			all = append(all, doctor.Warn("link "+l.Edge, "wait until it has ended, and start it again if you want it", "the node is stopping"))
		default:
			next := "it dials again by itself"
			if l.NextDial != nil {
				next += " in " + time.Until(*l.NextDial).Round(time.Second).String() + "; a restart dials at once"
			}
			all = append(all, doctor.Failed("link "+l.Edge, "see the checks of the Edge below; "+next, "the node has no link (%s): %s", l.State, orNothing(l.LastError)))
		}
	}
	if st := s.Store; st != nil && st.State != "ok" {
		all = append(all, doctor.Warn("journal", "see the checks of data_dir and journal below", "the running node can't write its journal (%s; %d rows lost); runs go on", st.Reason, st.Lost))
	}
	return all
}

func orNothing(s string) string {
	if s == "" {
		return "it has said nothing of it yet"
	}
	return s
}

// get asks the node's admin listener. answered says that something was there.
func get(ctx context.Context, listen, path string, into any) (answered bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+path, nil)
	if err != nil {
		return false, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return false, err
	}
	if text, ok := into.(*string); ok {
		*text = string(body)
		return true, nil
	}
	return true, json.Unmarshal(body, into)
}

// reachable reports whether anything listens on this machine's address, whatever became of a question to it.
func reachable(listen string) bool {
	conn, err := net.DialTimeout("tcp", listen, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// filesNeeded is how many files a node needs that runs so many executions.
func filesNeeded(places int) uint64 {
	const own, least = 64, 1024
	return max(least, own+2*uint64(places))
}

// placeMemory is what an execution may hold at the node whose answer isn't read: its window in a buffer that doubled.
const placeMemory = 2 << 20

// ownMemory is what a node holds by itself.
const ownMemory = 64 << 20

// unavailable is why the running node doesn't use an adapter, "" = it does, or nothing is known.
func (x *examination) unavailable(adapter string) string {
	if s := x.runs.Load(); s != nil {
		for i := range s.Adapters {
			if a := &s.Adapters[i]; a.Name == adapter && !a.Available {
				return a.Reason
			}
		}
	}
	return ""
}

// places is how many executions the Edges may send at once, as far as it is known.
func (x *examination) places() (n int, known bool) {
	list := x.told.Load()
	if list == nil {
		return 0, false
	}
	for _, t := range *list {
		for _, a := range t.config.GetAdapters() {
			n += int(a.GetMaxConcurrency())
		}
	}
	return n, true
}

// files compares the limit of open files with what the adapters need; that of the running node, if there is one.
func (x *examination) files(ctx context.Context) []doctor.Finding {
	n, known := x.places()
	why := program.Count(n, "place") + " and what the node has besides"
	if !known {
		why = "a node with a few providers"
	}
	if x.runs.Load() != nil {
		var text string
		if _, err := get(ctx, x.cfg.Admin.Listen, "/metrics", &text); err == nil {
			if limit, ok := gauge(text, "process_max_fds"); ok {
				return []doctor.Finding{doctor.Files("the running node", uint64(limit), filesNeeded(n), why)}
			}
		}
	}
	return []doctor.Finding{doctor.OwnFiles(filesNeeded(n), why)}
}

func (x *examination) memory(context.Context) []doctor.Finding {
	n, known := x.places()
	if !known {
		return []doctor.Finding{doctor.Memory(program.MemoryLimit(), 2*ownMemory, "a node with a few providers")}
	}
	return []doctor.Finding{doctor.Memory(program.MemoryLimit(), ownMemory+int64(n)*placeMemory, program.Count(n, "place"))}
}

// gauge finds a metric without labels in Prometheus's text.
func gauge(text, name string) (float64, bool) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			return n, err == nil
		}
	}
	return 0, false
}

// dataDir looks at the directory of the journal.
func (x *examination) dataDir(context.Context) []doctor.Finding {
	return doctor.Directory("data_dir", "data_dir", x.cfg.DataDir)
}
