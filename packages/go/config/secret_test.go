package config

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"gopkg.in/yaml.v3"
)

// CR-08
func TestSecretCannotBePrinted(t *testing.T) {
	for _, length := range []int{8, 20, 51, 200} {
		plain := "sk-ant-" + strings.Repeat("Q7xZ", 50)[:length-7]
		s := NewSecret(plain)
		type holder struct {
			S      Secret
			P      *Secret
			hidden Secret
		}
		h := holder{S: s, P: &s, hidden: s}
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%10v", "%T", "%p", "%c"} {
			fmt.Fprintf(&out, verb+verb+verb+verb+verb+"\n", s, &s, h, &h, []any{s, map[string]Secret{"k": s}})
		}
		fmt.Fprintln(&out, s, h, fmt.Errorf("wrapped: %v", s), s.String())
		for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
			b, err := marshal(map[string]any{"s": s, "p": &s, "h": struct{ S Secret }{s}})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(string(b), redacted) != 3 {
				t.Errorf("want 3 redactions: %s", b)
			}
			out.Write(b)
		}
		text, _ := s.MarshalText()
		out.Write(text)
		log := zerolog.New(&out)
		log.Info().Interface("a", s).Interface("b", h).Stringer("c", s).Any("d", s).Str("e", s.String()).Msgf("%v %+v", s, h)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "s", s, "h", h)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "s", s, "h", h)
		leaks(t, out.String(), plain)
	}
}

// leaks fails if any 6 characters of the secret are in out.
func leaks(t *testing.T, out, secret string) {
	t.Helper()
	out = strings.ToLower(out)
	for i := 0; i+6 <= len(secret); i++ {
		part := strings.ToLower(secret[i : i+6])
		if strings.Contains(out, part) || strings.Contains(out, hex.EncodeToString([]byte(part))) {
			t.Fatalf("%q of the secret is in %.300q", part, out)
		}
	}
}

func TestNewTokenAndKey(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		join, tokenHash := NewToken()
		token, err := ParseToken(join.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		key, keyHash := NewKey()
		for secret, hash := range map[string]string{token.Reveal(): tokenHash, key.Reveal(): keyHash} {
			sum := HashSecret(secret)
			if hex.EncodeToString(sum[:]) != hash || seen[secret] {
				t.Fatalf("hash %s isn't that of the secret, or the secret came twice", hash)
			}
			seen[secret] = true
			b, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(secret, keyPrefix))
			if err != nil || len(b) != 32 {
				t.Fatalf("%d bytes, want 32: %v", len(b), err)
			}
		}
		if !strings.HasPrefix(join.Reveal(), "iop1.") || !strings.HasPrefix(key.Reveal(), "sk-iop-") {
			t.Fatal("prefix")
		}
		if !looksSecret(join.Reveal()) || !looksSecret(token.Reveal()) || !looksSecret(key.Reveal()) {
			t.Fatal("an error would quote it")
		}
	}
}

func TestParseToken(t *testing.T) {
	joined := func(content string) string { return joinPrefix + base64.RawURLEncoding.EncodeToString([]byte(content)) }
	for in, want := range map[string]string{
		"0123456789abcdef":                            "",
		joined(`{"token":"0123456789abcdef"}`):        "",
		"":                                            "is empty",
		"short-s3cr3t":                                "is shorter than 16",
		strings.Repeat("s3cr3t", 1000):                "is longer than 4096 bytes",
		"s3cr3t-0123456789\ns3cr3t":                   "has more than one line",
		" s3cr3t-0123456789":                          "holds a blank",
		"s3cr3t-0123456789\x00":                       "holds a blank",
		"s3cr3t-0123456789é":                          "holds a blank",
		"iop1.!!!s3cr3t":                              "was cut or changed",
		joined(`{"token":`):                           "was cut or changed",
		joined(`{"token":5}`):                         "was cut or changed",
		joined(`{"token":"iop1.s3cr3t0123456"}`):      "was cut or changed",
		joined(`{"token":"s3cr3t-012345678","ca":1}`): "was cut or changed",
		joined(`{"token":"s3cr3t-012345678","x":1}`):  "of a newer version",
		joined(`{"token":"s3cr3t"}`):                  "is shorter than 16",
	} {
		got, err := ParseToken(in)
		switch {
		case want == "" && (err != nil || got.Reveal() != "0123456789abcdef"):
			t.Errorf("%q: %v", in, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !got.IsZero()):
			t.Errorf("%q: %v, want %s", in, err, want)
		case err != nil:
			leaks(t, err.Error(), "s3cr3t")
		}
	}
}
