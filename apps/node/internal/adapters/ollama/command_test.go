package ollama

import (
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"iop/apps/node/internal/adapters/adaptertest"
	"iop/e2e/fakeprovider"
	"iop/packages/go/execution"
	"iop/packages/go/httprules"
)

// The closed list, exactly: what is on it arrives as it is, and the answer comes back byte for byte.
func TestCommands(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Routes(map[string]fakeprovider.Script{
		"/api/version": fixture(t, "ollama-0.17.4/version"), "/api/tags": fixture(t, "ollama-0.17.4/tags"),
		"/api/ps": fixture(t, "ollama-0.17.4/ps-loaded"), "/api/show": fixture(t, "ollama-0.17.4/show"),
	}))
	for path, name := range map[string]string{"/api/version": "version", "/api/tags": "tags", "/api/ps": "ps-loaded", "/api/show": "show"} {
		f, err := fakeprovider.LoadFixture("ollama-0.17.4/" + name)
		if err != nil {
			t.Fatal(err)
		}
		_, _, body, _, err := f.Answer()
		if err != nil {
			t.Fatal(err)
		}
		req := adaptertest.Get(path)
		if name == "show" {
			req = adaptertest.Post(path, `{"model":"tiny"}`)
		}
		r := adaptertest.NewRecorder()
		err = at(t, p).Command(t.Context(), req, r)
		if faults := r.End(err); err != nil || r.Status() != 200 || string(r.Bytes()) != string(body) || len(faults) > 0 {
			t.Errorf("%s: %v, status %d, %d bytes of %d, %q", path, err, r.Status(), len(r.Bytes()), len(body), faults)
		}
	}
	for _, path := range commandPaths() {
		if !httprules.OllamaCommand("GET", path) && !httprules.OllamaCommand("POST", path) {
			t.Errorf("%s isn't on the list", path)
		}
	}
	x := p.Exchanges()
	if len(x) != 4 || !slices.ContainsFunc(x, func(x *fakeprovider.Exchange) bool { return string(x.Received()) == `{"model":"tiny"}` }) {
		t.Errorf("%d requests", len(x))
	}
}

// HT-15, E43: whatever isn't on the list is refused, whatever the adapter may tunnel, and nothing is sent.
func TestCommandsThatAreRefused(t *testing.T) {
	p := fakeprovider.New(t, fakeprovider.Answer(200, "application/json", "{}"))
	a, err := New(Config{BaseURL: p.URL(), AllowPaths: []string{"/api/pull", "/x/*"}, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	list := []*execution.TunnelRequest{
		adaptertest.Post("/api/tags", "{}"), adaptertest.Get("/api/show"), adaptertest.Post("/api/version", ""), adaptertest.Get("/api/chat"),
		adaptertest.Post("/api/pull", "{}"), adaptertest.Post("/api/chat", "{}"), adaptertest.Post("/api/generate", "{}"), adaptertest.Get("/x/y"),
		adaptertest.Get("/api/tags/"), adaptertest.Get("/api/%74ags"), adaptertest.Get(""), adaptertest.Get("/"), adaptertest.Get("/api/ps?x=1"),
	}
	for _, path := range hostile() {
		list = append(list, adaptertest.Get(path), adaptertest.Post(path, "{}"))
	}
	query, body, head := adaptertest.Get("/api/tags"), adaptertest.Post("/api/tags", "{}"), adaptertest.Get("/api/tags")
	query.Query, body.Method, head.Method = "x=1", "GET", "HEAD"
	list = append(list, query, body, head)
	for _, req := range list {
		closed := &closer{}
		if req.Body != nil {
			req.Body = closed
		}
		r := adaptertest.NewRecorder()
		err := a.Command(t.Context(), req, r)
		f, ok := err.(*execution.Failure)
		if !ok || f.Code != execution.CodeBadRequest || !f.NothingSent || len(r.End(err)) > 0 || req.Body != nil && !closed.closed {
			t.Errorf("%s %s: %v, body closed: %v", req.Method, req.Path, err, closed.closed)
		}
	}
	if n := len(p.Exchanges()); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

// closer is a body that notes whether it was closed.
type closer struct{ closed bool }

func (c *closer) Read([]byte) (int, error) { panic("a refused command's body was read") }

func (c *closer) Close() error {
	c.closed = true
	return nil
}
