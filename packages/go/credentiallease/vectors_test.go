package credentiallease

import (
	"bytes"
	"crypto/hpke"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"
)

var update = flag.Bool("update", false, "make testdata/vectors.json again")

const vectorFile = "testdata/vectors.json"

// keyOf is a seed of the vectors' keys, which are known to everybody.
func keyOf(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

const (
	signerSeed, secondSeed, strangerSeed byte = 0x11, 0x22, 0x33
	recipientSeed, otherSeed             byte = 0x44, 0x55
)

// vector is one lease and what a node says of it. The node is the one that the file describes.
type vector struct {
	Name  string `json:"name"`
	Case  string `json:"case"`            // the row of the list of attacks
	After string `json:"after,omitempty"` // what is done before: see prepare
	Want  string `json:"want"`            // the refusal, or "the secret"
	At    string `json:"at"`              // verify, redeem or end
	Lease []byte `json:"lease"`           // CredentialLease

	make func(*vectorSource) []byte
}

// vectorNode is the node of the vectors, for other implementations to read.
type vectorNode struct {
	SignerSeed, SecondSeed, RecipientSeed []byte
	Config                                Config
	Projection                            Projection
	Binding                               Binding
	Now                                   Time
	Secret                                string
}

type vectorDocument struct {
	Remark  string     `json:"remark"`
	Node    vectorNode `json:"node"`
	Vectors []vector   `json:"vectors"`
}

type vectorSource struct {
	*world
	t                *testing.T
	second, stranger *SigningKey
	other            *RecipientKey
}

func newVectorSource(t *testing.T) *vectorSource {
	t.Helper()
	s := &vectorSource{t: t, second: seeded(t, secondSeed), stranger: seeded(t, strangerSeed), other: recipientOf(t, otherSeed)}
	s.world = worldOf(t, seeded(t, signerSeed), recipientOf(t, recipientSeed))
	check(t, s.guard.Project(s.vectorProjection()))
	return s
}

func seeded(t *testing.T, seed byte) *SigningKey {
	t.Helper()
	k, err := NewSigningKey(keyOf(seed))
	check(t, err)
	return k
}

func recipientOf(t *testing.T, seed byte) *RecipientKey {
	t.Helper()
	private, err := hpke.MLKEM768X25519().NewPrivateKey(keyOf(seed))
	check(t, err)
	return recipientKey(private)
}

func (s *vectorSource) vectorProjection() Projection {
	p := s.projection(3)
	p.Keys = append(p.Keys, VerifyKey{ID: s.second.ID(), Public: s.second.Public()},
		VerifyKey{ID: s.stranger.ID(), Public: s.stranger.Public(), NotBefore: edgeTime - 100*second, NotAfter: edgeTime})
	return p
}

// claim changes the claims of a lease that is sealed and signed as it should be.
func claimed(change func(*Claims)) func(*vectorSource) []byte {
	return func(s *vectorSource) []byte {
		d := s.draft()
		change(&d.claims)
		return d.wire(s.t)
	}
}

func drafted(change func(*draft)) func(*vectorSource) []byte {
	return func(s *vectorSource) []byte {
		d := s.draft()
		change(d)
		return d.wire(s.t)
	}
}

func corrupted(change func(*envelope)) func(*vectorSource) []byte {
	return drafted(func(d *draft) { d.corrupted = change })
}

func sealing(plain []byte) func(*vectorSource) []byte {
	return drafted(func(d *draft) { d.plain = plain })
}

func rawClaims(change func([]byte) []byte) func(*vectorSource) []byte {
	return drafted(func(d *draft) { d.raw = change })
}

func same(*Claims) {}

func (s *vectorSource) vectors() []vector {
	return slices.Concat(vectorsOfForm(), vectorsOfKeys(), vectorsOfState(), vectorsOfBinding(), vectorsOfUse())
}

func vectorsOfForm() []vector {
	return []vector{
		{Name: "good", Case: "A4", Want: "the secret", At: "redeem", make: claimed(same)},
		{Name: "longest secret", Case: "A4", Want: "the secret", At: "redeem", make: sealing(pad(bytes.Repeat([]byte{'s'}, MaxSecret)))},
		{Name: "signature of 63 bytes", Case: "E2", Want: "malformed(signature)", At: "verify",
			make: corrupted(func(e *envelope) { e.sig = e.sig[:63] })},
		{Name: "empty enc", Case: "E2", Want: "malformed(enc)", At: "verify", make: corrupted(func(e *envelope) { e.enc = nil })},
		{Name: "no lease", Case: "E2", Want: "malformed(lease)", At: "verify", make: func(*vectorSource) []byte { return nil }},
		{Name: "claims over 8 KiB", Case: "E2", Want: "malformed(lease)", At: "verify",
			make: corrupted(func(e *envelope) { e.claims = make([]byte, maxClaims+1) })},
		{Name: "no claims", Case: "E2", Want: "malformed(claims)", At: "verify", make: corrupted(func(e *envelope) { e.claims = nil })},
		{Name: "ciphertext cut", Case: "E2", Want: "malformed(ciphertext)", At: "verify",
			make: corrupted(func(e *envelope) { e.sealed = e.sealed[1:] })},
		{Name: "short kid", Case: "E2", Want: "malformed(kid)", At: "verify", make: corrupted(func(e *envelope) { e.kid = e.kid[1:] })},
		{Name: "version 2", Case: "E3", Want: "unsupported_version", At: "verify", make: corrupted(func(e *envelope) { e.version = 2 })},
		{Name: "claims with a byte more", Case: "E17", Want: "malformed(claims)", At: "verify",
			make: rawClaims(func(b []byte) []byte { return append(b, 0) })},
		{Name: "claims cut", Case: "E17", Want: "malformed(path)", At: "verify", make: rawClaims(func(b []byte) []byte { return b[:len(b)-1] })},
		{Name: "unknown field", Case: "E17", Want: "malformed(claims)", At: "verify",
			make: rawClaims(func(b []byte) []byte { return appendUint(b, 29, 1) })},
		{Name: "reserved field", Case: "E17", Want: "malformed(claims)", At: "verify",
			make: rawClaims(func(b []byte) []byte { return appendUint(b, 16, 1) })},
		{Name: "path twice", Case: "E17", Want: "malformed(claims)", At: "verify",
			make: rawClaims(func(b []byte) []byte { return appendBytes(b, 28, "/v1/other") })},
		{Name: "no lease id", Case: "E17", Want: "malformed(lease_id)", At: "verify", make: rawClaims(func(b []byte) []byte {
			i := bytes.Index(b, []byte{3<<3 | wireBytes, leaseIDSize})
			return slices.Delete(bytes.Clone(b), i, i+2+leaseIDSize)
		})},
		{Name: "ends before it begins", Case: "E11", Want: "malformed(expires_at_ms)", At: "verify",
			make: claimed(func(c *Claims) { c.ExpiresAt = c.NotBefore })},
		{Name: "path with a query", Case: "E8", Want: "malformed(path)", At: "verify", make: claimed(func(c *Claims) { c.Path += "?key=x" })},
		{Name: "method in lower case", Case: "E34", Want: "malformed(method)", At: "verify", make: claimed(func(c *Claims) { c.Method = "post" })},
	}
}

func vectorsOfKeys() []vector {
	bit := func(pick func(*envelope) []byte) func(*vectorSource) []byte {
		return corrupted(func(e *envelope) { pick(e)[10] ^= 1 })
	}
	return []vector{
		{Name: "bit in claims", Case: "E1", Want: "bad_signature", At: "verify", make: bit(func(e *envelope) []byte { return e.claims })},
		{Name: "bit in enc", Case: "E1", Want: "bad_signature", At: "verify", make: bit(func(e *envelope) []byte { return e.enc })},
		{Name: "bit in ciphertext", Case: "E1", Want: "bad_signature", At: "verify", make: bit(func(e *envelope) []byte { return e.sealed })},
		{Name: "bit in signature", Case: "E1", Want: "bad_signature", At: "verify", make: bit(func(e *envelope) []byte { return e.sig })},
		{Name: "key that is not in the set", Case: "E4", Want: "unknown_key", At: "verify",
			make: drafted(func(d *draft) { d.signer = GenerateSigningKey(); d.claims.KeyID = d.signer.id })},
		{Name: "key whose time is over", Case: "E4", Want: "unknown_key", At: "verify", make: func(s *vectorSource) []byte {
			d := s.draft()
			d.signer, d.claims.KeyID = s.stranger, s.stranger.id
			return d.wire(s.t)
		}},
		{Name: "key removed after admission", Case: "E4", After: "verified, then its key is removed", Want: "unknown_key", At: "redeem", make: claimed(same)},
		{Name: "ciphertext of another lease", Case: "E5", Want: "bad_signature", At: "verify", make: func(s *vectorSource) []byte {
			donor, err := decodeEnvelope(s.draft().wire(s.t))
			check(s.t, err)
			d := s.draft()
			d.corrupted = func(e *envelope) { e.enc, e.sealed = donor.enc, donor.sealed }
			return d.wire(s.t)
		}},
		{Name: "relabelled by a second signer", Case: "E6", Want: "binding_mismatch(kid)", At: "verify",
			make: func(s *vectorSource) []byte { return resigned(s, nil) }},
		{Name: "rewritten by a second signer", Case: "E6", Want: "open_failed", At: "redeem",
			make: func(s *vectorSource) []byte { return resigned(s, func(c *Claims) { c.KeyID = s.second.id }) }},
		{Name: "issuer of another name", Case: "E6", Want: "binding_mismatch(issuer)", At: "verify",
			make: claimed(func(c *Claims) { c.Issuer = "edge-b" })},
		{Name: "for another node", Case: "E7", Want: "wrong_recipient(node_id)", At: "verify",
			make: claimed(func(c *Claims) { c.NodeID = "gpu-2" })},
		{Name: "for the key of an earlier connection", Case: "E7", Want: "wrong_recipient(recipient_key_id)", At: "verify",
			make: func(s *vectorSource) []byte {
				d := s.draft()
				d.claims.RecipientKeyID, d.to = s.other.ID(), prove(s.t, s.other, testTranscript()).key
				return d.wire(s.t)
			}},
		{Name: "right names, sealed to another key", Case: "E7", Want: "open_failed", At: "redeem",
			make: func(s *vectorSource) []byte {
				d := s.draft()
				d.to = prove(s.t, s.other, testTranscript()).key
				return d.wire(s.t)
			}},
	}
}

// resigned is a captured lease under the kid and signature of the second signer, which the node trusts too.
func resigned(s *vectorSource, rewrite func(*Claims)) []byte {
	e, err := decodeEnvelope(s.draft().wire(s.t))
	check(s.t, err)
	if rewrite != nil {
		c, err := decodeClaims(e.claims)
		check(s.t, err)
		rewrite(c)
		e.claims = c.encode()
	}
	e.kid = s.second.id
	sign(e, s.second)
	return e.encode()
}

func vectorsOfState() []vector {
	return []vector{
		{Name: "earlier connection", Case: "E9", Want: "stale_generation(connection)", At: "verify", make: claimed(func(c *Claims) { c.Generation-- })},
		{Name: "later connection", Case: "E9", Want: "stale_generation(connection)", At: "verify", make: claimed(func(c *Claims) { c.Generation++ })},
		{Name: "dead connection", Case: "E9", After: "closed", Want: "stale_generation(connection)", At: "verify", make: claimed(same)},
		{Name: "earlier projection", Case: "E9", Want: "stale_generation(projection)", At: "verify", make: claimed(func(c *Claims) { c.Projection-- })},
		{Name: "revision below the floor", Case: "E10", Want: "revoked", At: "verify", make: claimed(func(c *Claims) { c.SlotRevision = 99 })},
		{Name: "revoked after admission", Case: "E10", After: "verified, then revoked", Want: "revoked", At: "redeem", make: claimed(same)},
		{Name: "disabled slot", Case: "E10", Want: "disabled", At: "verify", make: claimed(func(c *Claims) { c.Slot = "closed" })},
		{Name: "slot that the node was not told of", Case: "E10", Want: "disabled", At: "verify", make: claimed(func(c *Claims) { c.Slot = "unknown" })},
		{Name: "old profile", Case: "E10", Want: "stale_revision(profile)", At: "verify", make: claimed(func(c *Claims) { c.ProfileRevision-- })},
		{Name: "old route", Case: "E10", Want: "stale_revision(route)", At: "verify", make: claimed(func(c *Claims) { c.RouteRevision-- })},
		{Name: "begins in 30 seconds", Case: "E11", Want: "not_yet_valid", At: "verify", make: claimed(func(c *Claims) { c.NotBefore += 30 * second })},
		{Name: "begins within the tolerance", Case: "E11", Want: "the secret", At: "redeem", make: claimed(func(c *Claims) { c.NotBefore += 5 * second })},
		{Name: "ends now", Case: "E11", Want: "expired", At: "verify",
			make: claimed(func(c *Claims) {
				c.IssuedAt, c.NotBefore, c.ExpiresAt = edgeTime-60*second, edgeTime-60*second, edgeTime
			})},
		{Name: "queued exactly to its end", Case: "E11", After: "verified, then 60 seconds pass", Want: "expired", At: "redeem", make: claimed(same)},
		{Name: "lives an hour", Case: "E11", Want: "ttl_too_long", At: "verify", make: claimed(func(c *Claims) { c.ExpiresAt += 3600 * second })},
		{Name: "clock not synchronized", Case: "E11", After: "unsynced", Want: "clock_unsynced", At: "verify", make: claimed(same)},
	}
}

func vectorsOfBinding() []vector {
	list := []vector{
		{Name: "principal empty on both sides", Case: "E8", After: "no principal", Want: "binding_mismatch(principal)", At: "verify",
			make: claimed(func(c *Claims) { c.Principal = "" })},
		{Name: "the node's route is another", Case: "E8", After: "route", Want: "binding_mismatch(route)", At: "verify", make: claimed(same)},
		{Name: "the node's slot is another", Case: "E8", After: "slot", Want: "binding_mismatch(slot)", At: "verify", make: claimed(same)},
		{Name: "the node's profile is another", Case: "E8", After: "profile", Want: "binding_mismatch(profile)", At: "verify", make: claimed(same)},
		{Name: "header outside the list on both sides", Case: "E8", After: "cookie", Want: "header_refused(header_name)", At: "verify",
			make: claimed(func(c *Claims) { c.Header = "Cookie" })},
		{Name: "plaintext origin on both sides", Case: "E8 (CVE-2024-6587)", After: "plaintext", Want: "plaintext_origin_refused(origin)", At: "verify",
			make: claimed(func(c *Claims) { c.Origin = "http://api.openai.com:80" })},
		{Name: "origin without a port on both sides", Case: "E8 (CVE-2024-6587)", After: "no port", Want: "origin_refused(origin)", At: "verify",
			make: claimed(func(c *Claims) { c.Origin = "https://api.openai.com" })},
	}
	for _, change := range bindingChanges() {
		list = append(list, vector{Name: "another " + change.field.String(), Case: "E8", Want: "binding_mismatch(" + change.field.String() + ")",
			At: "verify", make: claimed(func(c *Claims) { change.to(&c.Binding) })})
	}
	return list
}

type bindingChange struct {
	field Field
	to    func(*Binding)
}

func bindingChanges() []bindingChange {
	return []bindingChange{
		{FieldPrincipal, func(b *Binding) { b.Principal = "team-b" }},
		{FieldAdapter, func(b *Binding) { b.Adapter = "other" }},
		{FieldTarget, func(b *Binding) { b.Target = "gpt-6" }},
		{FieldRunID, func(b *Binding) { b.RunID = "run-2" }},
		{FieldAttempt, func(b *Binding) { b.Attempt = 2 }},
		{FieldHeader, func(b *Binding) { b.Header = "X-Api-Key" }},
		{FieldScheme, func(b *Binding) { b.Scheme = "" }},
		{FieldOrigin, func(b *Binding) { b.Origin = "https://api.openai.com:8443" }},
		{FieldMethod, func(b *Binding) { b.Method = "GET" }},
		{FieldPath, func(b *Binding) { b.Path = "/v1/files" }},
	}
}

func vectorsOfUse() []vector {
	return []vector{
		{Name: "the same lease twice", Case: "E12", After: "verified", Want: "replayed", At: "verify", make: claimed(same)},
		{Name: "replay set full", Case: "E13", After: "full", Want: "replay_cache_full", At: "verify", make: claimed(same)},
		{Name: "redeemed before admission", Case: "E14", After: "verified only", Want: "unsealed_too_early", At: "redeem", make: claimed(same)},
		{Name: "redeemed twice", Case: "E14", After: "redeemed", Want: "replayed", At: "redeem", make: claimed(same)},
		{Name: "line end in the secret", Case: "E16", Want: "bad_secret", At: "redeem", make: sealing(pad([]byte("sk-x12345\r\nX-Evil: 1")))},
		{Name: "zero byte after the secret", Case: "E16", Want: "bad_secret", At: "redeem", make: sealing(pad([]byte("sk-x12345\x00")))},
		{Name: "padding that is not zero", Case: "E16", Want: "bad_secret", At: "redeem", make: sealing(func() []byte {
			p := pad([]byte(goodValue))
			p[len(p)-1] = 'x'
			return p
		}())},
		{Name: "length that lies", Case: "E16", Want: "bad_secret", At: "redeem", make: sealing(append([]byte{0xff, 0xff}, make([]byte, 126)...))},
		{Name: "never sent", Case: "2.E", Want: "unused", At: "end", make: claimed(same)},
	}
}

// prepare changes the node, or uses the lease before, as the vector's After says; Held is nil where Verify comes next.
func (v *vector) prepare(t *testing.T, s *vectorSource, b *Binding) *Held {
	t.Helper()
	switch v.After {
	case "":
	case "closed":
		s.guard.Close()
	case "unsynced":
		s.now.Synced = false
	case "full":
		s.guard.seen.max = 0
	case "no principal":
		b.Principal = ""
	case "route":
		b.Route = "slow"
	case "slot":
		b.Slot = "closed"
	case "profile":
		b.Profile = "another"
	case "cookie":
		b.Header = "Cookie"
	case "plaintext":
		b.Origin = "http://api.openai.com:80"
	case "no port":
		b.Origin = "https://api.openai.com"
	case "verified":
		s.ready(t, v.Lease)
	case "verified only":
		h, err := s.guard.Verify(v.Lease, *b, s.now)
		check(t, err)
		return h
	case "redeemed":
		h := s.ready(t, v.Lease)
		_, err := s.redeem(h)
		check(t, err)
		return h
	default:
		return v.changeAfterAdmission(t, s)
	}
	return nil
}

func (v *vector) changeAfterAdmission(t *testing.T, s *vectorSource) *Held {
	t.Helper()
	h := s.ready(t, v.Lease)
	switch v.After {
	case "verified, then revoked":
		s.guard.Revoke(Revocation{Slot: "openai-main", MinRevision: 102})
	case "verified, then its key is removed":
		p := s.vectorProjection()
		p.Keys = p.Keys[1:]
		check(t, s.guard.Project(p))
	case "verified, then 60 seconds pass":
		s.now = at(edgeTime + 60*second)
	default:
		t.Fatalf("%s: nobody knows what %q means", v.Name, v.After)
	}
	return h
}

// run returns what the node says, and where.
func (v *vector) run(t *testing.T) (said, where string) {
	t.Helper()
	s, b := newVectorSource(t), testBinding()
	h := v.prepare(t, s, &b)
	if h == nil {
		var err error
		if h, err = s.guard.Verify(v.Lease, b, s.now); err != nil {
			return err.(Refusal).String(), "verify"
		}
		if v.At == "end" {
			return h.End().Refusal.String(), "end"
		}
		check(t, h.Admit())
		check(t, h.Arm())
	}
	if _, err := s.redeem(h); err != nil {
		return err.(Refusal).String(), "redeem"
	}
	return "the secret", "redeem"
}

// One vector for a good lease and for every way to be refused, as committed: another implementation can be held
// against them. go test -run TestVectors -update makes them again.
func TestVectors(t *testing.T) {
	s := newVectorSource(t)
	want := s.vectors()
	if *update {
		s.writeVectors(t, want)
	}
	text, err := os.ReadFile(vectorFile)
	check(t, err)
	var doc vectorDocument
	check(t, json.Unmarshal(text, &doc))
	if len(doc.Vectors) != len(want) {
		t.Fatalf("%d vectors in the file, %d are due: run go test -run TestVectors -update", len(doc.Vectors), len(want))
	}
	for i, v := range doc.Vectors {
		if w := want[i]; v.Name != w.Name || v.Case != w.Case || v.After != w.After || v.Want != w.Want || v.At != w.At {
			t.Fatalf("vector %d is %q in the file, %q is due: run go test -run TestVectors -update", i, v.Name, w.Name)
		}
		if said, where := v.run(t); said != v.Want || where != v.At {
			t.Errorf("%s (%s): %s at %s, want %s at %s", v.Name, v.Case, said, where, v.Want, v.At)
		}
	}
}

// The same with leases that are made now: the generator and the file can't drift apart.
func TestVectorsMadeNow(t *testing.T) {
	s := newVectorSource(t)
	for _, v := range s.vectors() {
		v.Lease = v.make(s)
		if said, where := v.run(t); said != v.Want || where != v.At {
			t.Errorf("%s (%s): %s at %s, want %s at %s", v.Name, v.Case, said, where, v.Want, v.At)
		}
	}
}

func (s *vectorSource) writeVectors(t *testing.T, list []vector) {
	t.Helper()
	for i := range list {
		list[i].Lease = list[i].make(s)
	}
	doc := vectorDocument{
		Remark: "Leases and what a node says of them. The keys are known to everybody. Bytes are in base64.",
		Node: vectorNode{
			SignerSeed: keyOf(signerSeed), SecondSeed: keyOf(secondSeed), RecipientSeed: keyOf(recipientSeed),
			Config:     Config{NodeID: "gpu-1", EdgeID: "edge-a", Generation: 7},
			Projection: s.vectorProjection(), Binding: testBinding(), Now: at(edgeTime), Secret: goodValue,
		},
		Vectors: list,
	}
	text, err := json.MarshalIndent(doc, "", " ")
	check(t, err)
	check(t, os.MkdirAll("testdata", 0o755))
	check(t, os.WriteFile(vectorFile, append(text, '\n'), 0o644))
}
