package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"iop/apps/edge/internal/events"
	"iop/packages/go/config"
	"iop/packages/go/credentiallease"
	"iop/packages/go/execution"
)

// told is all that anybody was told, in every form in which it may be shown.
type told struct{ bytes.Buffer }

func (s *told) tell(values ...any) {
	log := zerolog.New(s)
	for _, v := range values {
		fmt.Fprintf(s, "%v %+v %#v %s %q %x\n", v, v, v, v, v, v)
		text, err := json.Marshal(v)
		fmt.Fprintf(s, "%s %v\n", text, err)
		fmt.Fprintln(s, gob.NewEncoder(s).Encode(v))
		log.Info().Interface("v", v).Any("a", v).Msg("")
	}
}

// useEverything has a store do all that it can do with keyA and keyB, well and badly, and tells what it says.
func (r *rig) useEverything(said *told) {
	n := r.node("gpu-1", 1)
	ctx, cancel := context.WithCancel(r.t.Context())
	cancel()
	l := r.lend(n.to, "run")
	_, err := n.use(l, "run")
	check(r.t, err)
	l.Refused(execution.LeaseRefusal{Reason: uint8(credentiallease.BindingMismatch), Field: uint8(credentiallease.FieldPath)})
	r.store.Ended("gpu-2", l.ID(), true, execution.LeaseRefusal{})
	out, _ := l.Scanner().Pass([]byte("tail " + keyA[:9]))
	said.tell(r.store, l, l.Scanner(), r.store.slots, r.store.slots["main"], r.store.slots["main"].key, l.entry, r.store.sources, r.store.ring, r.store.Keys(),
		r.order(n.to, "run"), string(out))
	for _, f := range []func(context.Context, string) (Change, error){r.store.Disable, r.store.Enable, r.store.Revoke, r.store.Enable} {
		c, err := f(ctx, "main")
		said.tell(c, err)
	}
	_, f := r.store.Issue(r.order(n.to, "run"))
	said.tell(f)
	for _, content := range []string{keyB, keyA, keyA + " ", keyA + "\n" + keyB, keyA[:7], strings.Repeat(keyA, 200)} {
		check(r.t, os.WriteFile(r.file, []byte(content), 0o600))
		_, err := r.store.Refresh(r.t.Context(), "main")
		said.tell(err)
		_, err = r.tryOpen()
		said.tell(err)
		_, err = Inspect(r.edge())
		said.tell(err, r.store.Check(r.state.Load()))
	}
	r.configure(func(e *config.Edge) { // a key where its place should be
		e.Slots[0].Source = fileSource(filepath.Join("/nonexistent", keyA))
		s := e.Slots[0]
		s.ID, s.Source = "exec", program("/nonexistent/"+keyA, keyB)
		e.Slots = append(e.Slots, s)
	})
	said.tell(r.store.Check(r.state.Load()))
	r.store.Reconfigured()
	said.tell(r.store.Status(), r.store.Counts(), r.store.Slots([]string{"main", "exec"}))
	r.broken = func(string) error { return errBroken }
	_, err = r.store.Disable(ctx, "exec")
	said.tell(err)
}

// CR-06, CR-08, E44: nothing that this package logs at trace, publishes, writes, answers or says of an error has a part of a
// key in it, plain or encoded; nor does anything print one that holds one.
func TestNothingShowsAKey(t *testing.T) {
	r := opened(t)
	var said told
	r.useEverything(&said)
	for len(r.heard.C) > 0 {
		said.tell(<-r.heard.C)
	}
	where := map[string]string{"the log": r.log.String(), "what was said": said.String()}
	check(t, filepath.WalkDir(filepath.Join(r.dir, "state"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := os.ReadFile(path)
			where[path] = string(text)
		}
		return err
	}))
	if len(where) < 4 || !strings.Contains(where["the log"], "lease misused") || !strings.Contains(where["the log"], "slot changed") {
		t.Fatalf("the test isn't worth much: %d places", len(where))
	}
	for what, text := range where {
		for _, key := range []string{keyA, keyB} {
			showsNothingOf(t, what, text, key)
		}
	}
}

func showsNothingOf(t *testing.T, what, text, key string) {
	t.Helper()
	for i := 0; i+6 <= len(key); i++ {
		// Not what all keys of these tests begin with: their names have it, too.
		if window := key[i : i+6]; !strings.Contains("sk-canary-", window) && strings.Contains(text, window) {
			t.Errorf("%s has %d to %d of a key", what, i, i+6)
		}
	}
	for form, encoded := range map[string]string{
		"hex": hex.EncodeToString([]byte(key)), "base64": base64.StdEncoding.EncodeToString([]byte(key))[:20],
		"an escape": url.QueryEscape(key), "decimal": strings.Trim(fmt.Sprint([]byte(key[:8])), "[]"),
	} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(encoded)) {
			t.Errorf("%s has a key in %s", what, form)
		}
	}
}

// The audit has every lease and every refusal, with what an operator needs to find it.
func TestAudit(t *testing.T) {
	r := opened(t)
	to, _ := recipient(t, "gpu-1", 5)
	l := r.lend(to, "run-1")
	l.Refused(because(credentiallease.Replayed))
	o := r.order(to, "run-2")
	o.Proven = false
	r.refused(o)
	for _, want := range []map[string]any{
		{"message": "lease issued", "level": "info", "run_id": "run-1", "slot": "main", "node_id": "gpu-1", "connection_generation": 5.0, "attempt": 1.0, "lease_id": l.ID()},
		{"message": "lease refused", "level": "warn", "run_id": "run-1", "reason": "replayed", "by": "node", "lease_id": l.ID()},
		{"message": "lease refused", "level": "warn", "run_id": "run-2", "reason": "identity_required", "by": "edge", "node_id": "gpu-1"},
	} {
		if !r.logged(want) {
			t.Errorf("no line with %v in\n%s", want, r.log)
		}
	}
	var seen []events.Event
	for len(r.heard.C) > 0 {
		seen = append(seen, <-r.heard.C)
	}
	if len(seen) != 2 || seen[0].Kind != events.KindLeaseMisused || seen[0].Code != "replayed" || seen[0].RunID != "run-1" || seen[0].NodeID != "gpu-1" ||
		seen[1].Kind != events.KindLeaseRefused || seen[1].Code != "identity_required" || seen[1].Generation != 5 {
		t.Errorf("%+v", seen)
	}
	if got := r.store.Counts(); got.Security != 1 || got.Refusals["replayed"] != 1 || got.Leases["main"]["refused"] != 1 || got.Leases["main"]["unavailable"] != 1 {
		t.Errorf("%+v", got)
	}
}

// A slot that refuses every request doesn't push out of the bus what happened to nodes. The log has each refusal.
func TestEventsOfLeasesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := opened(t)
		r.store.quiet = quiet
		to, _ := recipient(t, "gpu-1", 1)
		o := r.order(to, "run")
		o.Proven = false
		refuse := func(n int) int {
			for range n {
				r.refused(o)
			}
			return r.kinds()[events.KindLeaseRefused]
		}
		if n := refuse(100); n != 1 {
			t.Errorf("%d events", n)
		}
		time.Sleep(quiet)
		if n := refuse(100); n != 1 {
			t.Errorf("%d events a second later", n)
		}
		o.NodeID = "gpu-2"
		if n := refuse(1); n != 1 {
			t.Errorf("%d events of something else", n)
		}
		if n := strings.Count(r.log.String(), "lease refused"); n != 201 || r.store.Counts().Leases["main"]["unavailable"] != 201 {
			t.Errorf("%d lines", n)
		}
	})
}

func (r *rig) logged(want map[string]any) bool {
	for line := range strings.Lines(r.log.String()) {
		var got map[string]any
		if json.Unmarshal([]byte(line), &got) != nil {
			continue
		}
		all := true
		for k, v := range want {
			all = all && got[k] == v
		}
		if all {
			return true
		}
	}
	return false
}

// Errors are found by what they are, and show only what they should.
func TestErrorsAreFound(t *testing.T) {
	_, err := readPrivate(filepath.Join(t.TempDir(), "x"), 1, false)
	if !errors.Is(err, fs.ErrNotExist) || err.Error() != "doesn't exist" {
		t.Error(err)
	}
}
