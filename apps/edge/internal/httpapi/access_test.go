package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"iop/packages/go/config"
)

func TestKeys(t *testing.T) {
	g := start(t, keyed(), nil)
	for _, tt := range []struct {
		headers, principal string // "" = refused
	}{
		{"Authorization: Bearer " + aliceKey + "\r\n", "alice"},
		{"authorization: bearer " + aliceKey + "\r\n", "alice"},
		{"x-api-key: " + bobKey + "\r\n", "bob"},
		{"API-KEY: " + bobKey + "\r\n", "bob"},
		{"Authorization: Bearer " + aliceKey + "\r\nX-Api-Key: " + aliceKey + "\r\n", "alice"}, // clients that know two APIs
		{"Authorization: Bearer " + aliceKey + "\r\nX-Api-Key: " + bobKey + "\r\n", ""},        // whose is it?
		{"Authorization: Bearer " + aliceKey + "\r\nX-Api-Key: wrong\r\n", ""},
		{"X-Api-Key: " + aliceKey + "\r\nApi-Key: " + bobKey + "\r\n", ""},
		{"", ""},
		{"Authorization: " + aliceKey + "\r\n", ""},
		{"Authorization: Basic " + aliceKey + "\r\n", ""},
		{"Authorization: Bearer wrong\r\nX-Api-Key: " + aliceKey + "\r\n", ""},
		{"Authorization: Bearer " + aliceKey + "\r\nAuthorization: Bearer " + aliceKey + "\r\n", ""},
		{"X-Api-Key: " + bobKey + "\r\nX-Api-Key: " + aliceKey + "\r\n", ""},
		{"X-Api-Key:\r\n", ""},
		{"X-Api-Key: " + hashOf(aliceKey) + "\r\n", ""},
	} {
		before := len(g.tunnels())
		resp, body := g.ask(tt.headers, small)
		if tt.principal == "" {
			wantError(t, resp, body, 401, "unauthorized")
			if resp.Header.Get("WWW-Authenticate") == "" || len(g.tunnels()) != before {
				t.Errorf("%q: no challenge, or it went on", tt.headers)
			}
			continue
		}
		if got := g.tunnels(); resp.StatusCode != 200 || got[len(got)-1].Principal != tt.principal {
			t.Errorf("%q: %s", tt.headers, resp.Status)
		}
	}
}

// CR-07: of a refused key nothing comes back and nothing is written down, however it looks.
func TestRefusedKeyIsNotEchoed(t *testing.T) {
	g := start(t, keyed(), nil)
	for _, key := range []string{"S3CR3T-unknown-key", " S3CR3T-leading-blank", "S3CR3T-broken\r\n S3CR3T-second-line", "S3CR3T\nS3CR3T: x",
		"S3CR3T\x00S3CR3T", strings.Repeat("S3CR3T-x", 1024)} {
		for _, header := range []string{"Authorization: Bearer ", "Authorization: ", "X-Api-Key: ", "Api-Key: "} {
			c := g.dial()
			c.post(header+key+"\r\n", small)
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != 401 && resp.StatusCode != 400 {
				t.Errorf("%.30q: %s", key, resp.Status)
			}
			var seen strings.Builder
			_ = resp.Write(&seen)
			if strings.Contains(seen.String(), "S3CR3T") {
				t.Errorf("%.30q came back: %s", key, seen.String())
			}
		}
	}
	if strings.Contains(g.log.String(), "S3CR3T") || len(g.tunnels()) != 0 {
		t.Error("the log has the key, or it was let in")
	}
}

// CR-03, E36: nothing that a caller shows as a key, in whatever spelling, reaches a node; with and without principals.
func TestCallerKeysStayHere(t *testing.T) {
	for name, edge := range map[string]*config.Edge{"keyed": keyed(), "anonymous": open()} {
		t.Run(name, func(t *testing.T) {
			g := start(t, edge, nil)
			resp, body := g.ask("aUTHORIZATION: Bearer "+aliceKey+"\r\nx-API-key: "+aliceKey+"\r\napi-key: "+aliceKey+"\r\nCOOKIE: k=client-4\r\n"+
				"proxy-authorization: Basic client-5\r\nx-goog-api-key: client-6\r\nx_api_key: client-7\r\nX-Iop-Admin: client-8\r\n"+
				"x-amz-security-token: client-9\r\nOcp-Apim-Subscription-Key: client-10\r\nX-Auth-Token: client-11\r\n"+
				"Origin: http://localhost:3000\r\nX-Forwarded-Host: evil\r\nx-forwarded-for: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nVia: 1.1 p\r\n"+
				"OpenAI-Organization: org\r\nX-Stainless-Lang: js\r\n", small)
			if resp.StatusCode != 200 {
				t.Fatalf("%s %s", resp.Status, body)
			}
			header := g.last().Header
			for name, values := range header {
				all := name + strings.Join(values, "")
				for _, bad := range []string{"client-", aliceKey, "evil", "1.2.3.4", "localhost", "Via"} {
					if strings.Contains(all, bad) {
						t.Errorf("%s: %q would reach the node", name, values)
					}
				}
			}
			if header.Get("OpenAI-Organization") != "org" || header.Get("X-Stainless-Lang") != "js" {
				t.Error("an ordinary header was lost")
			}
		})
	}
}

// Without keys the only thing between a web page and the prompts of this machine is its origin.
func TestAnonymousRefusesForeignPages(t *testing.T) {
	g := start(t, open(), func(cfg *Config) { cfg.Origins = []string{"https://app.example"} })
	for origin, status := range map[string]int{"": 200, "https://app.example": 200, "http://localhost:5173": 200, "http://127.0.0.1": 200,
		"https://evil.example": 403, "null": 403, "http://localhost.evil.example": 403, "http://evil.example:8080": 403} {
		headers := ""
		if origin != "" {
			headers = "Origin: " + origin + "\r\n"
		}
		resp, body := g.ask(headers, small)
		if resp.StatusCode != status {
			t.Errorf("origin %q: %s", origin, resp.Status)
		}
		if status == 403 {
			wantError(t, resp, body, 403, "bad_request")
		}
	}
}

// DNS rebinding: a page's own name may be made to point here, and then the browser takes this edge for the page's own
// server and sends no Origin. Whoever needs no key must come by a name that can't be pointed elsewhere. With keys any name
// does.
func TestAnonymousAnswersToLoopbackNames(t *testing.T) {
	anyone, known := start(t, open(), nil), start(t, keyed(), nil)
	for host, ok := range map[string]bool{"localhost": true, "LOCALHOST:8080": true, "127.0.0.1": true, "127.0.0.1:8080": true, "127.1.2.3": true,
		"[::1]": true, "[::1]:8080": true, "": true, "evil.example": false, "evil.example:8080": false, "localhost.evil.example": false,
		"127.0.0.1.evil.example": false, "0.0.0.0": false, "[::]:8080": false, "10.0.0.1": false, "localhost.": false, "edge": false} {
		for _, path := range []string{"GET /v1/models", "GET /api/tags", "GET /", "POST /v1/chat/completions", "GET /nothing"} {
			request := path + " HTTP/1.1\r\nHost: " + host + "\r\nX-Api-Key: " + aliceKey + "\r\nContent-Length: " + itoa(len(small)) + "\r\n\r\n" + small
			c := anyone.dial()
			c.send(request)
			if resp, _ := c.response(); (resp.StatusCode != 403) != ok {
				t.Errorf("%s, Host %q: %s", path, host, resp.Status)
			}
			c = known.dial()
			c.send(request)
			if resp, _ := c.response(); resp.StatusCode == 403 {
				t.Errorf("with a key, %s, Host %q: %s", path, host, resp.Status)
			}
		}
	}
}

func TestCORS(t *testing.T) {
	g := start(t, keyed(), func(cfg *Config) { cfg.Origins = []string{"https://app.example"} })
	preflight := func(path, origin string) *http.Response {
		c := g.dial()
		c.send("OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin + "\r\nAccess-Control-Request-Method: POST\r\n" +
			"Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n")
		resp, _ := c.response()
		return resp
	}
	resp := preflight("/v1/chat/completions", "https://app.example")
	h := resp.Header
	if resp.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != "https://app.example" || h.Get("Vary") != "Origin" ||
		h.Get("Access-Control-Allow-Methods") != "POST" || h.Get("Access-Control-Allow-Headers") != "authorization,content-type,x-stainless-os" {
		t.Errorf("%s %v", resp.Status, h)
	}
	for path, origin := range map[string]string{"/v1/chat/completions": "https://evil.example", "/v1/nothing": "https://app.example"} {
		if resp := preflight(path, origin); resp.StatusCode < 400 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s from %s: %s", path, origin, resp.Status)
		}
	}
	resp, _ = g.ask("Origin: https://app.example\r\nAuthorization: Bearer "+aliceKey+"\r\n", small)
	if resp.Header.Get("Access-Control-Allow-Origin") != "https://app.example" || !strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "X-IOP-Run-Id") {
		t.Errorf("answer %v", resp.Header)
	}
	resp, _ = g.ask("Origin: https://app.example\r\n", small)
	if resp.StatusCode != 401 || resp.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Error("a page must be able to read why it is refused")
	}
}
