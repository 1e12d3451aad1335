package main

import (
	"encoding/json"
	"strings"
	"testing"

	"iop/packages/go/doctor"
)

// The exit code says what the worst finding is, and the report what is wrong, as text and as JSON.
func TestDoctor(t *testing.T) {
	dir := command(t, "edges: ['127.0.0.1:1']\ntoken: env:IOP_TEST_TOKEN\n").Dir
	text := output(t, dir, doctor.ExitFail, "doctor", "-c", "node.yaml")
	for _, want := range []string{"FAIL     edge 127.0.0.1:1 ", "To do: start what should listen", "ok       config ", "\n1 FAIL"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q isn't in\n%s", want, text)
		}
	}
	var report doctor.Report
	if err := json.Unmarshal([]byte(output(t, dir, doctor.ExitFail, "doctor", "-c", "node.yaml", "--json")), &report); err != nil ||
		report.Program != "iop-node" || report.Level != doctor.Fail || len(report.Findings) < 5 {
		t.Errorf("%v: %+v", err, report)
	}
	if strings.Contains(text, "0123456789") {
		t.Error("the token is shown")
	}
	if text := output(t, dir, doctor.ExitFail, "doctor", "--provider", "http://127.0.0.1:1", "--kind", "ollama"); !strings.Contains(text, "ollama serve") {
		t.Errorf("a provider that is down: %s", text)
	}
}

func TestDoctorRefusesWhatItCannotDo(t *testing.T) {
	dir := command(t, "edges: ['127.0.0.1:1']\ntoken: env:IOP_TEST_TOKEN\n").Dir
	for _, args := range [][]string{{}, {"-c", "node.yaml", "more"}, {"--provider", "http://h"}, {"--provider", "http://h", "--kind", "new"}, {"-c", "node.yaml", "--target", "m"}} {
		text := output(t, dir, 2, append([]string{"doctor"}, args...)...)
		if !strings.Contains(text, "See: iop-node doctor --help") {
			t.Errorf("%v: %s", args, text)
		}
	}
}
