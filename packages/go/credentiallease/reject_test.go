package credentiallease

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

const contract = "../../../agent-contract/inner/credential-lease.md"

// raisedElsewhere are the reasons that this package numbers and others raise.
func raisedElsewhere() map[Refusal]bool {
	return map[Refusal]bool{
		{InjectionFailed, FieldNoPlaceholder}: true, // the injector
		{InjectionFailed, FieldNotInjectConn}: true, // the injector
		{InjectionFailed, FieldHeadTooLarge}:  true, // the injector, and TestPageTooSmall
		{IdentityRequired, FieldNone}:         true, // Issue: TestIssueRefuses
	}
}

// Every reason has a vector, or is known to be raised by others.
func TestEveryReasonHasAVector(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range newVectorSource(t).vectors() {
		name, _, _ := strings.Cut(v.Want, "(")
		seen[name] = true
	}
	for r := range raisedElsewhere() {
		seen[r.Reason.String()] = true
	}
	for _, r := range Reasons() {
		if !seen[r.String()] {
			t.Errorf("%v has no vector", r)
		}
	}
}

// The numbers are on the wire: a change of one is a change of the protocol.
func TestNumbersStay(t *testing.T) {
	var got strings.Builder
	for _, r := range Reasons() {
		fmt.Fprintf(&got, "%d %v, ", r, r)
	}
	const want = "1 malformed, 2 unsupported_version, 3 unknown_key, 4 bad_signature, 5 wrong_recipient, 6 stale_generation, " +
		"7 disabled, 8 revoked, 9 stale_revision, 10 not_yet_valid, 11 expired, 12 ttl_too_long, 13 binding_mismatch, 14 replayed, " +
		"15 replay_cache_full, 16 clock_unsynced, 17 unsealed_too_early, 18 open_failed, 19 bad_secret, 20 unused, " +
		"21 injection_failed, 22 origin_refused, 23 header_refused, 24 plaintext_origin_refused, 25 identity_required, "
	if got.String() != want {
		t.Errorf("reasons: %s", got.String())
	}
	got.Reset()
	for _, f := range Fields() {
		fmt.Fprintf(&got, "%d %v, ", f, f)
	}
	const wantFields = "1 issuer, 2 kid, 3 lease_id, 4 principal, 5 route, 6 slot, 7 profile, 8 adapter, 9 upstream_target, 10 node_id, " +
		"11 recipient_key_id, 12 connection, 13 projection, 14 run_id, 15 slot_revision, 16 issued_at_ms, 17 not_before_ms, " +
		"18 expires_at_ms, 19 header_name, 20 scheme, 21 origin, 22 method, 23 path, 24 attempt, 25 lease, 26 claims, 27 enc, " +
		"28 ciphertext, 29 signature, 30 no_placeholder, 31 not_inject_conn, 32 head_too_large, "
	if got.String() != wantFields {
		t.Errorf("fields: %s", got.String())
	}
	if s := Reason(0).String() + Reason(200).String() + Field(200).String(); s != "reason_0reason_200field_200" {
		t.Errorf("unknown numbers: %s", s)
	}
}

// The contract has a row for every reason, with its number and whether it is tried again or raises an event.
func TestContractHasEveryReason(t *testing.T) {
	text, err := os.ReadFile(contract)
	check(t, err)
	for _, r := range Reasons() {
		what := "—"
		switch {
		case r.Retry():
			what = "once more"
		case r.Security():
			what = "event"
		}
		row := fmt.Sprintf("(?m)^\\| %d \\| `%s` \\|.*\\| %s \\|$", r, r, what)
		if !regexp.MustCompile(row).Match(text) {
			t.Errorf("%s has no row that matches %s", contract, row)
		}
	}
	for _, f := range Fields() {
		if !strings.Contains(string(text), fmt.Sprintf("%d `%s`", f, f)) {
			t.Errorf("%s doesn't name field %d %v", contract, f, f)
		}
	}
}

// A refusal that is tried again with a fresh lease is never one that an attack causes.
func TestRetryAndSecurityAreApart(t *testing.T) {
	for _, r := range Reasons() {
		if r.Retry() && r.Security() {
			t.Errorf("%v is both", r)
		}
	}
	if got := refuse(BindingMismatch, FieldPath).Error(); got != "lease refused: binding_mismatch(path)" {
		t.Error(got)
	}
}
