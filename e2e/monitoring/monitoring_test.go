package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"iop/e2e/harness"
	"iop/packages/go/execution"
	"iop/packages/go/patience"
)

// series are the metrics that both programs show: by name their labels, and by label the values.
type series map[string]map[string]map[string]bool

// read takes an exposition in.
func (s series) read(text string) {
	sample := regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? \S+$`)
	label := regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
	for line := range strings.Lines(text) {
		m := sample.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		if s[m[1]] == nil {
			s[m[1]] = map[string]map[string]bool{"job": {}, "instance": {}} // Prometheus adds these
		}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			if s[m[1]][l[1]] == nil {
				s[m[1]][l[1]] = map[string]bool{}
			}
			s[m[1]][l[1]][l[2]] = true
		}
	}
}

// scrapeEverything starts an edge in mode managed with keys to lend, and a node, lets happen what has metrics, and returns
// what they show.
func scrapeEverything(t *testing.T) series {
	t.Helper()
	s := startSite(t, setup{})
	for _, c := range []struct {
		key, path, model string
		status           int
	}{
		{aliceKey, "/v1/chat/completions", "m", 200},
		{limitedKey, "/v1/chat/completions", "m", 200},
		{limitedKey, "/v1/chat/completions", "m", 429},
		{aliceKey, "/v1/chat/completions", "keyed", 200},
		{aliceKey, "/v1/embeddings", "keyed", 503}, // the key isn't for that
	} {
		a, err := harness.Ask(s.edge.HTTP(), harness.Post(c.path, `{"model":"`+c.model+`"}`, "Authorization: Bearer "+c.key), patience.Limit)
		if err != nil || a.StatusCode != c.status {
			t.Fatalf("%s %s: %v, %v, want %d", c.path, c.model, a, err, c.status)
		}
	}
	s.edge.AwaitIdle(patience.Limit)
	s.edge.AwaitEnded(patience.Limit) // what counts ends
	all := series{}
	all.read(string(s.edge.Admin("/metrics")))
	all.read(string(s.node.Admin("/metrics")))
	return all
}

// expressions are the queries of the alerts and of the dashboard, each with the texts that show labels of its answers.
func expressions(t *testing.T) map[string]query {
	t.Helper()
	all := map[string]query{}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(file(t, "../../configs/prometheus/alerts.yaml"), &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = query{r.Expr, r.Annotations["summary"] + r.Annotations["description"]}
		}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(file(t, "../../configs/grafana/iop.json"), &board); err != nil {
		t.Fatal(err)
	}
	for _, p := range board.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %s %d", p.Title, i)] = query{target.Expr, target.LegendFormat}
		}
	}
	return all
}

type query struct{ expr, shows string }

func file(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var (
	quoted   = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	selector = regexp.MustCompile(`\b((?:iop|process|go)_[a-z_]+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"((?:[^"\\]|\\.)*)"`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring|group_left|group_right) ?\(([^)]*)\)`)
	ident    = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)
	shown    = regexp.MustCompile(`\{\{ ?\$?(?:labels\.)?([a-z_]+)`)
)

// words of PromQL that the queries use. The parser of Prometheus itself reads them in a module of its own (e2e/promql).
var promWords = strings.Fields(`sum max min count rate increase histogram_quantile vector time by on and or unless group_left`)

// check looks whether each metric, label and value that a query names is there.
func (s series) check(t *testing.T, name string, q query) {
	t.Helper()
	labels := map[string]bool{}
	for _, m := range selector.FindAllStringSubmatch(q.expr, -1) {
		there := s[m[1]]
		if there == nil {
			t.Errorf("%s: nobody shows %s", name, m[1])
			continue
		}
		maps.Copy(labels, keysOf(there))
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if there[l[1]] == nil {
				t.Errorf("%s: %s has no label %s", name, m[1], l[1])
			} else if l[1] != "job" && !strings.HasPrefix(l[3], "$") && !matches(l[2], l[3], l[1], there[l[1]]) {
				t.Errorf("%s: %s is never %s%s%q; it has been %v", name, m[1], l[1], l[2], l[3], slices.Sorted(maps.Keys(there[l[1]])))
			}
		}
	}
	if len(labels) == 0 {
		t.Errorf("%s asks for nothing of ours", name)
	}
	rest := selector.ReplaceAllString(q.expr, "")
	for _, g := range grouping.FindAllStringSubmatch(rest, -1) {
		for _, l := range ident.FindAllString(g[1], -1) {
			if !labels[l] {
				t.Errorf("%s groups by %s, which none of its metrics has", name, l)
			}
		}
	}
	rest = regexp.MustCompile(`\[[^]]*\]`).ReplaceAllString(quoted.ReplaceAllString(grouping.ReplaceAllString(rest, ""), ""), "")
	for _, word := range ident.FindAllString(rest, -1) {
		if !slices.Contains(promWords, word) {
			t.Errorf("%s: what is %s?", name, word)
		}
	}
	for _, l := range shown.FindAllStringSubmatch(q.shows, -1) {
		if !labels[l[1]] && l[1] != "value" {
			t.Errorf("%s shows %s, which none of its metrics has", name, l[1])
		}
	}
}

func keysOf(m map[string]map[string]bool) map[string]bool {
	out := map[string]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// matches reports whether a matcher fits at least one value that there is. Failure codes are a list: most of them don't
// happen here.
func matches(op, text, label string, values map[string]bool) bool {
	all := slices.Collect(maps.Keys(values))
	if label == "code" {
		for _, code := range execution.Codes() {
			all = append(all, code.String())
		}
	}
	if op == "=" || op == "!=" {
		text = regexp.QuoteMeta(text)
	}
	for part := range strings.SplitSeq(text, "|") { // each alternative by itself
		if !slices.ContainsFunc(all, regexp.MustCompile("^(?:"+part+")$").MatchString) {
			return false
		}
	}
	return true
}

// Every metric, label and value that the alerts and the dashboard ask for is one that a running edge or node shows.
func TestAlertsAndDashboardAskForWhatIsThere(t *testing.T) {
	there := scrapeEverything(t)
	all := expressions(t)
	if len(all) < 50 {
		t.Errorf("only %d queries were found", len(all))
	}
	for name, q := range all {
		there.check(t, name, q)
	}
}

// Each alert has a section in the docs, and the docs have none of others.
func TestAlertsAreExplained(t *testing.T) {
	docs := string(file(t, "../../docs/monitoring.md"))
	headings := regexp.MustCompile(`(?m)^### (IOP[A-Za-z]+)$`).FindAllStringSubmatch(docs, -1)
	explained := map[string]bool{}
	for _, h := range headings {
		explained[h[1]] = true
	}
	rules := string(file(t, "../../configs/prometheus/alerts.yaml"))
	for _, m := range regexp.MustCompile(`(?ms)- alert: (\w+)$(.*?)runbook_url: docs/monitoring.md#(\w+)$`).FindAllStringSubmatch(rules, -1) {
		name := m[1]
		if !explained[name] || m[3] != strings.ToLower(name) || !strings.Contains(m[2], "summary: ") || !strings.Contains(m[2], "description: ") {
			t.Errorf("%s: no section in docs/monitoring.md, or no link to it, or nothing that says what to do", name)
		}
		delete(explained, name)
	}
	for name := range explained {
		t.Errorf("docs/monitoring.md explains %s, which isn't an alert", name)
	}
	// What it tells people to type exists: TestCommandsOfDocs looks at docs/ctl.md, which has all of them.
	ctl := string(file(t, "../../docs/ctl.md"))
	for _, m := range regexp.MustCompile("`iop-edge (ctl [a-z-]+)").FindAllStringSubmatch(rules+docs, -1) {
		if !strings.Contains(ctl, m[1]) {
			t.Errorf("%s isn't a command of docs/ctl.md", m[1])
		}
	}
}
