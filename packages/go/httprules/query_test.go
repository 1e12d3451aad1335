package httprules

import "testing"

// E36: a query in which a caller brings a key of its own. (found by attack)
func TestQueryHasKey(t *testing.T) {
	for query, want := range map[string]bool{
		"": false, "alt=sse": false, "api-version=2024-10-21&x=key": false, "keys=1": false, "monkey=1": false, "%zz=1": false,
		"key=k": true, "alt=sse&key=k": true, "alt=sse;key=k": true, "KEY=k": true, "%6bey=k": true, "key": true,
		"api_key=k": true, "api-key=k": true, "apiKey=k": true, "access_token=k": true, "x=1&&x-goog-api-key=k": true,
		"%61ccess%5Ftoken=k": true, "Subscription-Key=k": true,
	} {
		if QueryHasKey(query) != want {
			t.Errorf("%q: %v", query, !want)
		}
	}
}
