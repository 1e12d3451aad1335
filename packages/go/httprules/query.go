package httprules

import (
	"net/url"
	"strings"
)

// QueryHasKey reports whether a query has a parameter in which providers take keys: a caller's own must not stand beside
// the key that the node brings, since it is the provider's choice which of two counts. Escaped names are read as a
// provider reads them.
func QueryHasKey(rawQuery string) bool {
	for pair := range strings.FieldsFuncSeq(rawQuery, func(r rune) bool { return r == '&' || r == ';' }) {
		name, _, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if keyParameter(strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(name))) {
			return true
		}
	}
	return false
}

// keyParameter knows names in small letters, without what separates their words.
func keyParameter(name string) bool {
	switch name {
	case "key", "apikey", "xapikey", "xgoogapikey", "subscriptionkey", "token", "accesstoken", "authtoken", "oauthtoken",
		"bearertoken", "auth", "authorization":
		return true
	}
	return false
}
