package config

import (
	"strings"
	"testing"
)

// Whatever is shown as a token: no panic, an error that quotes nothing of it, or a token that is one line of visible
// characters and the same when it is read again.
func FuzzToken(f *testing.F) {
	token, _ := NewToken()
	for _, s := range []string{token.Reveal(), "", "short", strings.Repeat("x", maxToken+1), joinPrefix, joinPrefix + "e30",
		joinPrefix + "eyJ0b2tlbiI6IngifQ", joinPrefix + "bnVsbA", "a\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, pin, err := parseToken(s)
		if err != nil {
			if len(s) > 8 && strings.Contains(err.Error(), s) {
				t.Fatal("an error quotes the token")
			}
			return
		}
		bare := token.Reveal()
		if len(bare) < minToken || len(bare) > maxToken || strings.ContainsAny(bare, " \r\n\t\x00") {
			t.Fatalf("a token of %d bytes", len(bare))
		}
		if pin != "" && !hexHash.MatchString(pin) {
			t.Fatalf("pin %q", pin)
		}
		if again, err := ParseToken(bare); err != nil || again.Reveal() != bare {
			t.Fatalf("read again: %v", err)
		}
	})
}
