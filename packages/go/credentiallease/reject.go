package credentiallease

import "strconv"

// Reason is why a lease was refused. The numbers are on the wire and in audits: the list only grows, and a number is
// never used again. Each has a vector in testdata, unless another package raises it, and a row in
// agent-contract/inner/credential-lease.md.
type Reason uint8

// The reasons. InjectionFailed is raised by whoever puts a secret into a request; IdentityRequired by Issue and by an
// edge that has no identity of a node to go by.
const (
	Malformed              Reason = 1
	UnsupportedVersion     Reason = 2
	UnknownKey             Reason = 3
	BadSignature           Reason = 4
	WrongRecipient         Reason = 5
	StaleGeneration        Reason = 6
	Disabled               Reason = 7
	Revoked                Reason = 8
	StaleRevision          Reason = 9
	NotYetValid            Reason = 10
	Expired                Reason = 11
	TTLTooLong             Reason = 12
	BindingMismatch        Reason = 13
	Replayed               Reason = 14
	ReplayCacheFull        Reason = 15
	ClockUnsynced          Reason = 16
	UnsealedTooEarly       Reason = 17
	OpenFailed             Reason = 18
	BadSecret              Reason = 19
	Unused                 Reason = 20
	InjectionFailed        Reason = 21
	OriginRefused          Reason = 22
	HeaderRefused          Reason = 23
	PlaintextOriginRefused Reason = 24
	IdentityRequired       Reason = 25
)

var reasonNames = [...]string{
	Malformed:              "malformed",
	UnsupportedVersion:     "unsupported_version",
	UnknownKey:             "unknown_key",
	BadSignature:           "bad_signature",
	WrongRecipient:         "wrong_recipient",
	StaleGeneration:        "stale_generation",
	Disabled:               "disabled",
	Revoked:                "revoked",
	StaleRevision:          "stale_revision",
	NotYetValid:            "not_yet_valid",
	Expired:                "expired",
	TTLTooLong:             "ttl_too_long",
	BindingMismatch:        "binding_mismatch",
	Replayed:               "replayed",
	ReplayCacheFull:        "replay_cache_full",
	ClockUnsynced:          "clock_unsynced",
	UnsealedTooEarly:       "unsealed_too_early",
	OpenFailed:             "open_failed",
	BadSecret:              "bad_secret",
	Unused:                 "unused",
	InjectionFailed:        "injection_failed",
	OriginRefused:          "origin_refused",
	HeaderRefused:          "header_refused",
	PlaintextOriginRefused: "plaintext_origin_refused",
	IdentityRequired:       "identity_required",
}

// Reasons returns every reason in ascending order.
func Reasons() []Reason {
	all := make([]Reason, 0, len(reasonNames)-1)
	for i := 1; i < len(reasonNames); i++ {
		all = append(all, Reason(i))
	}
	return all
}

// String returns the stable name that events, audits and logs show.
func (r Reason) String() string {
	if r > 0 && int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "reason_" + strconv.Itoa(int(r))
}

// Retry reports whether the edge may issue one fresh lease for the same decision (same node, slot, route) after it has
// read its state again. Everything else ends the request.
func (r Reason) Retry() bool {
	switch r {
	case Expired, NotYetValid, StaleGeneration, StaleRevision, ReplayCacheFull:
		return true
	}
	return false
}

// Security reports whether the refusal can only come of an attack or a broken program, so that it raises a security
// event.
func (r Reason) Security() bool {
	switch r {
	case BadSignature, Replayed, WrongRecipient, OpenFailed, BindingMismatch:
		return true
	}
	return false
}

// Field names what a refusal is about. It is a name from this list, never a value. The numbers only grow.
type Field uint8

// The fields: of the claims, then of the envelope, then of injecting.
const (
	FieldNone         Field = 0
	FieldIssuer       Field = 1
	FieldKeyID        Field = 2
	FieldLeaseID      Field = 3
	FieldPrincipal    Field = 4
	FieldRoute        Field = 5
	FieldSlot         Field = 6
	FieldProfile      Field = 7
	FieldAdapter      Field = 8
	FieldTarget       Field = 9
	FieldNodeID       Field = 10
	FieldRecipientKey Field = 11
	FieldConnection   Field = 12
	FieldProjection   Field = 13
	FieldRunID        Field = 14
	FieldSlotRevision Field = 15
	FieldIssuedAt     Field = 16
	FieldNotBefore    Field = 17
	FieldExpiresAt    Field = 18
	FieldHeader       Field = 19
	FieldScheme       Field = 20
	FieldOrigin       Field = 21
	FieldMethod       Field = 22
	FieldPath         Field = 23
	FieldAttempt      Field = 24

	FieldLease      Field = 25
	FieldClaims     Field = 26
	FieldEnc        Field = 27
	FieldCiphertext Field = 28
	FieldSignature  Field = 29

	FieldNoPlaceholder Field = 30
	FieldNotInjectConn Field = 31
	FieldHeadTooLarge  Field = 32
)

var fieldNames = [...]string{
	FieldNone:          "",
	FieldIssuer:        "issuer",
	FieldKeyID:         "kid",
	FieldLeaseID:       "lease_id",
	FieldPrincipal:     "principal",
	FieldRoute:         "route",
	FieldSlot:          "slot",
	FieldProfile:       "profile",
	FieldAdapter:       "adapter",
	FieldTarget:        "upstream_target",
	FieldNodeID:        "node_id",
	FieldRecipientKey:  "recipient_key_id",
	FieldConnection:    "connection",
	FieldProjection:    "projection",
	FieldRunID:         "run_id",
	FieldSlotRevision:  "slot_revision",
	FieldIssuedAt:      "issued_at_ms",
	FieldNotBefore:     "not_before_ms",
	FieldExpiresAt:     "expires_at_ms",
	FieldHeader:        "header_name",
	FieldScheme:        "scheme",
	FieldOrigin:        "origin",
	FieldMethod:        "method",
	FieldPath:          "path",
	FieldAttempt:       "attempt",
	FieldLease:         "lease",
	FieldClaims:        "claims",
	FieldEnc:           "enc",
	FieldCiphertext:    "ciphertext",
	FieldSignature:     "signature",
	FieldNoPlaceholder: "no_placeholder",
	FieldNotInjectConn: "not_inject_conn",
	FieldHeadTooLarge:  "head_too_large",
}

// Fields returns every field in ascending order, without FieldNone.
func Fields() []Field {
	all := make([]Field, 0, len(fieldNames)-1)
	for i := 1; i < len(fieldNames); i++ {
		all = append(all, Field(i))
	}
	return all
}

// String returns the field's stable name, "" for none.
func (f Field) String() string {
	if int(f) < len(fieldNames) {
		return fieldNames[f]
	}
	return "field_" + strconv.Itoa(int(f))
}

// Refusal is why a lease was refused, and which field it is about where there is one. It holds no value of anything,
// so it may be logged and sent. It is comparable, and every error of Issue, Verify and Redeem that isn't the sender's
// own is one.
type Refusal struct {
	Reason Reason
	Field  Field
}

// Error implements error: "lease refused: binding_mismatch(path)".
func (r Refusal) Error() string { return "lease refused: " + r.String() }

// String returns the reason with its field, as events and audits show it.
func (r Refusal) String() string {
	if r.Field == FieldNone {
		return r.Reason.String()
	}
	return r.Reason.String() + "(" + r.Field.String() + ")"
}

func refuse(reason Reason, field Field) error { return Refusal{Reason: reason, Field: field} }
