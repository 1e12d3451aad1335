// Package promql lets Prometheus' own code read the alerts and the queries of the dashboard, and looks at made-up sites
// whether each alert fires when it should and is silent when it should be. It is a module of its own, so that Prometheus
// isn't a dependency of IOP.
package promql

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

const (
	alertsFile    = "../../configs/prometheus/alerts.yaml"
	dashboardFile = "../../configs/grafana/iop.json"
)

// alerts are the rules by name.
func alerts(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsFile, false, model.UTF8Validation, parser.NewParser(parser.Options{}), nil)
	if len(errs) > 0 {
		t.Fatalf("%s: %v", alertsFile, errs)
	}
	all := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			all[r.Alert] = r
		}
	}
	return all
}

func TestDashboardQueries(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$route", ".*", "$node", ".*").Replace(target.Expr)
			if _, err := parser.NewParser(parser.Options{}).ParseExpr(expr); err != nil {
				t.Errorf("%s: %s: %v", p.Title, expr, err)
			}
			n++
		}
	}
	if n < 40 {
		t.Errorf("only %d queries were found", n)
	}
}

// edge and node are the labels that Prometheus gives what it scrapes.
const (
	edge = `job="iop-edge",instance="e:8081"`
	node = `job="iop-node",instance="n:8082"`
)

// site is a made-up site: values that stand still, and counters as Prometheus' tests write them, for a quarter of an hour
// and more.
type site map[string]string

// of returns the usual site, changed.
func of(changes site) site {
	s := site{
		`iop_build_info{` + edge + `,version="1"}`:                          "1",
		`iop_draining{` + edge + `}`:                                        "0",
		`iop_node_draining{` + node + `,edge="e:7443"}`:                     "0",
		`process_open_fds{` + edge + `}`:                                    "100",
		`process_max_fds{` + edge + `}`:                                     "1024",
		`iop_config_reloads_total{` + edge + `,result="refused"}`:           "0",
		`iop_nodes{` + edge + `,state="unresponsive"}`:                      "0",
		`iop_node_connections_ended_total{` + edge + `,reason="lost"}`:      "7",
		`iop_admissions_total{` + edge + `,outcome="queue_timeout"}`:        "3",
		`iop_admissions_total{` + edge + `,outcome="immediate"}`:            "0+100x120",
		`iop_requests_total{` + edge + `,code="ok",route="m"}`:              "0+100x120",
		`iop_requests_total{` + edge + `,code="node_lost",route="m"}`:       "0+1x120",
		`iop_lease_security_events_total{` + edge + `}`:                     "0",
		`iop_lease_refusals_total{` + edge + `,reason="expired"}`:           "2",
		`iop_slot_state{` + edge + `,slot="main",state="active"}`:           "1",
		`iop_slot_state{` + edge + `,slot="main",state="disabled"}`:         "0",
		`iop_node_registrations_refused_total{` + edge + `,reason="other"}`: "1",
		`iop_identity_not_before_seconds{` + edge + `,what="edge"}`:         days(-300),
		`iop_identity_not_after_seconds{` + edge + `,what="edge"}`:          days(60),
	}
	for _, id := range []string{"a", "b"} {
		at := edge + `,node="` + id + `"`
		for name, value := range map[string]string{"iop_node_ready": "1", "iop_node_drained": "0", "iop_node_disabled": "0",
			"iop_node_store_degraded": "0", "iop_node_clock_unsynced": "0",
			"iop_node_identity_not_before_seconds": days(-0.02), "iop_node_identity_not_after_seconds": days(0.02)} {
			s[name+"{"+at+"}"] = value
		}
		at += `,adapter="gpu"`
		for name, value := range map[string]string{"iop_places_unconfirmed": "0", "iop_places_configured": "4", "iop_places_capacity": "4",
			"iop_adapter_available": "1", "iop_breaker_open": "0"} {
			s[name+"{"+at+"}"] = value
		}
	}
	for series, value := range changes {
		s[series] = value
	}
	return s
}

// days is a moment so many days after that at which the alerts are looked at.
func days(n float64) string { return fmt.Sprintf("%.0f", look.Seconds()+n*86400) }

// look is when the alerts are looked at: by then rates know an hour.
const look = 100 * time.Minute

// fires evaluates a rule.
func fires(t *testing.T, engine *promql.Engine, expr string, s site) bool {
	t.Helper()
	var load strings.Builder
	load.WriteString("load 1m\n")
	for series, value := range s {
		if !strings.Contains(value, "x") {
			value += "+0x120"
		}
		fmt.Fprintf(&load, "  %s %s\n", series, value)
	}
	storage := promqltest.LoadedStorage(t, load.String())
	defer storage.Close()
	q, err := engine.NewInstantQuery(context.Background(), storage, nil, expr, time.Unix(0, 0).Add(look))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	result := q.Exec(context.Background())
	found, err := result.Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return len(found) > 0
}

// expectation says where an alert fires and where it doesn't; the usual site is quiet for all of them.
type expectation struct {
	alert string
	fires []site
	quiet []site
}

func expectations() []expectation {
	nodeA, gpuA := edge+`,node="a"`, edge+`,node="a",adapter="gpu"`
	both := func(metric, value string) site {
		return site{metric + "{" + nodeA + "}": value, metric + "{" + edge + `,node="b"}`: value}
	}
	return []expectation{
		{"IOPNodeNotReady", []site{{`iop_node_ready{` + nodeA + `}`: "0"}}, []site{
			{`iop_node_ready{` + nodeA + `}`: "0", `iop_node_drained{` + nodeA + `}`: "1"},
			{`iop_node_ready{` + nodeA + `}`: "0", `iop_node_disabled{` + nodeA + `}`: "1"}}},
		{"IOPNoNodeReady", []site{both("iop_node_ready", "0")}, []site{{`iop_node_ready{` + nodeA + `}`: "0"}}},
		{"IOPNodeUnresponsive", []site{{`iop_nodes{` + edge + `,state="unresponsive"}`: "1"}}, []site{{`iop_nodes{` + edge + `,state="offline"}`: "1"}}},
		{"IOPLinksLost", []site{{`iop_node_connections_ended_total{` + edge + `,reason="dead"}`: "0+1x120"}}, []site{
			{`iop_node_connections_ended_total{` + edge + `,reason="left"}`: "0+1x120"}}},
		{"IOPRegistrationsRefused", []site{{`iop_node_registrations_refused_total{` + edge + `,reason="unknown_token"}`: "0+1x120"}}, nil},
		{"IOPPlacesUnconfirmed", []site{{`iop_places_unconfirmed{` + gpuA + `}`: "1"}}, nil},
		{"IOPCapacityDrift", []site{{`iop_places_capacity{` + gpuA + `}`: "3"}}, []site{
			{`iop_places_capacity{` + gpuA + `}`: "0", `iop_adapter_available{` + gpuA + `}`: "0"}}},
		{"IOPAdapterUnavailable", []site{{`iop_adapter_available{` + gpuA + `}`: "0"}}, []site{
			{`iop_adapter_available{` + gpuA + `}`: "0", `iop_node_ready{` + nodeA + `}`: "0"}}},
		{"IOPBreakerOpen", []site{{`iop_breaker_open{` + gpuA + `}`: "1"}}, nil},
		{"IOPCallersTurnedAway", []site{{`iop_admissions_total{` + edge + `,outcome="queue_timeout"}`: "0+1x120"}}, []site{
			{`iop_admissions_total{` + edge + `,outcome="limit_exceeded"}`: "0+1x120"}}},
		{"IOPRequestsFail", []site{{`iop_requests_total{` + edge + `,code="upstream_error",route="m"}`: "0+10x120"}}, []site{
			{`iop_requests_total{` + edge + `,code="client_gone",route="m"}`: "0+50x120"}}},
		{"IOPLeasesRefused", []site{{`iop_lease_refusals_total{` + edge + `,reason="expired"}`: "0+1x120"}}, nil},
		{"IOPLeaseSecurity", []site{{`iop_lease_security_events_total{` + edge + `}`: "0x60 1x60"}}, nil},
		{"IOPSlotUnusable", []site{{`iop_slot_state{` + edge + `,slot="main",state="disabled"}`: "1"}}, nil},
		{"IOPCertificateEnds", []site{
			{`iop_identity_not_after_seconds{` + edge + `,what="edge"}`: days(6)},
			{`iop_identity_not_after_seconds{` + edge + `,what="edge"}`: days(-1)},
			{`iop_node_identity_not_after_seconds{` + nodeA + `}`: days(0.005)}}, []site{
			{`iop_identity_not_after_seconds{` + edge + `,what="edge"}`: days(8)}}},
		{"IOPStoreDegraded", []site{{`iop_node_store_degraded{` + nodeA + `}`: "1"}, {`iop_node_store_degraded{` + node + `}`: "1"}}, nil},
		{"IOPClockSkew", []site{{`iop_node_clock_unsynced{` + nodeA + `}`: "1"}}, nil},
		{"IOPDrainingLong", []site{{`iop_draining{` + edge + `}`: "1"}, {`iop_node_draining{` + node + `,edge="e:7443"}`: "1"}}, nil},
		{"IOPDescriptorsNearLimit", []site{{`process_open_fds{` + edge + `}`: "900"}}, []site{
			{`process_open_fds{job="other",instance="o"}`: "900", `process_max_fds{job="other",instance="o"}`: "1000"}}},
		{"IOPReloadRefused", []site{{`iop_config_reloads_total{` + edge + `,result="refused"}`: "0x60 1x60"}}, nil},
	}
}

func TestAlerts(t *testing.T) {
	rules := alerts(t)
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	for _, c := range expectations() {
		rule, known := rules[c.alert]
		if !known {
			t.Errorf("%s isn't there", c.alert)
			continue
		}
		delete(rules, c.alert)
		for i, s := range c.fires {
			if !fires(t, engine, rule.Expr, of(s)) {
				t.Errorf("%s doesn't fire at its site %d", c.alert, i)
			}
		}
		for i, s := range append([]site{nil}, c.quiet...) {
			if fires(t, engine, rule.Expr, of(s)) {
				t.Errorf("%s fires at its quiet site %d", c.alert, i)
			}
		}
	}
	for name := range rules {
		t.Errorf("%s has no site", name)
	}
}
