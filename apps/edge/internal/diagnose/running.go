package diagnose

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/packages/go/doctor"
	"iop/packages/go/program"
)

// running is what the running Edge says, as far as it is looked at.
type running struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// eventsLimit is the default of Options.Events.
const eventsLimit = 500 * time.Millisecond

// maxAnswer bounds what is read of an answer.
const maxAnswer = 32 << 20

// ask gets an answer from the running Edge; what is wrong otherwise is a finding.
func (x *examination) ask(ctx context.Context, path string) ([]byte, *doctor.Finding) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+dialable(x.cfg.Listen.Admin)+path, nil)
	if err != nil {
		f := doctor.Failed("admin", "correct listen.admin", "%v", err)
		return nil, &f
	}
	if x.opts.AdminKey != "" {
		req.Header.Set("Authorization", "Bearer "+x.opts.AdminKey)
	}
	resp, err := client(&http.Transport{}).Do(req)
	if err != nil {
		x.hangs.Store(true)
		f := doctor.Failed("admin", "see whether the Edge hangs: its log says what it did last, kill -QUIT what it waits for; then restart it",
			"something listens at listen.admin (%s), and doesn't answer: %v", x.cfg.Listen.Admin, errors.Unwrap(err))
		return nil, &f
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	switch {
	case err != nil:
		f := doctor.Failed("admin", "try again", "the Edge's answer broke off: %v", err)
		return nil, &f
	case resp.StatusCode == http.StatusUnauthorized:
		f := doctor.Skip("admin", "give one with --admin-key-file FILE or IOP_ADMIN_KEY (iop-edge key new makes one, admin_key_hashes lets it in)",
			"the admin listener wants an admin key, so that nodes and routes of the running Edge can't be looked at")
		if x.opts.AdminKey != "" {
			f = doctor.Failed("admin", "use a key whose hash stands in admin_key_hashes; API keys of callers are others", "the admin listener doesn't accept the admin key")
		}
		return nil, &f
	case resp.StatusCode != http.StatusOK && path != "/readyz":
		f := doctor.Failed("admin", "see the Edge's log", "the Edge answers %s to %s", resp.Status, path)
		return nil, &f
	}
	return body, nil
}

// admin finds out whether an Edge runs here, and whether it takes callers.
func (x *examination) admin(ctx context.Context) []doctor.Finding {
	const check = "admin"
	listen := x.cfg.Listen.Admin
	_, port, _ := net.SplitHostPort(listen)
	switch {
	case listen == "" || port == "0":
		return []doctor.Finding{doctor.Skip(check, "set listen.admin to an address like 127.0.0.1:8081 to have doctor look at the running Edge, too",
			"whether an Edge runs here isn't known: listen.admin names no port")}
	}
	switch taken, f := free("listen.admin", listen); {
	case f.Level == doctor.OK:
		return []doctor.Finding{doctor.Skip(check, "", "no Edge runs here: nothing listens at listen.admin (%s)", listen)}
	case !taken:
		return []doctor.Finding{f}
	}
	body, f := x.ask(ctx, "/readyz")
	if f != nil {
		return []doctor.Finding{*f}
	}
	state := new(running)
	if json.Unmarshal(body, state) != nil || state.Reasons == nil {
		return []doctor.Finding{doctor.Failed(check, "stop it (ss -ltnp shows what it is), or choose another address for listen.admin",
			"something else than an Edge answers at listen.admin (%s): this Edge couldn't start", listen)}
	}
	x.state.Store(state)
	if !state.Ready {
		return []doctor.Finding{doctor.Warn(check, "wait until it has stopped, or start it again", "an Edge runs here, and takes no callers: %s", strings.Join(state.Reasons, ", "))}
	}
	return []doctor.Finding{doctor.Well(check, "an Edge runs here, and takes callers")}
}

// node is a node as the admin API shows it.
type node struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Drained  bool   `json:"drained"`
	Version  string `json:"version"`
	Adapters []struct {
		Name      string `json:"name"`
		Available bool   `json:"available"`
		Reason    string `json:"reason"`
		Models    []struct {
			Name string `json:"name"`
		} `json:"models"`
	} `json:"adapters"`
}

// model is one that the node can be asked for now, "" = none.
func (n *node) model() string {
	for i := range n.Adapters {
		if a := &n.Adapters[i]; n.State == "ready" && a.Available && len(a.Models) > 0 {
			return a.Models[0].Name
		}
	}
	return ""
}

// nodes says of each configured node how it is.
func (x *examination) nodes(ctx context.Context) []doctor.Finding {
	if x.state.Load() == nil {
		return []doctor.Finding{doctor.Skip("nodes", "", "which are connected isn't known without a running Edge")}
	}
	body, f := x.ask(ctx, "/admin/v1/nodes")
	if f != nil {
		f.Check = "nodes"
		return []doctor.Finding{*f}
	}
	var answer struct{ Nodes []node }
	if err := json.Unmarshal(body, &answer); err != nil {
		return []doctor.Finding{doctor.Failed("nodes", "see that both are of the same version", "the Edge's list of nodes can't be read: %v", err)}
	}
	if len(answer.Nodes) == 0 {
		return []doctor.Finding{doctor.Warn("nodes", "add one under nodes; iop-edge token new NAME makes its token", "no node is configured")}
	}
	var found []doctor.Finding
	for i := range answer.Nodes {
		if model := answer.Nodes[i].model(); model != "" {
			x.offered.CompareAndSwap(nil, &model)
		}
		found = append(found, x.judge(&answer.Nodes[i])...)
	}
	found = append(found, x.skews(ctx)...)
	return append(found, x.unconfirmed(ctx)...)
}

// judge says how a node is.
func (x *examination) judge(n *node) []doctor.Finding {
	check := "node " + n.ID
	switch {
	case n.State == "disabled":
		return []doctor.Finding{doctor.Warn(check, "set enabled: true in its entry under nodes to let it in", "it is disabled in the configuration, and refused when it dials")}
	case n.State == "offline":
		return []doctor.Finding{doctor.Failed(check, "start it (iop-node serve), and run iop-node doctor there: it says what keeps it away; iop-edge ctl events --kind refused shows whether it was refused",
			"it gets no work: %s", n.Reason)}
	case n.Drained:
		return []doctor.Finding{doctor.Warn(check, "iop-edge ctl drain "+n.ID+" --undo lets work there again", "an operator keeps new work from it")}
	case n.State != "ready":
		return []doctor.Finding{doctor.Failed(check, "run iop-node doctor there, and see both logs", "it is connected and gets no work (%s): %s", n.State, n.Reason)}
	}
	found := []doctor.Finding{doctor.Well(check, "it is ready, version %s", n.Version)}
	if n.Version != x.opts.Version {
		found[0] = doctor.Warn(check, "bring both to the same version when you can; neighbouring ones work together", "it is ready, but of version %s, and this program of %s", n.Version, x.opts.Version)
	}
	for _, a := range n.Adapters {
		if !a.Available {
			found = append(found, doctor.Failed("adapter "+n.ID+"/"+a.Name, "start its provider, or correct base_url; iop-node doctor on that machine looks at it", "it can't be used: %s", a.Reason))
		}
	}
	return found
}

// skews looks for nodes whose clock jumped, among the last events.
func (x *examination) skews(ctx context.Context) []doctor.Finding {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(x.opts.Events, eventsLimit))
	defer cancel()
	seen := map[string]string{}
	for _, e := range x.recent(ctx, "clock_skew") {
		seen[e.Node] = e.Text
	}
	var found []doctor.Finding
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		found = append(found, doctor.Warn("clock "+id, "set that machine's clock (timedatectl, chrony); iop-node doctor there measures it", "%s", seen[id]))
	}
	return found
}

// unconfirmed looks for places whose runs are over and whose nodes don't say so.
func (x *examination) unconfirmed(ctx context.Context) []doctor.Finding {
	body, f := x.ask(ctx, "/admin/v1/queue")
	var answer struct {
		Places []struct {
			Node        string `json:"node"`
			Adapter     string `json:"adapter"`
			Unconfirmed int    `json:"unconfirmed"`
			Broken      *struct {
				Why string `json:"why"`
			} `json:"broken"`
		} `json:"places"`
	}
	if f != nil || json.Unmarshal(body, &answer) != nil {
		return nil // the list of nodes has said what is wrong
	}
	var found []doctor.Finding
	for _, p := range answer.Places {
		check := "place " + p.Node + "/" + p.Adapter
		if p.Unconfirmed > 0 {
			found = append(found, doctor.Warn(check, "it frees itself, or costs the node its connection after timers.confirm_limit; iop-edge ctl place release takes one back",
				"%s ended, and the node hasn't confirmed it", program.Count(p.Unconfirmed, "run")))
		}
		if p.Broken != nil {
			found = append(found, doctor.Warn(check, "look at the provider; one request at a time tries it again", "it is taken out, since it failed again and again: %s", p.Broken.Why))
		}
	}
	return found
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

// event is one of the Edge's events, as far as it is looked at.
type event struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

// recent reads the last events of a kind. The stream has no end: ctx is.
func (x *examination) recent(ctx context.Context, kind string) (list []event) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/admin/v1/events?kind=%s&last=20", dialable(x.cfg.Listen.Admin), kind), nil)
	if err != nil {
		return nil
	}
	if x.opts.AdminKey != "" {
		req.Header.Set("Authorization", "Bearer "+x.opts.AdminKey)
	}
	resp, err := client(&http.Transport{}).Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // until ctx ends it
	for line := range strings.Lines(string(body)) {
		var e event
		if data, ok := strings.CutPrefix(line, "data: "); ok && json.Unmarshal([]byte(data), &e) == nil && e.Node != "" {
			list = append(list, e)
		}
	}
	return list
}
