package adaptertest

import (
	"errors"
	"testing"

	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
)

// refusingKey is a credential for nowhere: it is told where the request would go, and refuses.
type refusingKey struct {
	why   *execution.Failure
	asked []string // origin, method, path
	sent  bool
}

func newRefusingKey() *refusingKey {
	return &refusingKey{why: &execution.Failure{Code: execution.CodeCredentialRefused, Origin: execution.OriginNode, NothingSent: true}}
}

func (k *refusingKey) Field() (name, prefix string) { return "Authorization", "Bearer " }
func (k *refusingKey) Bind(origin, method, path string) error {
	k.asked = append(k.asked, origin, method, path)
	return k.why
}
func (k *refusingKey) Send(func([]byte) error) error { k.sent = true; return k.why }

// want checks that the driver asked once, for what it was about to do, and left it at the refusal.
func (k *refusingKey) want(t *testing.T, err error, p *fakeprovider.Provider, is func(path string) bool) {
	t.Helper()
	var f *execution.Failure
	if !errors.As(err, &f) || f != k.why {
		t.Errorf("the driver ended with %v, want the credential's own refusal", err)
	}
	if len(k.asked) != 3 || k.asked[0] != p.URL() || k.asked[1] != "POST" || !is(k.asked[2]) || k.sent {
		t.Errorf("the credential was asked for %q (sent: %v)", k.asked, k.sent)
	}
	if n := len(p.Exchanges()); n != 0 {
		t.Errorf("%d requests went to the provider", n)
	}
}

// keys: a request's credential is asked where the request really goes, and what it refuses isn't sent. (E18)
func (s *suite) keys(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", "{}"))
	req, key := s.dialect.Request("{}"), newRefusingKey()
	req.Credential = key
	key.want(t, s.adapter(t, p).Tunnel(t.Context(), req, NewRecorder()), p, func(path string) bool { return path == req.Path })
}

// keys: nor is a run's.
func (s *runs) keys(t *testing.T) {
	p := fakeprovider.New(t, s.whole("{}"))
	req, key := Ask("m", "hi"), newRefusingKey()
	req.Credential = key
	_, err := s.adapter(t, p).Execute(t.Context(), req, func(execution.Event) error { return nil })
	key.want(t, err, p, func(path string) bool { return s.Owns("POST", path) })
}
