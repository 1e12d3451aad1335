package diagnose_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"iop/apps/node/internal/diagnose"
	"iop/packages/go/doctor"
	pb "iop/proto/iop"
)

// provider answers as an OpenAI API that has these models.
func provider(t *testing.T, models ...string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var list []map[string]string
		for _, m := range models {
			list = append(list, map[string]string{"id": m, "object": "model"})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A provider that is there but lacks what it is to serve.
func TestProviderFaults(t *testing.T) {
	url := provider(t, "tiny", "large:latest")
	llama := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "llama.cpp")
		fmt.Fprint(w, map[string]string{"/v1/models": `{"data":[{"id":"own","owned_by":"llamacpp"}]}`, "/props": `{"build_info":"b1"}`}[r.URL.Path])
	}))
	defer llama.Close()
	adapter := func(targets ...string) *pb.AdapterConfig {
		return &pb.AdapterConfig{Name: "a", Kind: "openai", BaseUrl: url, MaxConcurrency: 1, Targets: targets}
	}
	for name, c := range map[string]struct {
		answer func(*pb.RegisterResponse)
		level  doctor.Level
		words  []string
	}{
		"it has all":     {has(adapter("tiny", "large")), doctor.OK, []string{"2 models", "tiny"}},
		"missing target": {has(adapter("tiny", "gone")), doctor.Fail, []string{"lacks gone", "targets"}},
		"missing model of a route": {func(r *pb.RegisterResponse) {
			has(adapter())(r)
			r.Config.Routes = []*pb.RouteRef{{Name: "m", Adapter: "a", Target: "routed"}, {Name: "n", Adapter: "b", Target: "elsewhere"}}
		}, doctor.Fail, []string{"lacks routed"}},
		"any name will do": {has(&pb.AdapterConfig{Name: "a", Kind: "openai", BaseUrl: llama.URL, MaxConcurrency: 1, Targets: []string{"gone"}}), doctor.Warning, []string{"has no gone", "any name"}},
		"no model at all":  {has(&pb.AdapterConfig{Name: "a", Kind: "openai", BaseUrl: provider(t), MaxConcurrency: 1}), doctor.Warning, []string{"offers nothing", "load a model"}},
	} {
		t.Run(name, func(t *testing.T) {
			edge := fakeEdge(t, plain, accepts(c.answer))
			want(t, examine(t, diagnose.Options{File: configured(t, edge, "")}), "provider a", c.level, c.words...)
		})
	}
}

// A provider can be looked at by itself, without a file.
func TestOneProvider(t *testing.T) {
	all := examine(t, diagnose.Options{Provider: &diagnose.Provider{Name: "x", Kind: "openai", BaseURL: provider(t, "tiny"), Targets: []string{"gone"}}})
	want(t, all, "provider x", doctor.Fail, "lacks gone")
}

// A file with mistakes: each is named, and nothing else is looked at.
func TestConfigFaults(t *testing.T) {
	file := configured(t, "e:1", "max_concurency: 4\nadmin: {listen: '0.0.0.0:1'}\n")
	all := examine(t, diagnose.Options{File: file})
	text := fmt.Sprint(all)
	for _, w := range []string{"max_concurency: unknown key", "admin.listen", "node.yaml:3", "skipped"} {
		if !strings.Contains(text, w) {
			t.Errorf("%q isn't in %s", w, text)
		}
	}
	if err := os.Remove(filepath.Join(filepath.Dir(file), "node.token")); err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(examine(t, diagnose.Options{File: file})); !strings.Contains(text, "node.token doesn't exist") {
		t.Errorf("a missing token: %s", text)
	}
	if text := fmt.Sprint(examine(t, diagnose.Options{File: file + ".missing"})); !strings.Contains(text, "doesn't exist") {
		t.Errorf("a missing file: %s", text)
	}
}

// The data directory and what is in it. The directory is looked at by itself in packages/go/doctor.
func TestJournalFaults(t *testing.T) {
	edge := fakeEdge(t, plain, accepts())
	for name, c := range map[string]struct {
		content string
		words   []string
	}{
		"damaged":       {strings.Repeat("this is no database ", 500), []string{"iop.db", "sets the file aside"}},
		"half a header": {"SQLite format 3\x00" + strings.Repeat("\xff", 5000), []string{"iop.db"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := configured(t, edge, "")
			data := filepath.Join(filepath.Dir(file), "data")
			if err := os.Mkdir(data, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(data, "iop.db")
			overwrite(t, path, []byte(c.content))
			want(t, examine(t, diagnose.Options{File: file}), "journal", doctor.Fail, c.words...)
			if after, err := os.ReadFile(path); err != nil || string(after) != c.content {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

// status answers as a running node's admin listener.
func status(t *testing.T, answer string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprintln(w, "process_max_fds 100")
			return
		}
		fmt.Fprintln(w, answer)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// What a running node says of itself is compared with what the Edge says of it.
func TestRunningNode(t *testing.T) {
	live := func(generation uint64) func(*pb.RegisterResponse) {
		return func(r *pb.RegisterResponse) { r.ConnectionGeneration = generation }
	}
	for name, c := range map[string]struct {
		answer func(*pb.RegisterResponse)
		status string // EDGE stands for its address
		check  string
		level  doctor.Level
		words  []string
	}{
		"all well": {live(7), `{"version":"v1","links":[{"edge":"EDGE","state":"serving","generation":7}]}`, "link EDGE", doctor.OK, []string{"connection 7"}},
		"no link": {live(0), `{"version":"v1","links":[{"edge":"EDGE","state":"backoff","last_error":"registration refused: unknown_token"}]}`,
			"link EDGE", doctor.Fail, []string{"unknown_token", "backoff"}},
		"same token twice": {live(9), `{"version":"v1","links":[{"edge":"EDGE","state":"serving","generation":7}]}`, "link EDGE", doctor.Warning, []string{"another machine", "iop-edge token new"}},
		"other version":    {live(7), `{"version":"v0","links":[{"edge":"EDGE","state":"serving","generation":7}]}`, "node", doctor.Warning, []string{"v0", "restart"}},
		"draining":         {live(7), `{"version":"v1","links":[{"edge":"EDGE","state":"draining","generation":7}]}`, "link EDGE", doctor.Warning, []string{"stopping"}},
		"store degraded": {live(7), `{"version":"v1","links":[{"edge":"EDGE","state":"serving","generation":7}],"store":{"state":"degraded","reason":"the disk is full"}}`,
			"journal", doctor.Warning, []string{"the disk is full"}},
		"not up to date": {live(7), `{"version":"v1","links":[{"edge":"EDGE","state":"serving","generation":7}],"adapters":[{"name":"l","available":false,"reason":"refused"}]}`,
			"provider l", doctor.Warning, []string{"probe_interval", "refused"}},
		"another program": {live(0), `hello`, "node", doctor.Fail, []string{"something else than a node", "another port"}},
		"few files":       {live(7), `{"version":"v1","links":[{"edge":"EDGE","state":"serving","generation":7}]}`, "files", doctor.Warning, []string{"100 files", "LimitNOFILE"}},
	} {
		t.Run(name, func(t *testing.T) {
			edge := fakeEdge(t, plain, accepts(c.answer))
			admin := status(t, strings.ReplaceAll(c.status, "EDGE", edge))
			all := examine(t, diagnose.Options{File: configured(t, edge, fmt.Sprintf("admin: {listen: %q}\n", admin))})
			if name == "no link" { // the Edge has none either, and says so
				all = without(all, doctor.Warning, "link "+edge)
			}
			want(t, all, strings.Replace(c.check, "EDGE", edge, 1), c.level, c.words...)
		})
	}
}

func without(all []doctor.Finding, level doctor.Level, check string) (rest []doctor.Finding) {
	for _, f := range all {
		if f.Level != level || f.Check != check {
			rest = append(rest, f)
		}
	}
	return rest
}

// A node that hangs isn't one that doesn't run: nobody else is suspected of having its token.
func TestHungNode(t *testing.T) {
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hung.Close()
	live := func(r *pb.RegisterResponse) { r.ConnectionGeneration = 7 }
	edge := fakeEdge(t, plain, accepts(live))
	all := examine(t, diagnose.Options{File: configured(t, edge, fmt.Sprintf("admin: {listen: %q}\n", hung.Listener.Addr()))})
	want(t, all, "node", doctor.Fail, "doesn't answer", "hangs")
	if slices.ContainsFunc(all, func(f doctor.Finding) bool { return f.Check == "link "+edge }) {
		t.Errorf("another machine is suspected: %+v", all)
	}
	all = examine(t, diagnose.Options{File: configured(t, edge, "admin: {listen: '127.0.0.1:0'}\n")})
	if doctor.Worst(without(all, doctor.Warning, "data_dir")) == doctor.Fail || slices.ContainsFunc(all, func(f doctor.Finding) bool { return f.Check == "link "+edge }) {
		t.Errorf("whether a node runs isn't known: %+v", all)
	}
	// And where nothing listens, somebody else has the node's connection.
	all = examine(t, diagnose.Options{File: configured(t, edge, "admin: {listen: '127.0.0.1:1'}\n")})
	want(t, all, "link "+edge, doctor.Warning, "no node was found here", "same token")
}
