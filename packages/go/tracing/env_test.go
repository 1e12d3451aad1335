package tracing

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func read(vars map[string]string) (*Config, error) {
	return FromEnv(func(name string) string { return vars[name] }, "iop-test", "1.2")
}

func TestEnvironmentIsOff(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"nothing":        {},
		"no endpoint":    {"OTEL_SERVICE_NAME": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_EXPORTER": "otlp"},
		"disabled":       {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"},
		"no exporter":    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"},
		"a wrong one is": {"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense", "OTEL_SDK_DISABLED": "true"},
	} {
		if c, err := read(vars); c != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	c, err := read(map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example:4318/base/", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
		"OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b, other = c", "OTEL_EXPORTER_OTLP_TIMEOUT": "3000",
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip", "OTEL_RESOURCE_ATTRIBUTES": "a=1,service.name=hers",
		"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Endpoint != "https://c.example:4318/base/v1/traces" || c.Timeout != 3*time.Second || !c.Gzip || c.Service != "hers" ||
		c.Version != "1.2" || c.Attributes["a"] != "1" || c.Sampler != "parentbased_traceidratio" || c.Ratio != 0.25 || c.TLS != nil {
		t.Errorf("read %+v", c)
	}
	if key, other := c.Headers["x-key"], c.Headers["other"]; key.Reveal() != "a b" || other.Reveal() != "c" {
		t.Error("headers are read otherwise")
	}
	if text := fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(text, "a b") {
		t.Error("a header's value can be printed")
	}
	c, err = read(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://general", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/here",
		"OTEL_SERVICE_NAME": "mine", "OTEL_RESOURCE_ATTRIBUTES": "service.name=hers"})
	if err != nil || c.Endpoint != "http://c:4318/here" || c.Service != "mine" || c.Timeout != defaultTimeout {
		t.Errorf("read %+v, %v", c, err)
	}
}

// What can't be done is said at the start, with the variable's name, and without what a header holds.
func TestEnvironmentIsRefused(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"},
		{"OTEL_TRACES_EXPORTER", "zipkin", "otlp"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "localhost:4318", "http://"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://user:secret@c", "OTEL_EXPORTER_OTLP_HEADERS"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c/v1/traces?key=secret", "OTEL_EXPORTER_OTLP_HEADERS"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "secret", "name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=%zzsecret", "name=value"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "a=secret%0a", "can't be sent"},
		{"OTEL_EXPORTER_OTLP_HEADERS", "content-type=secret", "can't be sent"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds"},
		{"OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "gzip"},
		{"OTEL_TRACES_SAMPLER", "jaeger_remote", "traceidratio"},
		{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem", "/nowhere/ca.pem"},
		{"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/nowhere/cert.pem", "/nowhere/cert.pem"},
	} {
		_, err := read(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", c.name: c.value})
		if err == nil || !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the value: %v", c.name, err)
		}
	}
	for _, arg := range []string{"2", "-1", "NaN", "much"} {
		_, err := read(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": arg})
		if err == nil || !strings.Contains(err.Error(), "OTEL_TRACES_SAMPLER_ARG") {
			t.Errorf("ratio %s: %v", arg, err)
		}
	}
	empty := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c", "OTEL_EXPORTER_OTLP_CERTIFICATE": empty}); err == nil {
		t.Error("a file without a certificate is taken")
	}
}
