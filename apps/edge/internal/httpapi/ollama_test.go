package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// ollamas are fake nodes that answer commands: by adapter, then by path.
type ollamas struct {
	answers map[string]map[string]string // by node, "" = it doesn't answer
	status  int                          // default 200

	mu    sync.Mutex
	asked []service.Command
}

// Command implements Commands.
func (o *ollamas) Command(_ context.Context, c *service.Command) *service.CommandResult {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = append(o.asked, *c)
	body := o.answers[c.NodeID][c.Path]
	if body == "" {
		return &service.CommandResult{Failure: execution.Failf(execution.CodeNoNode, execution.OriginEdge, "gone")}
	}
	status := o.status
	if status == 0 {
		status = 200
	}
	return &service.CommandResult{NodeID: c.NodeID, Status: status, Body: []byte(body),
		Header: http.Header{"Content-Type": {"application/json; charset=utf-8"}, "Set-Cookie": {"a=b"}}}
}

func (o *ollamas) commands() []service.Command {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.asked)
}

// zoo is an edge with an Ollama, a foreign provider and a silent one, and what they offer.
func zoo() (*config.Edge, []Offer, *ollamas) {
	edge := fleet("ollama", "openai", "ollama")
	edge.Nodes[2].Adapters[0].Name = "silent"
	edge.Routes = []config.Route{{Model: "*"}, {Model: "public", Target: "tiny:latest"}, {Model: "hidden"}}
	offers := []Offer{
		{Node: "n0", Adapter: "x", Models: []execution.Model{{Name: "tiny:latest", Loaded: true, Context: 4096}, {Name: "big:7b"}}},
		{Node: "n1", Adapter: "x", Models: []execution.Model{{Name: "gpt", Context: 8192}, {Name: "tiny"}}},
		{Node: "n2", Adapter: "silent", Models: []execution.Model{{Name: "quiet:1b"}}},
	}
	return edge, offers, &ollamas{answers: map[string]map[string]string{"n0": {
		tagsPath: `{"models":[{"name":"tiny:latest","model":"tiny:latest","size":618000,"digest":"abc"}]}`,
		psPath:   `{"models":[{"name":"tiny:latest","model":"tiny:latest","size_vram":7}]}`,
		showPath: `{"license":"MIT"}`,
	}}}
}

func startZoo(t *testing.T, set func(e *config.Edge, o *ollamas)) (*rig, *ollamas) {
	t.Helper()
	edge, offers, nodes := zoo()
	if set != nil {
		set(edge, nodes)
	}
	return start(t, edge, func(cfg *Config) {
		cfg.Offers, cfg.Commands = func() []Offer { return offers }, nodes
	}), nodes
}

type listedModel struct {
	Name, Model, Digest string
	Size                int64
	SizeVRAM            int64 `json:"size_vram"`
}

func listed(t *testing.T, body string) map[string]listedModel {
	t.Helper()
	var list struct{ Models []listedModel }
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	byName := map[string]listedModel{}
	for _, m := range list.Models {
		if byName[m.Name] = m; m.Model != m.Name || len(list.Models) == 0 {
			t.Errorf("%+v", m)
		}
	}
	return byName
}

// Everything that the principal may ask for is listed, under its public name, with what an Ollama says of it where one
// has it. Who doesn't answer is no reason not to list.
func TestOllamaLists(t *testing.T) {
	g, nodes := startZoo(t, nil)
	resp, body := g.get("GET", tagsPath, "")
	tags := listed(t, body)
	if resp.StatusCode != 200 || len(tags) != 6 {
		t.Fatalf("%s %s", resp.Status, body)
	}
	for name, size := range map[string]int64{"tiny:latest": 618000, "public": 618000, "hidden": 0, "big:7b": 0, "gpt": 0, "quiet:1b": 0} {
		if m, there := tags[name]; !there || m.Size != size || m.Digest == "" {
			t.Errorf("%s: %+v", name, m)
		}
	}
	resp, body = g.get("GET", psPath, "")
	running := listed(t, body)
	if resp.StatusCode != 200 || len(running) != 2 || running["tiny:latest"].SizeVRAM != 7 || running["public"].SizeVRAM != 7 {
		t.Errorf("%s %s", resp.Status, body)
	}
	// They are remembered for a moment, and only Ollamas are asked.
	for range 3 {
		g.get("GET", tagsPath, "")
	}
	asked := map[string]int{}
	for _, c := range nodes.commands() {
		if c.Type != service.CommandOllamaAPI || c.Method != "GET" {
			t.Errorf("%+v", c)
		}
		asked[c.NodeID+" "+c.Adapter+" "+c.Path]++
	}
	for _, key := range []string{"n0 x " + tagsPath, "n2 silent " + tagsPath, "n0 x " + psPath, "n2 silent " + psPath} {
		if asked[key] != 1 {
			t.Errorf("%s was asked %d times", key, asked[key])
		}
	}
	if len(asked) != 4 {
		t.Errorf("asked %v", asked)
	}
	head, _ := g.get("HEAD", tagsPath, "")
	if head.StatusCode != 200 {
		t.Error(head.Status)
	}
}

// A list holds nothing of somebody else, and what no route leads to isn't asked about.
func TestOllamaListsArePersonal(t *testing.T) {
	g, nodes := startZoo(t, func(e *config.Edge, _ *ollamas) {
		e.Principals = []config.Principal{{ID: "bob", KeyHashes: []string{hashOf(bobKey)}, Routes: []string{"hidden"}}}
		e.Routes[2].Adapter = "x"
		e.Routes[2].Nodes = []string{"n1"}
	})
	_, body := g.get("GET", tagsPath, bobKey)
	if tags := listed(t, body); len(tags) != 1 || tags["hidden"].Name == "" || len(nodes.commands()) != 0 {
		t.Errorf("%s after %v", body, nodes.commands())
	}
	if resp, _ := g.askAt(showPath, "Authorization: Bearer "+bobKey+"\r\n", `{"model":"tiny"}`); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
}

func TestOllamaIsThere(t *testing.T) {
	g := start(t, keyed(), nil) // strangers are told as much
	for _, method := range []string{"GET", "HEAD"} {
		resp, body := g.get(method, "/", "")
		if resp.StatusCode != 200 || resp.ContentLength != 17 || method == "GET" && body != "Ollama is running" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s /: %s %q %v", method, resp.Status, body, resp.Header)
		}
		resp, body = g.get(method, "/api/version", "")
		if resp.StatusCode != 200 || method == "GET" && !strings.HasPrefix(body, `{"version":"0.`) {
			t.Errorf("%s: %s %s", method, resp.Status, body)
		}
	}
}

// A model is shown by an Ollama that has it, asked for it by the provider's name; without one, or when none answers, by
// what is known. Clients call it by either of two names, and the member by either of two.
func TestOllamaShow(t *testing.T) {
	g, nodes := startZoo(t, nil)
	for _, asked := range []string{`{"model":"tiny"}`, `{"name":"tiny:latest"}`, `{"model":"public","verbose":true}`, `{"model":"","name":"tiny"}`} {
		resp, body := g.askAt(showPath, "", asked)
		if resp.StatusCode != 200 || body != `{"license":"MIT"}` || resp.Header.Get("X-Iop-Node") != "n0" || resp.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %s %s", asked, resp.Status, body)
		}
		all := nodes.commands()
		c := all[len(all)-1]
		want := `{"model":"tiny:latest"}`
		if strings.Contains(asked, "verbose") {
			want = `{"model":"tiny:latest","verbose":true}`
		}
		if c.Method != "POST" || c.Path != showPath || string(c.Body) != want {
			t.Errorf("%s became %s %s %s", asked, c.Method, c.Path, c.Body)
		}
	}
	for model, want := range map[string]string{"gpt": `"openai.context_length":8192`, "quiet:1b": `"capabilities"`} {
		resp, body := g.askAt(showPath, "", `{"model":"`+model+`"}`)
		if resp.StatusCode != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %s %s", model, resp.Status, body)
		}
	}
	for body, status := range map[string]int{`{"model":"nope"}`: 404, `{}`: 400, `{"model":"a\u0000b"}`: 400, `[]`: 400, `{"model":"tiny","x":1}`: 400} {
		resp, text := g.askAt(showPath, "", body)
		if resp.StatusCode != status || !strings.HasPrefix(text, `{"error":"`) {
			t.Errorf("%s: %s %s", body, resp.Status, text)
		}
	}
	nodes.status = 404 // the Ollama lost it meanwhile: its word counts
	if resp, _ := g.askAt(showPath, "", `{"model":"tiny"}`); resp.StatusCode != 404 {
		t.Error(resp.Status)
	}
	nodes.status = 500
	if resp, body := g.askAt(showPath, "", `{"model":"tiny"}`); resp.StatusCode != 200 || !strings.Contains(body, `"ollama.context_length":4096`) {
		t.Errorf("%s %s", resp.Status, body)
	}
}

// Ollama's clients leave the tag latest out or put it in; what a route or a provider calls exactly so comes first. A name
// that goes by either stays as the caller wrote it.
func TestLatest(t *testing.T) {
	edge := fleet("ollama")
	edge.Routes = []config.Route{{Model: "*"}, {Model: "mine", Target: "tiny:latest"}, {Model: "tagged:latest", Target: "tiny:latest"}, {Model: "plain"}}
	offers := []Offer{{Node: "n0", Adapter: "x", Models: []execution.Model{{Name: "tiny:latest"}, {Name: "both"}, {Name: "both:latest"}, {Name: "bare"}, {Name: "plain:latest"}, {Name: "org/x:7b"}}}}
	g := start(t, edge, func(cfg *Config) { cfg.Offers = func() []Offer { return offers } })
	for asked, want := range map[string]string{ // model of the route, target
		"tiny": "tiny tiny", "tiny:latest": "tiny:latest tiny:latest", "mine": "mine tiny:latest", "mine:latest": "mine tiny:latest",
		"tagged": "tagged:latest tiny:latest", "both": "both both", "both:latest": "both:latest both:latest", "bare:latest": "bare:latest bare",
		"plain": "plain plain", "plain:latest": "plain plain", "org/x:7b": "org/x:7b org/x:7b",
		"org/x": "", "tiny:7b": "", "nope": "", "nope:latest": "", ":latest": "",
	} {
		before := len(g.tunnels())
		body := `{"model":"` + asked + `","messages":[{"role":"user","content":"hi"}]}`
		resp, text := g.askAt("/api/chat", "", body)
		if want == "" {
			if resp.StatusCode != 404 || !strings.Contains(text, "model not found") || len(g.tunnels()) != before {
				t.Errorf("%s: %s %s", asked, resp.Status, text)
			}
			continue
		}
		all := g.tunnels()
		if resp.StatusCode != 200 || len(all) == before {
			t.Errorf("%s: %s %s", asked, resp.Status, text)
			continue
		}
		got := all[len(all)-1]
		model, target, _ := strings.Cut(want, " ")
		if got.Model != model || got.Target != target || string(got.body) != strings.Replace(body, `"`+asked+`"`, `"`+target+`"`, 1) {
			t.Errorf("%s: model %s, target %s, %s", asked, got.Model, got.Target, got.body)
		}
	}
	for id, status := range map[string]int{"tiny": 200, "tiny:latest": 200, "org%2Fx": 404} {
		if resp, _ := g.get("GET", "/v1/models/"+id, ""); resp.StatusCode != status {
			t.Errorf("%s: %s", id, resp.Status)
		}
	}
}

// A model that a route of its own has taken isn't the wildcard's, by neither of its names.
func TestTakenNamesArentTheWildcards(t *testing.T) {
	edge := fleet("ollama")
	edge.Principals = []config.Principal{{ID: "bob", KeyHashes: []string{hashOf(bobKey)}, Routes: []string{"*"}}}
	edge.Routes = []config.Route{{Model: "*"}, {Model: "tiny:latest"}, {Model: "bare"}}
	models := []execution.Model{{Name: "tiny:latest"}, {Name: "bare:latest"}, {Name: "free:latest"}}
	g := start(t, edge, func(cfg *Config) {
		cfg.Offers = func() []Offer { return []Offer{{Node: "n0", Adapter: "x", Models: models}} }
	})
	ask := func(model string) int {
		resp, _ := g.askAt("/api/chat", "X-Api-Key: "+bobKey+"\r\n", `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`)
		return resp.StatusCode
	}
	for model, status := range map[string]int{"tiny": 404, "tiny:latest": 404, "bare": 404, "bare:latest": 404, "free": 200, "free:latest": 200} {
		if got := ask(model); got != status {
			t.Errorf("%s: %d, want %d", model, got, status)
		}
	}
	if _, body := g.get("GET", "/v1/models", bobKey); strings.Count(body, `"id"`) != 1 || !strings.Contains(body, `"free:latest"`) {
		t.Errorf("listed: %s", body)
	}
}

// HT-15: models are managed where they are. No spelling of these paths gets through.
func TestOllamaIsNotManagedFromHere(t *testing.T) {
	g, nodes := startZoo(t, nil)
	for _, target := range []string{"POST /api/pull", "POST /api/push", "POST /api/create", "POST /api/copy", "DELETE /api/delete",
		"POST /api/blobs/sha256:29fdb92e57cf0827ded04ae6461b5931d01fa595843f55d36f5b275a52087dd2", "HEAD /api/blobs/sha256:29", "DELETE /api/delete?x=1"} {
		method, path, _ := strings.Cut(target, " ")
		c := g.dial()
		c.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n" + `{"model":"tiny"}`)
		resp, body := c.responseTo(method)
		if resp.StatusCode != 403 || method != "HEAD" && !strings.HasPrefix(body, `{"error":"models are managed`) {
			t.Errorf("%s: %s %s", target, resp.Status, body)
		}
	}
	for _, path := range []string{"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete",
		"/API/delete", "/api/delete", `/api/\\delete`, "/api/delete/", "/api/blobs/", "/api/blobs/../pull", "/api/signout", "/api/me"} {
		resp, body := g.askAt(path, "", `{"model":"tiny"}`)
		if resp.StatusCode != 400 && resp.StatusCode != 404 && resp.StatusCode != 405 {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	if len(g.tunnels()) != 0 || len(nodes.commands()) != 0 {
		t.Error("something reached a node")
	}
}

// A request that only loads or unloads a model needs no run: where an Ollama may get it, it goes there, and elsewhere it
// is answered at once.
func TestLoadRequests(t *testing.T) {
	for path, body := range map[string]string{"/api/generate": `{"model":"small"}`, "/api/chat": `{"model":"small","messages":[],"keep_alive":0}`} {
		g := start(t, fleet("openai"), nil)
		resp, text := g.askAt(path, "", body)
		if resp.StatusCode != 200 || !strings.Contains(text, `"done":true`) || !strings.Contains(text, `"model":"small"`) || len(g.tunnels()) != 0 {
			t.Errorf("%s: %s %s", path, resp.Status, text)
		}
		g = start(t, fleet("openai", "ollama"), nil)
		if resp, _ := g.askAt(path, "", body); resp.StatusCode != 200 || g.last().Run != nil {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// What nobody has a path for is refused in the words of the API that it seems to be meant for.
func TestUnknownPathsSpeakTheirDialect(t *testing.T) {
	g := start(t, open(), nil)
	for path, prefix := range map[string]string{"/api/nothing": `{"error":"no such path`, "/api/../x": `{"error":"request target`,
		"/v1/messages/batches": `{"type":"error","error":{"type":"not_found_error"`, "/v1/nothing": `{"error":{"message":`, "/nothing": `{"error":{"message":`} {
		resp, body := g.askAt(path, "", "{}")
		if resp.StatusCode/100 != 4 || !strings.HasPrefix(body, prefix) {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
}
