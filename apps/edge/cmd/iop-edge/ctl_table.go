package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"iop/apps/edge/internal/node"
	"iop/apps/edge/internal/service"
)

// table writes lines of columns. Nodes and callers chose part of what is in them, so nothing reaches a terminal that
// could steer it.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, heads ...string) *table {
	t := &table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if len(heads) > 0 {
		t.line(heads...)
	}
	return t
}

func (t *table) line(cells ...string) {
	for i, c := range cells {
		if c = plain(c); c == "" {
			c = "-"
		}
		cells[i] = c
	}
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

// plain replaces what isn't a printable character.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func decode(answer []byte, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("read the edge's answer: %w; is it of another version? -o json shows it", err)
	}
	return nil
}

func nodesTable(w io.Writer, answer []byte) error {
	var a struct{ Nodes []node.NodeView }
	if err := decode(answer, &a); err != nil {
		return err
	}
	t := newTable(w, "NODE", "STATE", "GENERATION", "VERSION", "SINCE", "ADAPTER", "RUNNING", "PROVIDER", "MODELS", "WHY NO WORK")
	for _, n := range a.Nodes {
		since, why := "", n.Reason
		if n.Since != nil {
			since = ago(*n.Since)
		}
		if n.Drained && n.State != node.StateDraining {
			why += "; an operator keeps new work from it"
		}
		head := []string{n.ID, string(n.State), strconv.FormatUint(n.Generation, 10), n.Version, since}
		if len(n.Adapters) == 0 {
			t.line(append(head, "", "", "", "", why)...)
		}
		for _, ad := range n.Adapters {
			t.line(append(head, ad.Name, fmt.Sprintf("%d/%d", ad.InFlight, ad.Capacity), provider(ad.Available, ad.Version, ad.Reason), nodeModels(ad.Models), why)...)
			head, why = []string{" ", " ", " ", " ", " "}, " "
		}
	}
	return t.w.Flush()
}

// provider says what an adapter's provider is, or why there is none.
func provider(available bool, version, reason string) string {
	if !available {
		return "unavailable: " + reason
	}
	return version
}

func nodeModels(models []node.ModelView) string {
	loaded := 0
	for _, m := range models {
		if m.Loaded {
			loaded++
		}
	}
	return countLoaded(len(models), loaded)
}

func countLoaded(n, loaded int) string {
	if loaded == 0 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%d (%d loaded)", n, loaded)
}

func runsTable(w io.Writer, answer []byte, limit int) error {
	var a struct{ Runs []service.RunView }
	if err := decode(answer, &a); err != nil {
		return err
	}
	t := newTable(w, "RUN", "KIND", "STATE", "NODE", "ADAPTER", "MODEL", "PRINCIPAL", "CREATED", "TOOK", "CODE")
	for i, r := range a.Runs {
		if limit > 0 && i == limit {
			break
		}
		model := r.Model
		if model == "" {
			model = r.Target
		}
		took := ""
		if r.EndedAt != nil {
			took = milliseconds(r.DurationMS)
		}
		t.line(r.RunID, r.Kind, string(r.State), r.Node, r.Adapter, model, r.Principal, ago(r.CreatedAt), took, r.Code)
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	if n := len(a.Runs); limit > 0 && n > limit {
		_, err := fmt.Fprintf(w, "%d more; --limit 0 shows them\n", n-limit)
		return err
	}
	return nil
}

func runTable(w io.Writer, answer []byte) error {
	var r service.RunView
	if err := decode(answer, &r); err != nil {
		return err
	}
	t := newTable(w)
	known := func(s string) string { // what is counted at the end
		if r.Live {
			return ""
		}
		return s
	}
	for _, f := range [][2]string{
		{"run", r.RunID}, {"kind", r.Kind}, {"state", string(r.State)}, {"background", strconv.FormatBool(r.Background)},
		{"principal", r.Principal}, {"session", r.SessionID}, {"model", r.Model}, {"adapter", r.Adapter}, {"target", r.Target},
		{"node", r.Node}, {"connection generation", strconv.FormatUint(r.Generation, 10)}, {"attempts", strconv.Itoa(r.Attempts)},
		{"created", r.CreatedAt.Format(time.RFC3339)}, {"placed", instant(r.PlacedAt)}, {"ended", instant(r.EndedAt)},
		{"waited", known(milliseconds(r.QueuedMS))}, {"first byte after", known(milliseconds(r.FirstByteMS))}, {"took", known(milliseconds(r.DurationMS))},
		{"bytes in", known(strconv.FormatInt(r.BytesIn, 10))}, {"bytes out", known(strconv.FormatInt(r.BytesOut, 10))}, {"tokens", known(tokens(r.Usage))},
		{"finish reason", r.FinishReason}, {"code", r.Code}, {"origin", r.Origin}, {"error", r.Error},
	} {
		if f[1] != "" {
			t.line(f[0], f[1])
		}
	}
	return t.w.Flush()
}

func tokens(u *service.UsageView) string {
	if u == nil {
		return "unknown"
	}
	text := ""
	for _, n := range []struct {
		name  string
		count *int64
	}{{"input", u.Input}, {"output", u.Output}, {"cached", u.Cached}, {"reasoning", u.Reasoning}} {
		if n.count != nil {
			text += fmt.Sprintf("%d %s, ", *n.count, n.name)
		}
	}
	return strings.TrimSuffix(text, ", ")
}

func queueTable(w io.Writer, answer []byte) error {
	var a struct {
		Draining bool
		Queued   int
		Sets     []struct {
			Set                string
			Queued, Candidates int
		}
		Places []struct {
			Node, Adapter        string
			Generation           uint64
			Capacity             int
			InFlight             int `json:"in_flight"`
			Unconfirmed, Adopted int
			Candidate, Saturated bool
			Broken               *struct {
				Until  time.Time
				Trying bool
			}
		}
	}
	if err := decode(answer, &a); err != nil {
		return err
	}
	state := ""
	if a.Draining {
		state = "; the edge is draining"
	}
	fmt.Fprintf(w, "%d waiting%s\n\n", a.Queued, state)
	t := newTable(w, "SET", "WAITING", "CANDIDATES")
	for _, s := range a.Sets {
		t.line(setName(s.Set), strconv.Itoa(s.Queued), strconv.Itoa(s.Candidates))
	}
	if err := t.w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w, "NODE", "ADAPTER", "GENERATION", "RUNNING", "UNCONFIRMED", "ADOPTED", "TAKES WORK")
	for _, p := range a.Places {
		takes := "yes"
		switch {
		case !p.Candidate:
			takes = "no"
		case p.Broken != nil && p.Broken.Trying:
			takes = "broken; one tries it"
		case p.Broken != nil:
			takes = "broken; one may try at " + p.Broken.Until.Local().Format(time.TimeOnly)
		case p.Saturated:
			takes = "saturated"
		}
		t.line(p.Node, p.Adapter, strconv.FormatUint(p.Generation, 10), fmt.Sprintf("%d/%d", p.InFlight, p.Capacity),
			strconv.Itoa(p.Unconfirmed), strconv.Itoa(p.Adopted), takes)
	}
	return t.w.Flush()
}

// setName shows the parts of a set's name, which are separated by what no part can hold.
func setName(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == 0 }), " ")
}

func cancelTable(w io.Writer, answer []byte) error {
	var a struct {
		RunID  string `json:"run_id"`
		Result string
	}
	if err := decode(answer, &a); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "run %s: %s\n", plain(a.RunID), plain(a.Result))
	return err
}

func commandTable(w io.Writer, answer []byte) error {
	var a struct {
		Capabilities *struct{ Adapters []service.AdapterCapabilities }
		Transport    *service.TransportStatus `json:"transport_status"`
		Status       int
		Body         json.RawMessage
	}
	if err := decode(answer, &a); err != nil {
		return err
	}
	switch {
	case a.Capabilities != nil:
		return capabilitiesTable(w, a.Capabilities.Adapters)
	case a.Transport != nil:
		t := newTable(w)
		t.line("connection generation", strconv.FormatUint(a.Transport.Generation, 10))
		t.line("link age", milliseconds(a.Transport.LinkAgeMS))
		t.line("open streams", strconv.Itoa(a.Transport.OpenStreams))
		t.line("in flight", strconv.Itoa(a.Transport.InFlight))
		return t.w.Flush()
	}
	if err := providerBody(w, a.Body); err != nil {
		return err
	}
	if a.Status >= 400 {
		return fmt.Errorf("the provider answered with status %d", a.Status)
	}
	return nil
}

// providerBody prints a provider's JSON so that it can be read, or its text.
func providerBody(w io.Writer, body []byte) error {
	var text string
	if json.Unmarshal(body, &text) != nil {
		var out bytes.Buffer
		if err := json.Indent(&out, body, "", "  "); err != nil {
			return fmt.Errorf("read the edge's answer: %w", err)
		}
		text = out.String()
	}
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(w, plain(strings.TrimRight(line, "\r\n"))); err != nil {
			return err
		}
	}
	return nil
}

func capabilitiesTable(w io.Writer, adapters []service.AdapterCapabilities) error {
	t := newTable(w, "ADAPTER", "RUNNING", "PROVIDER", "MODEL", "LOADED", "CONTEXT")
	for _, a := range adapters {
		head := []string{a.Name, fmt.Sprintf("%d/%d", a.InFlight, a.Capacity), provider(a.Available, a.Version, a.Reason)}
		if len(a.Models) == 0 {
			t.line(append(head, "", "", "")...)
		}
		for _, m := range a.Models {
			loaded, length := "", "unknown"
			if m.Loaded {
				loaded = "loaded"
			}
			if m.Context > 0 {
				length = strconv.FormatInt(m.Context, 10)
			}
			t.line(append(head, m.Name, loaded, length)...)
			head = []string{" ", " ", " "}
		}
	}
	return t.w.Flush()
}

// ago is how long an instant is past, to the unit that matters.
func ago(at time.Time) string {
	switch d := time.Since(at); {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd ago", int(d.Hours()/24))
	}
}

func instant(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.Format(time.RFC3339)
}

func milliseconds(ms int64) string { return (time.Duration(ms) * time.Millisecond).String() }
