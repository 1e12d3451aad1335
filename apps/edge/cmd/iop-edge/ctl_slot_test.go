package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestCtlSlotList(t *testing.T) {
	f := newFakeAdmin(t)
	at := time.Now().Add(-90 * time.Minute).Format(time.RFC3339Nano)
	f.answer = `{"slots":[{"id":"openai-main","state":"active","reason":"","revision":7,"source":"file","profile":"p","header":"Authorization","origin":"https://api.openai.com:443",` +
		`"nodes":["gpu-1","gpu-2"],"length":51,"fingerprint":"0a1b2c3d","since":"` + at + `","last_refresh":"` + at + `","routes":["gpt"]},` +
		`{"id":"x","state":"disabled","reason":"its source can't be read\u001b[2J","revision":8,"source":"env","profile":"p","header":"X-Api-Key","origin":"https://h:443","nodes":[],"length":0,` +
		`"fingerprint":"","since":null,"last_refresh":null,"routes":[]}]}` + "\n"
	f.want(t, []string{"slot", "list"}, "GET /admin/v1/slots", `
SLOT         STATE     REVISION  SINCE   SOURCE  READ    KEY                 ORIGIN                      HEADER         NODES         ROUTES  NOTE
openai-main  active    7         1h ago  file    1h ago  0a1b2c3d, 51 bytes  https://api.openai.com:443  Authorization  gpu-1, gpu-2  gpt     -
x            disabled  8         -       env     -       -                   https://h:443               X-Api-Key      -             -       its source can't be read?[2J
`)
}

func TestCtlSlotChanges(t *testing.T) {
	f := newFakeAdmin(t)
	f.answer = `{"slot":"s","state":"active","revision":9,"running":[],"unanswered":[],"cancelled":[]}` + "\n"
	f.answer = `{"lease_keys":[{"id":"k2","not_after":null},{"id":"k1","not_after":"2026-01-02T03:04:05Z"}]}` + "\n"
	f.want(t, []string{"lease-key", "rotate"}, "POST /admin/v1/lease-keys/rotate", "KEY  ACCEPTED\nk2   in use\nk1   until 2026-01-02T03:04:05Z\n")
	f.want(t, []string{"lease-key", "drop", "k 1"}, "POST /admin/v1/lease-keys/k%201/drop", "KEY  ACCEPTED\nk2   in use\nk1   until 2026-01-02T03:04:05Z\n")
	f.answer = `{"slot":"s","state":"active","revision":9,"running":[],"unanswered":[],"cancelled":[]}` + "\n"
	f.want(t, []string{"slot", "refresh", "s"}, "POST /admin/v1/slots/s/refresh", "slot s: active, revision 9\n")
	f.want(t, []string{"slot", "enable", "../s"}, "POST /admin/v1/slots/..%2Fs/enable", "slot s: active, revision 9\n")
	f.answer = `{"slot":"s","state":"disabled","revision":10,"running":["r1","r2"],"unanswered":["gpu-1"],"cancelled":[]}` + "\n"
	f.want(t, []string{"slot", "disable", "s"}, "POST /admin/v1/slots/s/disable", `
slot s: disabled, revision 10
2 runs with the key on the wire: r1, r2
no answer yet from: gpu-1; what they were lent and didn't use ends by itself
`)
	f.answer = `{"slot":"s","state":"revoked","revision":11,"running":["r1"],"unanswered":[],"cancelled":["r1"]}` + "\n"
	f.want(t, []string{"slot", "revoke", "s"}, `POST /admin/v1/slots/s/revoke {"cancel_running":false}`, "slot s: revoked, revision 11\n1 run with the key on the wire: r1\ncancelled: r1\n")
	f.want(t, []string{"slot", "revoke", "s", "--cancel-running"}, `POST /admin/v1/slots/s/revoke {"cancel_running":true}`, "slot s: revoked, revision 11\n1 run with the key on the wire: r1\ncancelled: r1\n")
}

func TestCtlSlotRefused(t *testing.T) {
	f := newFakeAdmin(t)
	f.status, f.answer = 409, `{"error":{"message":"its key was revoked; put a new one into its source","code":"credential_unavailable"}}`
	if code, out, errs := f.ctl("slot", "enable", "s"); code != 1 || out != "" || !strings.Contains(errs, "its key was revoked; put a new one into its source") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	for _, args := range [][]string{{"slot", "revoke"}, {"slot", "revoke", "a", "b"}, {"slot", "list", "a"}, {"slot", "disable", "a", "--cancel-running"}} {
		if code, _, errs := f.ctl(args...); code != 2 || errs == "" {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
}

// E45: check reads the sources, says which can't be used, and shows nothing of a key.
func TestCheckReadsTheSlots(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, args := range [][]string{{"ca", "init", "--trust-domain", "iop.example"}, {"ca", "issue", "edge", "--out", "edge"}} {
		if _, err := caRun(t, args...); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	const key = "sk-proj-S3CR3T-0123456789"
	t.Setenv("TEST_SLOT_KEY", key+"0")
	config := func(slots string) {
		write(t, "edge.yaml", "mode: managed\ntls: {cert: edge/cert.pem, key: edge/key.pem, ca: edge/ca.pem, trust_domain: iop.example}\n"+
			"profiles: [{id: p, origin: https://h, paths: [POST /v1/chat/completions]}]\nslots:\n"+slots)
	}
	write(t, "good.key", key+"\n")
	write(t, "open.key", key+"\n")
	write(t, "empty.key", "")
	write(t, "two.key", key+"\n"+key+"\n")
	if err := os.Chmod("open.key", 0o644); err != nil {
		t.Fatal(err)
	}
	config("- {id: a, source: 'file:good.key', profile: p}\n- {id: b, source: 'env:TEST_SLOT_KEY', profile: p}\n")
	out, err := caRun(t, "check", "-c", "edge.yaml")
	if err != nil || !strings.Contains(out, "2 slots") || !strings.HasSuffix(out, "SLOT  SOURCE  KEY\na     file    25 bytes\nb     env     26 bytes\n") {
		t.Errorf("%v\n%s", err, out)
	}
	config("- {id: a, source: 'file:good.key', profile: p}\n- {id: b, source: 'file:open.key', profile: p}\n- {id: c, source: 'file:empty.key', profile: p}\n" +
		"- {id: d, source: 'file:two.key', profile: p}\n- {id: e, source: 'file:missing.key', profile: p}\n")
	out, err = caRun(t, "check", "-c", "edge.yaml")
	if err == nil {
		t.Fatalf("sources that can't be used are accepted:\n%s", out)
	}
	for _, id := range []string{"b", "c", "d", "e"} {
		if !strings.Contains(err.Error(), "slot "+id+": ") {
			t.Errorf("nothing is said of slot %s: %v", id, err)
		}
	}
	if all := out + err.Error(); strings.Contains(all, "S3CR3T") || strings.Contains(all, "slot a: ") {
		t.Errorf("%v\n%s", err, out)
	}
}
