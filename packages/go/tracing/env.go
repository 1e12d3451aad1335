package tracing

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"iop/packages/go/config"
)

// Config says where spans go, and which.
type Config struct {
	// Endpoint is the whole URL that spans are posted to.
	Endpoint string
	// Headers go with each post; a key of the receiver, as a rule.
	Headers map[string]config.Secret
	// Timeout bounds the delivery of one batch, tries again included. 0 = 10 s.
	Timeout time.Duration
	// Gzip compresses what is posted.
	Gzip bool
	// TLS is for an https:// endpoint; nil = the system's authorities and no certificate.
	TLS *tls.Config
	// Service and Version are what the program calls itself.
	Service, Version string
	// Attributes describe the program further.
	Attributes map[string]string
	// Sampler is one of OpenTelemetry's names, "" = parentbased_always_on; Ratio is for those that take one.
	Sampler string
	Ratio   float64
	// Delay is how long spans are gathered. 0 = what OTEL_BSP_SCHEDULE_DELAY says, 5 s by default.
	Delay time.Duration
}

// defaultTimeout is OpenTelemetry's own.
const defaultTimeout = 10 * time.Second

// FromEnv reads OpenTelemetry's standard variables through getenv, for a program that calls itself service, unless they
// say otherwise, and version. It returns nil when they don't name an endpoint, or turn tracing off. An error names the
// variable and never says what a header is.
func FromEnv(getenv func(string) string, service, version string) (*Config, error) {
	e := env{get: func(name string) string { return strings.TrimSpace(getenv(name)) }}
	c := &Config{Endpoint: e.endpoint(), Version: version}
	if c.Endpoint == "" || strings.EqualFold(e.get("OTEL_SDK_DISABLED"), "true") || strings.EqualFold(e.get("OTEL_TRACES_EXPORTER"), "none") {
		return nil, nil
	}
	e.check(c.Endpoint)
	c.Headers, c.Timeout, c.Gzip, c.TLS = e.headers(), e.timeout(), e.gzip(), e.tls()
	c.Attributes = e.attributes()
	c.Service = cmp.Or(e.get("OTEL_SERVICE_NAME"), c.Attributes["service.name"], service)
	c.Sampler, c.Ratio = e.sampler()
	return c, errors.Join(e.wrong...)
}

// env reads variables and gathers what is wrong with them.
type env struct {
	get   func(string) string
	wrong []error
}

func (e *env) refuse(name, format string, args ...any) {
	e.wrong = append(e.wrong, fmt.Errorf(name+": "+format, args...))
}

// otlp returns the variable of the exporter of traces, or that of all exporters, and which of them it was.
func (e *env) otlp(suffix string) (value, name string) {
	name = "OTEL_EXPORTER_OTLP_TRACES_" + suffix
	if value = e.get(name); value != "" {
		return value, name
	}
	name = "OTEL_EXPORTER_OTLP_" + suffix
	return e.get(name), name
}

// endpoint returns the URL to post to. The general variable names a directory, that of traces the thing itself.
func (e *env) endpoint() string {
	value, name := e.otlp("ENDPOINT")
	if value != "" && name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
		return strings.TrimSuffix(value, "/") + "/v1/traces"
	}
	return value
}

// check refuses what this exporter can't do.
func (e *env) check(endpoint string) {
	_, name := e.otlp("ENDPOINT")
	switch u, err := url.Parse(endpoint); {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		e.refuse(name, "isn't an http:// or https:// address, as in http://127.0.0.1:4318")
	case u.User != nil || u.RawQuery != "":
		e.refuse(name, "has a user or a query; a key belongs into OTEL_EXPORTER_OTLP_HEADERS")
	}
	if value, name := e.otlp("PROTOCOL"); value != "" && value != "http/protobuf" {
		e.refuse(name, "%q isn't spoken here; use http/protobuf, which receivers take on port 4318", value)
	}
	if value := e.get("OTEL_TRACES_EXPORTER"); value != "" && value != "otlp" {
		e.refuse("OTEL_TRACES_EXPORTER", "%q isn't known here; use otlp or none", value)
	}
}

// pairs reads name=value,name=value, with values in percent encoding.
func (e *env) pairs(value, name string) map[string]string {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(value, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, text, ok := strings.Cut(pair, "=")
		text, err := url.PathUnescape(strings.TrimSpace(text))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil {
			e.refuse(name, "must be name=value pairs with commas between them, values in percent encoding")
			return nil
		}
		pairs[key] = text
	}
	return pairs
}

func (e *env) headers() map[string]config.Secret {
	value, name := e.otlp("HEADERS")
	headers := map[string]config.Secret{}
	for key, text := range e.pairs(value, name) {
		if !headerName(key) || strings.ContainsAny(text, "\r\n\x00") {
			e.refuse(name, "has a header that can't be sent")
			continue
		}
		headers[key] = config.NewSecret(text)
	}
	return headers
}

// headerName reports whether a header can be called so; those of the message itself can't be set.
func headerName(s string) bool {
	switch http.CanonicalHeaderKey(s) {
	case "Content-Type", "Content-Encoding", "Content-Length", "Host", "Transfer-Encoding", "Connection":
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) })
}

func (e *env) attributes() map[string]string {
	return e.pairs(e.get("OTEL_RESOURCE_ATTRIBUTES"), "OTEL_RESOURCE_ATTRIBUTES")
}

func (e *env) timeout() time.Duration {
	value, name := e.otlp("TIMEOUT")
	if value == "" {
		return defaultTimeout
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil || n == 0 {
		e.refuse(name, "must be a number of milliseconds")
	}
	return time.Duration(n) * time.Millisecond
}

func (e *env) gzip() bool {
	value, name := e.otlp("COMPRESSION")
	if value != "" && value != "gzip" && value != "none" {
		e.refuse(name, "%q isn't known here; use gzip or none", value)
	}
	return value == "gzip"
}

// tls reads the files that the receiver is checked with, and those of the certificate that it is shown.
func (e *env) tls() *tls.Config {
	authority, name := e.otlp("CERTIFICATE")
	cert, certName := e.otlp("CLIENT_CERTIFICATE")
	key, _ := e.otlp("CLIENT_KEY")
	if authority == "" && cert == "" && key == "" {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if authority != "" {
		pem, err := os.ReadFile(authority)
		c.RootCAs = x509.NewCertPool()
		if err != nil {
			e.refuse(name, "%w", err)
		} else if !c.RootCAs.AppendCertsFromPEM(pem) {
			e.refuse(name, "%s has no certificate", authority)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			e.refuse(certName, "%w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

func (e *env) sampler() (name string, ratio float64) {
	name, ratio = strings.ToLower(e.get("OTEL_TRACES_SAMPLER")), 1
	if arg := e.get("OTEL_TRACES_SAMPLER_ARG"); arg != "" && strings.HasSuffix(name, "traceidratio") {
		var err error
		if ratio, err = strconv.ParseFloat(arg, 64); err != nil || !(ratio >= 0 && ratio <= 1) {
			e.refuse("OTEL_TRACES_SAMPLER_ARG", "must be a number from 0 to 1")
		}
	}
	if _, err := (&Config{Sampler: name, Ratio: ratio}).sampler(); err != nil {
		e.refuse("OTEL_TRACES_SAMPLER", "%w", err)
	}
	return name, ratio
}

// sampler says which requests are recorded. By default whoever asked decides, and all of the others are.
func (c *Config) sampler() (sdk.Sampler, error) {
	ratio := sdk.TraceIDRatioBased(c.Ratio)
	switch c.Sampler {
	case "", "parentbased_always_on":
		return sdk.ParentBased(sdk.AlwaysSample()), nil
	case "parentbased_always_off":
		return sdk.ParentBased(sdk.NeverSample()), nil
	case "parentbased_traceidratio":
		return sdk.ParentBased(ratio), nil
	case "always_on":
		return sdk.AlwaysSample(), nil
	case "always_off":
		return sdk.NeverSample(), nil
	case "traceidratio":
		return ratio, nil
	}
	return nil, fmt.Errorf("%q isn't a sampler; use always_on, always_off, traceidratio, or one of these with parentbased_ before it", c.Sampler)
}
