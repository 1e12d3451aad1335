package ollama

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// members lists the names of an object's members, with those of the objects in it.
func members(t *testing.T, raw []byte) []string {
	t.Helper()
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	var out []string
	for name, value := range object {
		out = append(out, name)
		if value[0] == '{' {
			for _, below := range members(t, value) {
				out = append(out, name+"."+below)
			}
		}
	}
	slices.Sort(out)
	return out
}

func entry(t *testing.T, list []byte, i int) []byte {
	t.Helper()
	var body struct{ Models []json.RawMessage }
	if err := json.Unmarshal(list, &body); err != nil || len(body.Models) <= i {
		t.Fatalf("%s: %v", list, err)
	}
	return body.Models[i]
}

// A model that no Ollama serves has the members that the real one's models have.
func TestListsHaveTheRealOnesMembers(t *testing.T) {
	real := recordings(t, "/api/tags", "/api/ps")
	models := []Model{{Name: "gpt", Kind: "openai", Loaded: true, Context: 8192}, {Name: "claude", Kind: "anthropic"}}
	since := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	for name, list := range map[string][]byte{"tags": Tags(models, since), "ps-loaded": Running(models)} {
		want := members(t, entry(t, real[name].text, 0))
		if got := members(t, entry(t, list, 0)); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := string(Running(models)); strings.Contains(got, "claude") {
		t.Errorf("a model that isn't loaded runs: %s", got)
	}
	if got := Running(nil); !bytes.Equal(got, real["ps-empty"].text) {
		t.Errorf("no model runs: %s", got)
	}
	if got := string(Tags(nil, since)); got != `{"models":[]}` {
		t.Errorf("no models: %s", got)
	}
	var first struct {
		Digest     string    `json:"digest"`
		ModifiedAt time.Time `json:"modified_at"`
	}
	if err := json.Unmarshal(entry(t, Tags(models, since), 0), &first); err != nil || !first.ModifiedAt.Equal(since) {
		t.Errorf("%+v, %v", first, err)
	}
	if len(first.Digest) != 64 || strings.Trim(first.Digest, "0123456789abcdef") != "" ||
		models[0].digest() == (&Model{Name: "gpt"}).digest() || models[0].digest() == (&Model{Name: "gpt2", Kind: "openai"}).digest() {
		t.Errorf("digest %q", first.Digest)
	}
}

// What an Ollama says of its models is listed as it said it, under the name that the model has here.
func TestListsKeepAnOllamasEntries(t *testing.T) {
	real := recordings(t, "/api/tags", "/api/ps")
	entries := Entries(real["tags"].text)
	if names := slices.Sorted(maps.Keys(entries)); !slices.Equal(names, []string{"slow:latest", "tiny:latest"}) {
		t.Fatal(names)
	}
	got := Tags([]Model{{Name: "slow:latest", Entry: entries["slow:latest"]}, {Name: "tiny", Entry: entries["tiny:latest"]}}, time.Now())
	if !bytes.Equal(got, real["tags"].text) {
		t.Errorf("%s, want %s", got, real["tags"].text)
	}
	running := Entries(real["ps-loaded"].text)["tiny:latest"]
	if got := Running([]Model{{Name: "tiny:latest", Loaded: true, Entry: running}}); !bytes.Equal(got, real["ps-loaded"].text) {
		t.Errorf("%s, want %s", got, real["ps-loaded"].text)
	}
	var before, after map[string]any
	renamed := entry(t, Tags([]Model{{Name: "ours", Entry: entries["tiny:latest"]}}, time.Now()), 0)
	if err := json.Unmarshal(entries["tiny:latest"], &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(renamed, &after); err != nil {
		t.Fatal(err)
	}
	before["name"], before["model"] = "ours", "ours"
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	for _, answer := range []string{"", "[]", `{"models":{}}`, `{"models":[1,{"name":2},{"name":""}]}`} {
		if got := Entries([]byte(answer)); len(got) > 0 {
			t.Errorf("%s: %q", answer, got)
		}
	}
}

func TestVersion(t *testing.T) {
	real := recordings(t, "/api/version")["version"]
	if got := Version(""); !bytes.Equal(got, real.text) {
		t.Errorf("%s, want %s", got, real.text)
	}
	if got := string(Version("0.9.0")); got != `{"version":"0.9.0"}` {
		t.Error(got)
	}
}

// A shown model has of the real one's members those that clients read, and the context length where they look for it.
func TestShow(t *testing.T) {
	real := members(t, recordings(t, "/api/show")["show"].text)
	for _, m := range []Model{{Name: "gpt", Kind: "openai", Context: 8192}, {Name: "claude", Kind: "anthropic"}, {Name: "?"}} {
		text := Show(m, time.Now())
		for _, name := range members(t, text) {
			if !slices.Contains(real, name) && !strings.HasSuffix(name, ".context_length") {
				t.Errorf("%s: the real one has no member %s", text, name)
			}
		}
		var got struct {
			Info         map[string]any `json:"model_info"`
			Capabilities []string       `json:"capabilities"`
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		arch, _ := got.Info["general.architecture"].(string)
		length, _ := got.Info[arch+".context_length"].(float64)
		if arch == "" || int64(length) != m.Context || len(got.Info) > 2 {
			t.Errorf("%+v is %v", m, got.Info)
		}
		if !slices.Contains(got.Capabilities, "tools") || slices.Contains(got.Capabilities, "thinking") {
			t.Errorf("capabilities %q", got.Capabilities)
		}
	}
}

func TestParseShow(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"a"}`:            "a",
		`{"name":"a"}`:             "a",
		`{"model":"a","name":"b"}`: "a",
		`{"model":"","system":"","template":"","verbose":false,"options":null,"name":"a"}`: "a", // the Go client
		`{"model":"a","verbose":true}`:          "a",
		`{}`:                                    "! model",
		`{"model":""}`:                          "! model",
		`{"model":1}`:                           "! model",
		`{"model":"a","system":"be kind"}`:      "! system",
		`{"model":"a","options":{"num_ctx":1}}`: "! options",
		`{"model":"a","colour":"red"}`:          "! colour",
		`[]`:                                    "! ",
		``:                                      "! ",
	} {
		model, ref := ParseShow([]byte(body))
		if ref != nil {
			model = "! " + ref.Field
		}
		if model != want {
			t.Errorf("%s: %q, want %q", body, model, want)
		}
	}
	for name, r := range recordings(t, "/api/show") {
		if _, ref := ParseShow(r.body); ref != nil {
			t.Errorf("%s: %v", name, ref)
		}
	}
}
