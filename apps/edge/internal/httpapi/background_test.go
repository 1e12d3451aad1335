package httpapi

import "testing"

// A response in the background would run on behind its answer, without a place and past every limit of its caller.
func TestNoResponseInTheBackground(t *testing.T) {
	g := start(t, open(), nil)
	for body, status := range map[string]int{
		`{"model":"small","input":"hi"}`:                                      200,
		`{"model":"small","input":"hi","background":false}`:                   200,
		`{"model":"small","input":"hi","background":null}`:                    200,
		`{"model":"small","input":"hi","metadata":{"background":true}}`:       200,
		`{"background":true,"model":"small","input":"hi"}`:                    400,
		`{"model":"small","input":"hi","background":1}`:                       400,
		`{"model":"small","input":"hi","background":"yes"}`:                   400,
		`{"model":"small","background":true,"background":false,"input":"hi"}`: 400,
		`{"model":"small","input":"hi","\u0042ackground":true}`:               400,
	} {
		resp, answer := g.do2("POST", "/v1/responses", "", body)
		if resp.StatusCode != status {
			t.Errorf("%s: %d %s", body, resp.StatusCode, answer)
		}
		if status != 200 {
			wantError(t, resp, answer, 400, "bad_request")
		}
	}
	if resp, answer := g.do2("POST", "/v1/completions", "", `{"model":"small","prompt":"hi","background":true}`); resp.StatusCode != 200 {
		t.Errorf("another path: %d %s", resp.StatusCode, answer)
	}
}
