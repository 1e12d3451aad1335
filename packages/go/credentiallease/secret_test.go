package credentiallease

import (
	"bytes"
	"encoding"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"gopkg.in/yaml.v3"
)

// hiding is every type that holds a secret, each made of keys and secrets that are full of one byte.
func hiding(t *testing.T) map[string]any {
	t.Helper()
	secret, err := NewSecret(bytes.Repeat([]byte("S"), 40))
	check(t, err)
	signer, err := NewSigningKey(bytes.Repeat([]byte("S"), SeedSize))
	check(t, err)
	recipient := recipientOf(t, 'S')
	c := challenge(t, recipient, testTranscript())
	c.want = boxed(bytes.Repeat([]byte("S"), ProofSize))
	return map[string]any{"Secret": secret, "*Secret": &secret, "SigningKey": signer, "RecipientKey": recipient, "Challenge": c}
}

// E44, CR-06, CR-08: no format, encoder, logger, error or panic shows a part of a secret, nor does what holds one.
func TestNothingPrintsASecret(t *testing.T) {
	for name, v := range hiding(t) {
		held := struct {
			Exported any
			hidden   any
		}{v, v}
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%20v", "%-3s", "%e", "%c", "%U"} {
			fmt.Fprintf(&out, verb+"\n"+verb+"\n"+verb+"\n", v, held, []any{v})
			if got := fmt.Sprintf(verb, v); got != redacted && verb != "%p" {
				t.Errorf("%s: %s shows %q", name, verb, got)
			}
		}
		fmt.Fprintln(&out, errors.Join(fmt.Errorf("with %v", v)), v)
		for _, encode := range []func(any) ([]byte, error){json.Marshal, xml.Marshal, yaml.Marshal} {
			if text, err := encode(v); err == nil {
				out.Write(text)
			}
			if text, err := encode(map[string]any{"a": []any{v}}); err == nil {
				out.Write(text)
			}
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", v, "held", held)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", v, "held", held)
		log := zerolog.New(&out)
		log.Info().Interface("i", v).Any("a", held).Stringer("s", v.(fmt.Stringer)).Fields(map[string]any{"f": v}).Send()
		func() {
			defer func() { fmt.Fprint(&out, recover()) }()
			panic(v)
		}()
		all := cmp.Exporter(func(reflect.Type) bool { return true })
		fmt.Fprint(&out, cmp.Diff(v, nil, all), cmp.Diff(held, nil, all))
		noSecretIn(t, name, out.String())
		if text, err := json.Marshal(v); err != nil || string(text) != `"`+redacted+`"` {
			t.Errorf("%s: JSON %s, %v", name, text, err)
		}
	}
}

// Binary forms are meant to be read back, so they fail.
func TestNothingEncodesASecret(t *testing.T) {
	for name, v := range hiding(t) {
		if b, err := v.(encoding.BinaryMarshaler).MarshalBinary(); err == nil || b != nil {
			t.Errorf("%s: binary %x", name, b)
		}
		var out bytes.Buffer
		if err := gob.NewEncoder(&out).Encode(v); err == nil {
			t.Errorf("%s: gob takes it", name)
		}
		noSecretIn(t, name, out.String())
	}
}

func noSecretIn(t *testing.T, name, out string) {
	t.Helper()
	// Five bytes in a row, in every form: public keys and ciphertexts may be shown, and have any two or three by chance.
	for _, part := range []string{"SSSSS", "5353535353", "U1NTU1NT", "83, 83, 83, 83, 83", "83 83 83 83 83", "0x53, 0x53, 0x53, 0x53, 0x53",
		"0x53 0x53 0x53 0x53 0x53", "S S S S S", "53 53 53 53 53"} {
		if strings.Contains(out, part) {
			t.Errorf("%s: %q of the secret is in %.400q", name, part, out)
		}
	}
}

// E16, CR-08: what can't be a header's value isn't a secret; the error doesn't quote it and the value is cleared.
func TestNewSecret(t *testing.T) {
	for _, bad := range []string{"", "short", "sk-x12345\r\nX-Evil: 1", "sk-x12345\n", "sk x12345", "sk-x12345\x00", "sk-x12345\x7f", "sk-\xc3\xa4-345678",
		strings.Repeat("s", MaxSecret+1)} {
		value := []byte(bad)
		s, err := NewSecret(value)
		if err == nil || !s.IsZero() {
			t.Errorf("%.20q is accepted", bad)
			continue
		}
		if len(bad) > 4 && strings.Contains(err.Error(), bad[:4]) {
			t.Errorf("the error quotes it: %v", err)
		}
		if !bytes.Equal(value, make([]byte, len(value))) {
			t.Errorf("%.20q isn't cleared", bad)
		}
	}
	for _, good := range []string{"12345678", "!~!~!~!~", strings.Repeat("s", MaxSecret)} {
		if _, err := NewSecret([]byte(good)); err != nil {
			t.Errorf("%.20q: %v", good, err)
		}
	}
}

// A secret that was zeroed is gone from all its copies and issues nothing.
func TestZero(t *testing.T) {
	w := newWorld(t)
	var inside []byte
	copied := w.secret
	w.secret.Use(func(value []byte) { inside = value })
	copied.Zero()
	copied.Zero()
	if !w.secret.IsZero() || !bytes.Equal(inside, make([]byte, len(goodValue))) {
		t.Error("the secret is still there")
	}
	_, err := NewIssuer("edge-a", w.signer).Issue(w.proven, w.grant, w.secret, edgeTime, DefaultTTL)
	wantRefusal(t, err, BadSecret, FieldNone)
	Secret{}.Zero()
}

func TestSigningKeys(t *testing.T) {
	k := GenerateSigningKey()
	var stored []byte
	if !k.UseSeed(func(seed []byte) { stored = bytes.Clone(seed) }) {
		t.Fatal("no seed")
	}
	again, err := NewSigningKey(stored)
	check(t, err)
	if again.ID() != k.ID() || !bytes.Equal(again.Public(), k.Public()) || len(k.ID()) != keyIDSize {
		t.Error("another key came of the seed")
	}
	if !bytes.Equal(stored, make([]byte, SeedSize)) {
		t.Error("the seed isn't cleared")
	}
	if _, err := NewSigningKey(make([]byte, 31)); err == nil {
		t.Error("a short seed is accepted")
	}
	private, _ := k.box.get()
	k.Drop()
	if !bytes.Equal(private, make([]byte, len(private))) || k.UseSeed(func([]byte) {}) {
		t.Error("a dropped key is still there")
	}
}
