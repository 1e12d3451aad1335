package execution

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// gather joins the deltas of calls and holds the rules of their form.
func gather(t testing.TB, deltas []ToolCallDelta) []ToolCall {
	t.Helper()
	var calls []ToolCall
	ids := map[string]bool{}
	for _, d := range deltas {
		switch {
		case d.Index == len(calls):
			if d.ID == "" || d.Name == "" || ids[d.ID] {
				t.Errorf("a call begins with id %q and name %q", d.ID, d.Name)
			}
			ids[d.ID] = true
			calls = append(calls, ToolCall{ID: d.ID, Name: d.Name, Arguments: d.Arguments})
		case d.Index < 0 || d.Index > len(calls) || d.ID != "" || d.Name != "" || d.Arguments == "":
			t.Errorf("delta %+v with %d calls begun", d, len(calls))
		default:
			calls[d.Index].Arguments += d.Arguments
		}
	}
	return calls
}

func at(n int) *int { return &n }

// made is the id that an assembler with the seed "run" gives the call at index n.
func made(n int) string { return NewAssembler("run").id(n, "") }

// ST-29, ST-30 and what else providers leave out. Each inner list is one message.
func TestAssembler(t *testing.T) {
	type m = []ToolCallPiece
	a, b := `{"path":"a.rs"}`, `{"path":"b.rs"}`
	tests := map[string]struct {
		messages []m
		want     []ToolCall
	}{
		"as documented": {[]m{
			{{Index: at(0), ID: "x", Name: "read"}}, {{Index: at(0), Arguments: `{"path":`}}, {{Index: at(0), Arguments: `"a.rs"}`}},
			{{Index: at(1), ID: "y", Name: "read"}}, {{Index: at(1), Arguments: b}},
		}, []ToolCall{{"x", "read", a}, {"y", "read", b}}},
		"interleaved": {[]m{
			{{Index: at(0), ID: "x", Name: "read"}, {Index: at(1), ID: "y", Name: "read"}},
			{{Index: at(1), Arguments: `{"path":`}, {Index: at(0), Arguments: `{"path":`}},
			{{Index: at(0), Arguments: `"a.rs"}`}, {Index: at(1), Arguments: `"b.rs"}`}},
		}, []ToolCall{{"x", "read", a}, {"y", "read", b}}},
		"a name that comes behind another's": {[]m{
			{{Index: at(0), ID: "x", Arguments: a}}, {{Index: at(1), ID: "y", Name: "read", Arguments: b}}, {{Index: at(0), Name: "read"}},
		}, []ToolCall{{"y", "read", b}, {"x", "read", a}}},
		"ST-29: ids, no index": {[]m{
			{{ID: "x", Name: "read"}}, {{Arguments: `{"path":`}}, {{Arguments: `"a.rs"}`}},
			{{ID: "y", Name: "read"}}, {{Arguments: `{"path":`}}, {{Arguments: `"b.rs"}`}},
		}, []ToolCall{{"x", "read", a}, {"y", "read", b}}},
		"ST-29: ids in every piece, no index, interleaved": {[]m{
			{{ID: "x", Name: "read"}}, {{ID: "y", Name: "read"}},
			{{ID: "x", Arguments: `{"path":`}}, {{ID: "y", Arguments: `{"path":"b`}}, {{ID: "x", Arguments: `"a.rs"}`}}, {{ID: "y", Arguments: `.rs"}`}},
		}, []ToolCall{{"x", "read", a}, {"y", "read", b}}},
		"ST-29: ids, index 0 for all": {[]m{
			{{Index: at(0), ID: "x", Name: "read"}}, {{Index: at(0), Arguments: `{"path":`}}, {{Index: at(0), Arguments: `"a.rs"}`}},
			{{Index: at(0), ID: "y", Name: "read", Arguments: `{"path":`}}, {{Index: at(0), Arguments: `"b.rs"}`}},
		}, []ToolCall{{"x", "read", a}, {"y", "read", b}}},
		"ST-29: whole calls, index 0 for all": {[]m{
			{{Index: at(0), ID: "x", Name: "read", Arguments: a}}, {{Index: at(0), ID: "y", Name: "read", Arguments: b}},
		}, []ToolCall{{"x", "read", a}, {"y", "read", b}}},
		"ST-30: no id": {[]m{
			{{Index: at(0), Name: "read"}}, {{Index: at(0), Arguments: `{"path":`}}, {{Index: at(0), Arguments: `"a.rs"}`}},
		}, []ToolCall{{made(0), "read", a}}},
		"no id, several": {[]m{
			{{Index: at(0), Name: "read"}}, {{Index: at(0), Arguments: a}}, {{Index: at(1), Name: "read"}}, {{Index: at(1), Arguments: b}},
		}, []ToolCall{{made(0), "read", a}, {made(1), "read", b}}},
		"no id, index 0 for all": {[]m{
			{{Index: at(0), Name: "read"}}, {{Index: at(0), Arguments: `{"path":`}}, {{Index: at(0), Arguments: `"a.rs"}`}},
			{{Index: at(0), Name: "read"}}, {{Index: at(0), Arguments: `{"path":`}}, {{Index: at(0), Arguments: `"b.rs"}`}},
		}, []ToolCall{{made(0), "read", a}, {made(1), "read", b}}},
		"whole calls, neither id nor index": {[]m{{{Name: "read", Arguments: a}}, {{Name: "read", Arguments: b}}},
			[]ToolCall{{made(0), "read", a}, {made(1), "read", b}}},
		"whole calls in one message, neither id nor index": {[]m{{{Name: "now"}, {Name: "now"}, {Name: "read", Arguments: a}}},
			[]ToolCall{{made(0), "now", ""}, {made(1), "now", ""}, {made(2), "read", a}}},
		"pieces, neither id nor index": {[]m{
			{{Name: "read"}}, {{Arguments: `{"path":`}}, {{Arguments: `"a.rs"}`}}, {{Name: "write"}}, {{Arguments: b}},
		}, []ToolCall{{made(0), "read", a}, {made(1), "write", b}}},
		"the name in every piece": {[]m{
			{{Index: at(0), ID: "x", Name: "read"}}, {{Index: at(0), ID: "x", Name: "read", Arguments: `{"path":`}}, {{Index: at(0), ID: "x", Name: "read", Arguments: `"a.rs"}`}},
		}, []ToolCall{{"x", "read", a}}},
		"the name in every piece, no id": {[]m{
			{{Name: "read"}}, {{Name: "read", Arguments: `{"path":`}}, {{Name: "read", Arguments: `"a.rs"}`}}, {{Name: "read"}},
		}, []ToolCall{{made(0), "read", a}}},
		"another id in every piece": {[]m{
			{{Index: at(0), ID: "x", Name: "read"}}, {{Index: at(0), ID: "y", Arguments: `{"path":`}}, {{Index: at(0), ID: "z", Arguments: `"a.rs"}`}},
		}, []ToolCall{{"x", "read", a}}},
		"one id for all": {[]m{
			{{Index: at(0), ID: "x", Name: "read", Arguments: a}, {Index: at(1), ID: "x", Name: "read", Arguments: b}}, {{ID: "x", Name: "now"}},
		}, []ToolCall{{"x", "read", a}, {made(1), "read", b}, {made(2), "now", ""}}},
		"the id comes late": {[]m{
			{{Index: at(0), Name: "read"}}, {{Index: at(0), ID: "x", Arguments: `{"path":`}}, {{ID: "x", Arguments: `"a.rs"}`}},
		}, []ToolCall{{made(0), "read", a}}},
		"the name comes late": {[]m{
			{{Index: at(0), ID: "x"}}, {{Index: at(0), Arguments: `{"path":`}}, {{Index: at(0), Name: "read", Arguments: `"a.rs"}`}},
		}, []ToolCall{{"x", "read", a}}},
		"an id before a name": {[]m{{{ID: "x", Name: "read", Arguments: a}}, {{ID: "y"}}, {{Name: "write", Arguments: b}}},
			[]ToolCall{{"x", "read", a}, {"y", "write", b}}},
		"a stray brace": {[]m{{{Name: "read", Arguments: "}" + a}}, {{Name: "read", Arguments: b}}},
			[]ToolCall{{made(0), "read", "}" + a}, {made(1), "read", b}}},
		"braces in strings": {[]m{
			{{Name: "read", Arguments: `{"path":"}\"`}}, {{Name: "read", Arguments: `]"}`}}, {{Name: "read", Arguments: b}},
		}, []ToolCall{{made(0), "read", `{"path":"}\"]"}`}, {made(1), "read", b}}},
		"empty pieces": {[]m{{{}}, {{Index: at(3)}}, {{ID: "x", Name: "now"}}, {{}}, {}}, []ToolCall{{"x", "now", ""}}},
		"an id like those that are made": {[]m{{{Name: "a"}}, {{ID: made(2), Name: "b"}}, {{Name: "c"}}},
			[]ToolCall{{made(0), "a", ""}, {made(2), "b", ""}, {made(2) + "x", "c", ""}}},
		"an endless id": {[]m{{{ID: strings.Repeat("x", 300), Name: "a"}}, {{Arguments: "{}"}}}, []ToolCall{{made(0), "a", "{}"}}},
	}
	for name, k := range tests {
		t.Run(name, func(t *testing.T) {
			s, deltas := NewAssembler("run"), []ToolCallDelta(nil)
			for _, pieces := range k.messages {
				out, err := s.Add(pieces...)
				if err != nil {
					t.Fatal(err)
				}
				deltas = append(deltas, out...)
			}
			if err := s.Finish(); err != nil || s.Len() != len(k.want) {
				t.Errorf("%d calls, %v", s.Len(), err)
			}
			if d := cmp.Diff(k.want, gather(t, deltas)); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestAssemblerRefuses(t *testing.T) {
	decode := func(err error) bool {
		var f *Failure
		return errors.As(err, &f) && f.Code == CodeAdapterDecode && f.Origin == OriginProvider
	}
	a := NewAssembler("")
	if _, err := a.Add(ToolCallPiece{Index: at(0), Arguments: "{}"}); err != nil || !decode(a.Finish()) {
		t.Errorf("a call without a name: %v, %v", err, a.Finish())
	}
	if _, err := a.Add(ToolCallPiece{Index: at(0), Arguments: strings.Repeat("x", maxHeld)}); !decode(err) {
		t.Errorf("arguments without a name: %v", err)
	}
	a = NewAssembler("")
	for i := range maxCalls {
		if _, err := a.Add(ToolCallPiece{ID: strconv.Itoa(i), Name: "f"}); err != nil {
			t.Fatal(i, err)
		}
	}
	if _, err := a.Add(ToolCallPiece{ID: "more", Name: "f"}); !decode(err) {
		t.Errorf("call %d: %v", maxCalls+1, err)
	}
}

// A provider that gives each piece an id of its own costs no memory for each.
func TestAssemblerForgetsIDsOfPieces(t *testing.T) {
	a := NewAssembler("run")
	for i := range 100 {
		p := ToolCallPiece{Index: at(0), ID: strconv.Itoa(i), Arguments: "x"}
		if i == 0 {
			p.Name = "f"
		}
		if _, err := a.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	if a.Len() != 1 || len(a.byID) != 1 {
		t.Errorf("%d calls, %d ids", a.Len(), len(a.byID))
	}
}

// Ids depend on the run: two answers of one conversation don't share any.
func TestMadeIDsDifferByRun(t *testing.T) {
	if a, b := NewAssembler("r1").id(0, ""), NewAssembler("r2").id(0, ""); a == b || a == "" || len(a) > 40 {
		t.Errorf("%q and %q", a, b)
	}
}

// ST-29, ST-30: whatever calls a model makes, and however a provider that says enough to tell them apart leaves the
// rest out and cuts the arguments: they come out as they were made.
func TestAssemblerKeepsCallsApart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		style := rapid.SampledFrom([]string{"index and id", "index", "id", "index 0 and id", "index 0", "nothing"}).Draw(rt, "style")
		n := rapid.IntRange(1, 5).Draw(rt, "calls")
		a := NewAssembler("run")
		var want []string
		var deltas []ToolCallDelta
		for i := range n {
			args, _ := json.Marshal(map[string]string{"k": rapid.StringMatching(`[a-z{}\[\]"\\ é]{0,12}`).Draw(rt, "value")})
			name := rapid.SampledFrom([]string{"f", "g"}).Draw(rt, "name")
			want = append(want, name+string(args))
			p := ToolCallPiece{Name: name}
			switch style {
			case "index and id", "index":
				p.Index = at(i)
			case "index 0 and id", "index 0":
				p.Index = at(0)
			}
			if strings.HasSuffix(style, "id") {
				p.ID = fmt.Sprint("id", i)
			}
			for rest, first := string(args), true; rest != "" || first; first = false {
				k := rapid.IntRange(0, len(rest)).Draw(rt, "cut")
				if p.Arguments = rest[:k]; !first {
					p.ID, p.Name = "", ""
				}
				rest = rest[k:]
				out, err := a.Add(p)
				if err != nil {
					rt.Fatal(err)
				}
				deltas = append(deltas, out...)
			}
		}
		var got []string
		for _, c := range gather(t, deltas) {
			got = append(got, c.Name+c.Arguments)
		}
		if d := cmp.Diff(want, got); d != "" {
			rt.Fatalf("%s: %s", style, d)
		}
	})
}
