package monitoring

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"iop/e2e/harness"
)

// readyz is what the edge says of itself.
func readyz(t *testing.T, e *harness.Edge) (warnings []string) {
	t.Helper()
	var body struct {
		Ready    bool
		Warnings []string
	}
	if err := json.Unmarshal(e.Admin("/readyz"), &body); err != nil || !body.Ready {
		t.Errorf("ready: %t, %v", body.Ready, err)
	}
	return body.Warnings
}

// Certificates that end within 30 days are said to by both programs, as are those of nodes by their edge; nobody is
// less ready for it.
func TestCertificatesThatEndSoon(t *testing.T) {
	const left = 20 * 24 * time.Hour
	s := startSite(t, setup{certificates: ending(left), https: true})
	warnings := strings.Join(readyz(t, s.edge), "\n")
	for _, want := range []string{"the edge's own certificate ends at ", "the CA that nodes are known by ends at ",
		"the certificate of callers' listener ends at ", "certificates of 1 connected nodes end soon"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("the edge doesn't say %q: %s", want, warnings)
		}
	}
	var status struct{ Warnings []string }
	if err := json.Unmarshal(s.node.Admin("/admin/v1/status"), &status); err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(status.Warnings, "\n"); !strings.Contains(text, "the node's own certificate ends at ") || !strings.Contains(text, "the CA that edges are known by ends at ") {
		t.Errorf("the node says %q", text)
	}
	atEdge, atNode := string(s.edge.Admin("/metrics")), string(s.node.Admin("/metrics"))
	for _, c := range []struct{ text, series string }{
		{atEdge, `iop_identity_not_after_seconds{what="edge"}`}, {atEdge, `iop_identity_not_after_seconds{what="ca"}`},
		{atEdge, `iop_identity_not_after_seconds{what="http"}`},
		{atEdge, `iop_node_identity_not_after_seconds{node="box"}`},
		{atNode, `iop_identity_not_after_seconds{what="node"}`}, {atNode, `iop_identity_not_after_seconds{what="ca"}`},
	} {
		_, after, ok := strings.Cut(c.text, "\n"+c.series+" ")
		value, _, _ := strings.Cut(after, "\n")
		at, err := strconv.ParseFloat(value, 64)
		if in := time.Until(time.Unix(int64(at), 0)); !ok || err != nil || in > left || in < left-time.Hour {
			t.Errorf("%s is %s, which is in %v", c.series, value, in)
		}
	}
}

// Certificates that a machine renews live for an hour: as long as they are renewed there is nothing to say.
func TestShortLivedCertificates(t *testing.T) {
	if warnings := readyz(t, startSite(t, setup{}).edge); len(warnings) > 0 {
		t.Errorf("fresh certificates: %q", warnings)
	}
}

// An edge that is told to let prompts cross the network in the clear says so.
func TestInsecurePlaintext(t *testing.T) {
	e := harness.StartEdgeIn(t, t.TempDir(), "127.0.0.1:0", harness.Options{More: "insecure_plaintext: true\n"})
	if warnings := readyz(t, e); len(warnings) != 1 || !strings.HasPrefix(warnings[0], "insecure: ") {
		t.Errorf("warnings: %q", warnings)
	}
}
