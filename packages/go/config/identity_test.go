package config

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"iop/packages/go/identity"
	"iop/packages/go/identity/identitytest"
)

const managed = "mode: managed\ntls: {cert: cert.pem, key: key.pem, ca: ca.pem, trust_domain: iop.test}\n"

// C4, E26: what mode managed needs, and what doesn't go with it, is refused before anything starts.
func TestManagedRefusals(t *testing.T) {
	nodes := func(extra string) string {
		return managed + "nodes:\n- {id: gpu-1, token_hashes: [{sha256: " + hashA + "}]" + extra + "}\n- {id: gpu-2, token_hashes: [{sha256: " + hashB + "}]}\n"
	}
	for _, c := range []refusal{
		{"without tls", "mode: managed\n", []string{
			"1: mode: managed needs tls: cert, key, ca and trust_domain; iop-edge ca init makes them for a first setup"}},
		{"tls without the mode", "tls: {cert: a, key: b, ca: c, trust_domain: d}\n", []string{
			"1: tls: is for mode: managed; in mode dev the node listener would be plaintext all the same. Set mode: managed, or remove it"}},
		{"insecure", managed + "insecure_plaintext: true\n", []string{
			"3: insecure_plaintext: has no place in mode managed, which is never plaintext; remove it"}},
		{"half a section", "mode: managed\ntls: {cert: a}\n", []string{
			"2: tls.key: is missing; tls needs it", "2: tls.ca: is missing; tls needs it",
			"2: tls.trust_domain: is missing; name the SPIFFE trust domain of the certificates, like iop.example"}},
		{"trust domain", "mode: managed\ntls: {cert: a, key: b, ca: c, trust_domain: 'spiffe://x'}\n", []string{
			`2: tls.trust_domain: "spiffe://x" can't be a trust domain: lower-case letters, digits, . _ -`}},
		{"no id", nodes(", spiffe_id: gpu-1"), []string{
			`4: nodes[0].spiffe_id: "gpu-1" isn't a SPIFFE ID; write spiffe://TRUST-DOMAIN/PATH`}},
		{"another domain", nodes(", spiffe_id: 'spiffe://other/a'"), []string{
			`4: nodes[0].spiffe_id: "spiffe://other/a" isn't in tls.trust_domain (iop.test)`}},
		{"one id for two", nodes(", spiffe_id: 'spiffe://iop.test/iop/node/gpu-2'"), []string{
			`5: nodes[1].spiffe_id: "spiffe://iop.test/iop/node/gpu-2" is the same SPIFFE ID as nodes[0].spiffe_id (line 4); each must differ`}},
		{"no serial", nodes(", revoked_serials: [xyz]"), []string{
			"4: nodes[0].revoked_serials[0]: must be a certificate's serial number in hex, as iop-edge ca inspect shows it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseEdge("f", []byte(c.file))
			compare(t, err, c.want)
		})
	}
}

func TestManagedRecord(t *testing.T) {
	e := edgeFrom(t, managed+"nodes:\n- {id: gpu-1, token_hashes: [{sha256: "+hashA+"}], revoked_serials: [00AB, 12, 'AB:CD', 1e5]}\n")
	n := &e.Nodes[0]
	if n.SPIFFEID != "spiffe://iop.test/iop/node/gpu-1" || strings.Join(n.RevokedSerials, " ") != "ab 12 abcd 1e5" {
		t.Fatalf("%+v", n)
	}
	now := time.Now()
	good := func() *identity.Peer {
		return &identity.Peer{ID: identity.ID(n.SPIFFEID), Serial: "ff", NotAfter: now.Add(time.Minute)}
	}
	if why := n.Accepts(good(), now); why != "" {
		t.Errorf("refused: %s", why)
	}
	for want, change := range map[string]func(p *identity.Peer){
		"another identity": func(p *identity.Peer) { p.ID += "0" },
		"revoked":          func(p *identity.Peer) { p.Serial = "abcd" },
		"expired":          func(p *identity.Peer) { p.NotAfter = now },
	} {
		p := good()
		change(p)
		if why := n.Accepts(p, now); !strings.Contains(why, want) {
			t.Errorf("%q, want %s", why, want)
		}
	}
	if n.Accepts(nil, now) == "" {
		t.Error("accepted without a certificate")
	}
	if dev := edgeFrom(t, "nodes: [{id: a, token_hashes: [{sha256: "+hashA+"}]}]\n"); dev.Nodes[0].SPIFFEID != "" || dev.Managed() {
		t.Error("mode dev has identities")
	}
}

// TL-08: a file that can't be used is a problem of the configuration, with line, key and the file's name. A reload looks
// at what the configuration says only.
func TestIdentityFilesAreChecked(t *testing.T) {
	ca := identitytest.NewCA(t, "ca")
	dir := t.TempDir()
	identitytest.Write(t, dir, ca.Edge(t), ca)
	file := dir + "/edge.yaml"
	writeFile(t, dir, "edge.yaml", managed, 0o600)
	if _, err := LoadEdge(file); err != nil {
		t.Fatal(err)
	}
	writeFile(t, dir, "ca.pem", "", 0o600)
	_, err := LoadEdge(file)
	if err == nil || err.Error() != file+":2: tls.ca: "+dir+"/ca.pem is empty" {
		t.Errorf("%v", err)
	}
	if _, err := ReloadEdge(file); err != nil {
		t.Errorf("a reload looked at the files: %v", err)
	}
}

func TestNodeIdentity(t *testing.T) {
	ca, other := identitytest.NewCA(t, "ca"), identitytest.NewCA(t, "other")
	const section = "tls: {cert: cert.pem, key: key.pem, ca: ca.pem, edge_spiffe_id: 'spiffe://iop.test/iop/edge'}\n"
	for name, c := range map[string]struct {
		pinned  *identitytest.CA
		section string
		want    string
	}{
		"a bare token":           {nil, section, ""},
		"the pinned CA":          {ca, section, ""},
		"another CA":             {other, section, "doesn't hold the CA that the token's join string names"},
		"a pin without tls":      {ca, "", "token: is a join string that names a CA, so the link is to be encrypted"},
		"half a section":         {nil, "tls: {cert: cert.pem, ca: ca.pem}\n", "tls.key: is missing"},
		"no id":                  {nil, strings.Replace(section, "spiffe://", "https://", 1), "tls.edge_spiffe_id: "},
		"an id of another place": {nil, strings.Replace(section, "iop.test", "other.test", 1), "isn't in the trust domain other.test"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			identitytest.Write(t, dir, ca.Node(t, "gpu-1"), ca)
			token, _ := NewToken()
			if c.pinned != nil {
				token, _ = NewPinnedToken(sha256.Sum256(c.pinned.Cert.Raw))
			}
			writeFile(t, dir, "node.token", token.Reveal(), 0o600)
			writeFile(t, dir, "node.yaml", "edges: ['e:1']\ntoken: file:node.token\n"+c.section, 0o600)
			n, err := LoadNode(dir + "/node.yaml")
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(ca.Cert.Raw)
			if c.pinned != nil && n.PinnedCA != hex.EncodeToString(sum[:]) {
				t.Errorf("pin %q", n.PinnedCA)
			}
			if cfg := n.Identity(); cfg.TrustDomain != "iop.test" || cfg.Files.Key != dir+"/key.pem" {
				t.Errorf("%+v", cfg)
			}
		})
	}
	if _, err := os.Stat("cert.pem"); err == nil {
		t.Error("a test wrote beside itself")
	}
}
