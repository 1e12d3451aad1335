package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeSlots knows the slots "s" and "x", and keeps what it was asked.
type fakeSlots struct {
	asked  []string
	status []SlotStatus
	change SlotChange
	err    error
}

func (f *fakeSlots) slots() *Slots {
	do := func(what string) func(context.Context, string) (SlotChange, error) {
		return func(_ context.Context, id string) (SlotChange, error) { return f.do(what, id) }
	}
	return &Slots{Status: func() []SlotStatus { return f.status }, Refresh: do("refresh"), Disable: do("disable"), Enable: do("enable"),
		Revoke: func(_ context.Context, id string, cancelRunning bool) (SlotChange, error) {
			return f.do(fmt.Sprint("revoke ", cancelRunning), id)
		},
		Keys:      func() []LeaseKey { return []LeaseKey{{ID: "k2"}, {ID: "k1", NotAfter: time.UnixMilli(1000)}} },
		RotateKey: func(context.Context) error { f.asked = append(f.asked, "rotate"); return f.err },
		DropKey:   func(_ context.Context, id string) error { f.asked = append(f.asked, "drop "+id); return f.err }}
}

func TestLeaseKeys(t *testing.T) {
	g := newRig(t, here)
	const keys = `{"lease_keys":[{"id":"k2","not_after":null},{"id":"k1","not_after":"1970-01-01T00:00:01Z"}]}`
	for _, c := range []struct{ method, path string }{
		{"GET", "/admin/v1/lease-keys"}, {"POST", "/admin/v1/lease-keys/rotate"}, {"POST", "/admin/v1/lease-keys/k1/drop"},
	} {
		if w, body := g.ask(c.method, c.path, here); w.StatusCode != 200 || strings.TrimSpace(body) != keys {
			t.Errorf("%s %s: %s %s", c.method, c.path, w.Status, body)
		}
	}
	if want := []string{"rotate", "drop k1"}; !slices.Equal(g.slots.asked, want) {
		t.Errorf("%q, want %q", g.slots.asked, want)
	}
	g.slots.err = errors.New("the state directory is full")
	if w, body := g.ask("POST", "/admin/v1/lease-keys/rotate", here); w.StatusCode != 409 || !strings.Contains(body, "directory is full") {
		t.Errorf("%s %s", w.Status, body)
	}
}

func (f *fakeSlots) do(what, id string) (SlotChange, error) {
	f.asked = append(f.asked, what+" "+id)
	if id != "s" && id != "x" {
		return SlotChange{}, ErrUnknownSlot
	}
	return f.change, f.err
}

func TestSlotsAreShown(t *testing.T) {
	g := newRig(t, here)
	if resp, body := g.ask("GET", "/admin/v1/slots", here); resp.StatusCode != 200 || body != `{"slots":[]}`+"\n" {
		t.Errorf("%s %s", resp.Status, body)
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	g.slots.status = []SlotStatus{{ID: "s", State: SlotActive, Revision: 7, SourceKind: "file", Profile: "p", Header: "Authorization", Origin: "https://h:443",
		Nodes: []string{"n"}, Length: 51, Fingerprint: "0a1b2c3d", Since: since, LastRefresh: since, Routes: []string{"gpt"}},
		{ID: "x", State: SlotDisabled, Reason: "by an operator"}}
	_, body := g.ask("GET", "/admin/v1/slots", here)
	want := `{"slots":[{"id":"s","state":"active","reason":"","revision":7,"source":"file","profile":"p","header":"Authorization","origin":"https://h:443","nodes":["n"],` +
		`"length":51,"fingerprint":"0a1b2c3d","since":"2026-01-02T03:04:05Z","last_refresh":"2026-01-02T03:04:05Z","routes":["gpt"]},` +
		`{"id":"x","state":"disabled","reason":"by an operator","revision":0,"source":"","profile":"","header":"","origin":"","nodes":[],` +
		`"length":0,"fingerprint":"","since":null,"last_refresh":null,"routes":[]}]}` + "\n"
	if body != want {
		t.Errorf("got  %s\nwant %s", body, want)
	}
}

func TestSlotsAreChanged(t *testing.T) {
	const same = `{"slot":"s","state":"revoked","revision":9,"running":["r1"],"unanswered":[],"cancelled":[]}` + "\n"
	for _, c := range []struct {
		path, body string
		err        error
		status     int
		says       string
		asked      string
	}{
		{"s/refresh", "", nil, 200, same, "refresh s"},
		{"s/disable", "{}", nil, 200, same, "disable s"},
		{"s/enable", "", nil, 200, same, "enable s"},
		{"s/revoke", "", nil, 200, same, "revoke false s"},
		{"s/revoke", `{"cancel_running":true}`, nil, 200, same, "revoke true s"},
		{"nobody/revoke", "", nil, 404, "no slot of that id is configured", "revoke false nobody"},
		{"s/enable", "", errors.New("its key was revoked"), 409, "its key was revoked", "enable s"},
		{"s/enable", "", fmt.Errorf("slot s: %w", ErrUnknownSlot), 404, "no slot of that id is configured", "enable s"},
		{"s/revoke", `{"cancel_running":1}`, nil, 400, "cancel_running", ""},
		{"s/revoke", `{"all":true}`, nil, 400, `unknown member \"all\"`, ""},
		{"s/disable", `{"cancel_running":true}`, nil, 400, `unknown member \"cancel_running\"`, ""},
		{"s/refresh", `true`, nil, 400, "must be an object", ""},
	} {
		g := newRig(t, here)
		g.slots.change = SlotChange{Slot: "s", State: SlotRevoked, Revision: 9, Running: []string{"r1"}}
		if g.slots.err = c.err; c.err != nil {
			g.slots.change = SlotChange{}
		}
		if resp, body := g.post("/admin/v1/slots/"+c.path, c.body); resp.StatusCode != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %s %s", c.path, c.body, resp.Status, body)
		}
		if got := strings.Join(g.slots.asked, ", "); got != c.asked {
			t.Errorf("%s %s: done %q, want %q", c.path, c.body, got, c.asked)
		}
		// Who does what is recorded, whatever comes of it.
		id, _, _ := strings.Cut(c.path, "/")
		if recorded := strings.Contains(g.log.String(), `"slot":"`+id+`"`) && strings.Contains(g.log.String(), `s a slot"`); recorded != (c.asked != "") {
			t.Errorf("%s %s: log %s", c.path, c.body, g.log.String())
		}
	}
}

func TestAnEdgeWithoutSlotsSaysSo(t *testing.T) {
	g := newRig(t, here)
	g.h.(*handler).cfg.Slots = nil
	if resp, body := g.ask("GET", "/admin/v1/slots", here); resp.StatusCode != 404 || !strings.Contains(body, "no slots: none are configured") {
		t.Errorf("%s %s", resp.Status, body)
	}
	for _, what := range []string{"refresh", "disable", "enable", "revoke"} {
		if resp, body := g.post("/admin/v1/slots/s/"+what, ""); resp.StatusCode != 404 || !strings.Contains(body, "no slots: none are configured") {
			t.Errorf("%s: %s %s", what, resp.Status, body)
		}
	}
}

func TestMetricsOfSlots(t *testing.T) {
	got := scrape(t, NewMetrics("", whole()))
	wantLines(t, got, `iop_slot_state{slot="s",state="active"} 0`, `iop_slot_state{slot="s",state="disabled"} 0`, `iop_slot_state{slot="s",state="revoked"} 1`,
		`iop_slot_revision{slot="s"} 41`, `iop_leases_total{result="committed",slot="s"} 42`, `iop_leases_total{result="void",slot="s"} 43`,
		`iop_lease_refusals_total{reason="expired"} 44`, `iop_slot_refresh_failures_total{slot="s"} 45`, `iop_lease_security_events_total 46`,
		`iop_lease_unknown_ends_total 47`)
}
