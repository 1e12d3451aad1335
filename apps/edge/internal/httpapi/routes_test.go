package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"iop/apps/edge/internal/service"
	"iop/packages/go/config"
	"iop/packages/go/execution"
)

// bodyFor is a request that the endpoint takes.
func bodyFor(e *Endpoint) string {
	switch {
	case e.Method == "GET" || e.Method == "HEAD":
		return ""
	case strings.HasPrefix(e.Path, "/iop/v1/"):
		return minimal + "}"
	case e.Path == showPath:
		return `{"model":"small"}`
	}
	return small
}

// The table is walked: each row is whole, and says of itself what the handler does.
func TestEndpointsAreWhole(t *testing.T) {
	runs := &fakeRuns{do: talk(t, nil), cancel: service.Cancelling,
		views: map[string]service.RunView{"small": {RunID: "small", Principal: "alice"}}}
	g := startRuns(t, keyed(), runs)
	seen := map[string]bool{}
	for _, e := range Endpoints() {
		if e.Method == "" || e.Access == 0 || e.handle == nil || e.encode == nil || seen[e.Method+e.Path] {
			t.Errorf("%s %s isn't whole, or there twice", e.Method, e.Path)
		}
		seen[e.Method+e.Path] = true
		path := strings.Replace(e.Path, "{id}", "small", 1)
		if _, _, ref := splitTarget(path); ref != nil {
			t.Errorf("%s can't be reached", path)
		}
		ask := func(method, headers string) (*http.Response, string) {
			c, body := g.dial(), bodyFor(&e)
			c.send(method + " " + path + " HTTP/1.1\r\nHost: edge.example\r\n" + headers + "Content-Length: " + itoa(len(body)) + "\r\n\r\n" + body)
			return c.responseTo(method)
		}
		if resp, text := ask(e.Method, ""); e.Access != AccessAnyone {
			wantShape(t, &e, resp, text, 401, "unauthorized")
		} else if resp.StatusCode != 200 {
			t.Errorf("%s %s: %s", e.Method, path, resp.Status)
		}
		resp, text := ask(e.Method, "X-Api-Key: "+aliceKey+"\r\n")
		if managed := strings.Contains(" /api/pull /api/push /api/create /api/copy /api/delete /api/blobs/small ", " "+path+" "); managed {
			wantShape(t, &e, resp, text, 403, "bad_request")
		} else if resp.StatusCode/100 != 2 {
			t.Errorf("%s %s: %s %s", e.Method, path, resp.Status, text)
		}
		for _, method := range []string{"PUT", "PATCH", "TRACE", "BREW"} {
			resp, text := ask(method, "X-Api-Key: "+aliceKey+"\r\n")
			wantShape(t, &e, resp, text, 405, "bad_request")
			if !slices.Contains(strings.Split(resp.Header.Get("Allow"), ", "), e.Method) {
				t.Errorf("Allow: %q", resp.Header.Get("Allow"))
			}
		}
	}
}

// wantShape checks an error in the shape of the endpoint's surface.
func wantShape(t *testing.T, e *Endpoint, resp *http.Response, body string, status int, code string) {
	t.Helper()
	if resp.StatusCode != status {
		t.Errorf("%s %s: %s %s, want %d", e.Method, e.Path, resp.Status, body, status)
	}
	var prefix, rest string
	switch {
	case resp.Request.Method == "HEAD":
		return
	case strings.HasPrefix(e.Path, "/v1/messages"):
		prefix, rest = `{"type":"error","error":{"type":"`, `"code":"`+code+`"`
	case strings.HasPrefix(e.Path, "/v1/"):
		wantError(t, resp, body, status, code)
		return
	case strings.HasPrefix(e.Path, "/iop/v1/"):
		prefix, rest = `{"error":{"code":"`+code+`","message":"`, `"origin":`
	default: // Ollama's clients take error for a text
		prefix, rest = `{"error":"`, `"code":"`+code+`"`
	}
	if !strings.HasPrefix(body, prefix) || !strings.Contains(body, rest) {
		t.Errorf("%s %s: %s %s", e.Method, e.Path, resp.Status, body)
	}
}

// HT-15, CR-09, E32: over the wire none of these reaches a node, a redirect, or an endpoint.
func TestTargetsOverTheWire(t *testing.T) {
	g := start(t, open(), nil)
	targets := append([]string{"/v1/chat/completions/", "/V1/chat/completions", "/v1/chat/%63ompletions", "/v1/chat/completions%20", "/v1/chat", "/API/delete", "/api/delete?", "/",
		"/v1/models/", "/admin/v1/nodes", "/metrics", "/healthz", "/debug/pprof/"}, refusedTargets...)
	for _, target := range targets {
		for _, method := range []string{"POST", "OPTIONS", "CONNECT"} {
			if strings.ContainsAny(target, "\r\n") {
				continue
			}
			c := g.dial()
			c.send(method + " " + target + " HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX-Forwarded-Host: 127.0.0.1:1\r\nContent-Length: " +
				itoa(len(small)) + "\r\n\r\n" + small)
			if resp, _ := c.response(); resp.StatusCode != 400 && resp.StatusCode != 404 && resp.StatusCode != 405 {
				t.Errorf("%s %q: %s", method, target, resp.Status)
			}
		}
	}
	if n := len(g.tunnels()); n != 0 {
		t.Errorf("%d tunnels reached the node", n)
	}
}

// CR-09: fields that name a host are a matter of the provider's body, and change nothing about where it goes.
func TestBodyCannotChooseAHost(t *testing.T) {
	g := start(t, open(), nil)
	text := `{"model":"small","base_url":"http://127.0.0.1:1","api_base":"http://127.0.0.1:1","url":"http://127.0.0.1:1"}`
	g.ask("", text)
	if got := g.last(); got.Path != "/v1/chat/completions" || got.Route.Model != "small" || string(got.body) != text {
		t.Errorf("%+v", got.Tunnel)
	}
}

// Every code has its row, and the rows are those of the documentation.
func TestEveryCodeHasARow(t *testing.T) {
	want := map[int]string{
		400: "bad_request", 401: "unauthorized", 404: "unknown_model unknown_adapter", 409: "duplicate_run", 413: "body_too_large",
		429: "limit_exceeded", 500: "internal", 499: "cancelled", statusUnanswered: "client_gone client_slow",
		502: "node_lost adapter_decode adapter_panic upstream_connect upstream_error upstream_truncated credential_reflected protocol",
		503: "no_node queue_full queue_timeout overloaded edge_draining node_draining adapter_busy adapter_unavailable " +
			"credential_unavailable credential_refused stale_projection",
		504: "dispatch_timeout first_byte_timeout idle_timeout deadline",
	}
	got := map[int][]string{}
	for _, code := range execution.Codes() {
		row, known := rowOf(code)
		if !known {
			t.Errorf("%v has no row", code)
		}
		got[row.status] = append(got[row.status], code.String())
	}
	for status, names := range want {
		list := strings.Fields(names)
		slices.Sort(list)
		slices.Sort(got[status])
		if !slices.Equal(list, got[status]) {
			t.Errorf("%d: %v, want %v", status, got[status], list)
		}
		delete(got, status)
	}
	if len(got) != 0 {
		t.Errorf("not documented: %v", got)
	}
	if row, known := rowOf(200); known || row.status != 500 {
		t.Error("what isn't known is a bare 500")
	}
}

func TestErrorsEscapeWhatTheySay(t *testing.T) {
	ref := badRequest("", "a \"quoted\"\r\n<text>\xff")
	for _, e := range Endpoints() {
		text := e.encode(400, ref.failure, "a\nb")
		if !json.Valid(text) || bytes.ContainsAny(bytes.TrimSpace(text), "\r\n") {
			t.Errorf("%s: %s", e.Path, text)
		}
	}
}

func (g *rig) get(method, path, key string) (*http.Response, string) {
	c := g.dial()
	auth := ""
	if key != "" {
		auth = "Authorization: Bearer " + key + "\r\n"
	}
	c.send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n")
	return c.responseTo(method)
}

func TestModels(t *testing.T) {
	edge := keyed()
	edge.Principals = append(edge.Principals, config.Principal{ID: "carol", KeyHashes: []string{hashOf("carol")}, Routes: []string{"*", "small"}})
	edge.Routes = append(edge.Routes, config.Route{Model: "*", Adapter: "vllm"})
	inUse := []Offer{
		{Node: "n1", Adapter: "vllm", Models: []execution.Model{{Name: "zeta"}, {Name: "org/name:7b"}, {Name: "large"}, {Name: "bad\x00name"}}},
		{Node: "n2", Adapter: "vllm", Models: []execution.Model{{Name: "zeta"}, {Name: "beta"}}, Targets: []string{"zeta"}},
		{Node: "n3", Adapter: "other", Models: []execution.Model{{Name: "unreachable"}}},
	}
	g := start(t, edge, func(cfg *Config) { cfg.Offers = func() []Offer { return inUse } })
	for key, want := range map[string]string{
		aliceKey: "alias large org/name:7b small zeta",
		bobKey:   "small",
		"carol":  "org/name:7b small zeta",
	} {
		resp, body := g.get("GET", "/v1/models", key)
		var list struct {
			Object string
			Data   []struct {
				ID, Object string
				Created    *int64
				OwnedBy    string `json:"owned_by"`
			}
		}
		if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 || list.Object != "list" {
			t.Fatalf("%s %s %v", resp.Status, body, err)
		}
		var ids []string
		for _, m := range list.Data {
			ids = append(ids, m.ID)
			if m.Object != "model" || m.Created == nil || m.OwnedBy == "" {
				t.Errorf("%+v", m)
			}
		}
		if got := strings.Join(ids, " "); got != want {
			t.Errorf("%s: %s, want %s", key, got, want)
		}
		head, _ := g.get("HEAD", "/v1/models", key)
		if head.StatusCode != 200 || head.ContentLength != int64(len(body)) {
			t.Errorf("HEAD: %s, %d bytes", head.Status, head.ContentLength)
		}
	}
	for path, status := range map[string]int{"small": 200, "zeta": 200, "org/name:7b": 200, "org%2Fname:7b": 200, "org%2fname%3A7b": 200,
		"nope": 404, "*": 404, "beta": 404, "unreachable": 404} {
		resp, body := g.get("GET", "/v1/models/"+path, aliceKey)
		if status == 404 {
			wantError(t, resp, body, 404, "unknown_model")
		} else if resp.StatusCode != 200 || !strings.Contains(body, `"object":"model"`) {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	resp, body := g.get("GET", "/v1/models/large", bobKey)
	wantError(t, resp, body, 404, "unknown_model")
	resp, body = g.get("GET", "/v1/models", "")
	wantError(t, resp, body, 401, "unauthorized")
}

// Anthropic's clients ask for the models at the same paths; they are known by the version that they must send.
func TestModelsForAnthropic(t *testing.T) {
	g := start(t, keyed(), nil)
	ask := func(path, key string) (*http.Response, string) {
		c := g.dial()
		c.send("GET " + path + " HTTP/1.1\r\nHost: edge.example\r\nanthropic-version: 2023-06-01\r\nx-api-key: " + key + "\r\n\r\n")
		return c.response()
	}
	resp, body := ask("/v1/models?limit=20", aliceKey)
	const one = `{"type":"model","id":"%s","display_name":"%s","created_at":"1970-01-01T00:00:00Z"}`
	model := func(id string) string { return strings.ReplaceAll(one, "%s", id) }
	if want := `{"data":[` + model("alias") + `,` + model("large") + `,` + model("small") + `],"has_more":false,"first_id":"alias","last_id":"small"}` + "\n"; resp.StatusCode != 200 || body != want {
		t.Errorf("%s %s", resp.Status, body)
	}
	if resp, body = ask("/v1/models/small", bobKey); resp.StatusCode != 200 || body != model("small")+"\n" {
		t.Errorf("%s %s", resp.Status, body)
	}
	for path, key := range map[string]string{"/v1/models/large": bobKey, "/v1/models": "wrong"} {
		resp, body := ask(path, key)
		want := map[int]string{404: "not_found_error", 401: "authentication_error"}[resp.StatusCode]
		if want == "" || !strings.HasPrefix(body, `{"type":"error","error":{"type":"`+want+`"`) {
			t.Errorf("%s: %s %s", path, resp.Status, body)
		}
	}
	empty := start(t, &config.Edge{}, nil)
	c := empty.dial()
	c.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nanthropic-version: 2023-06-01\r\n\r\n")
	if _, body := c.response(); body != `{"data":[],"has_more":false,"first_id":null,"last_id":null}`+"\n" {
		t.Errorf("%s", body)
	}
}

func TestNoModelsIsAnEmptyList(t *testing.T) {
	g := start(t, &config.Edge{}, nil)
	if _, body := g.get("GET", "/v1/models", ""); body != `{"object":"list","data":[]}`+"\n" {
		t.Errorf("%s", body)
	}
}

func TestIDs(t *testing.T) {
	for given, kept := range map[string]bool{"": false, "caller-7": true, "a/b=c+d@e:f.g_h": true, "a b": false, "a\"b": false, "é": false,
		strings.Repeat("x", 128): true, strings.Repeat("x", 129): false} {
		if got := requestID(given); (got == given) != kept || got == "" {
			t.Errorf("request id %q became %q", given, got)
		}
	}
	for id, ok := range map[string]bool{"s-1._A": true, strings.Repeat("x", 64): true, strings.Repeat("x", 65): false, "a b": false, "a/b": false, "é": false} {
		if validSession(id) != ok {
			t.Errorf("session %q", id)
		}
	}
}
