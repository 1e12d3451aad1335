package dialect

import (
	"errors"
	"strings"
	"testing"

	"iop/packages/go/execution"
)

func piece(index int, id, name, arguments string) execution.Event {
	return execution.Event{Kind: execution.EventToolCall,
		ToolCall: execution.ToolCallDelta{Index: index, ID: id, Name: name, Arguments: arguments}}
}

// Parallel calls whose pieces come mixed are kept apart.
func TestWholeKeepsCallsApart(t *testing.T) {
	var w Whole
	for _, e := range []execution.Event{piece(0, "a", "look", `{"at"`), piece(1, "b", "now", ""), piece(0, "", "", `:1`), piece(1, "", "", `{}`), piece(0, "", "", `}`)} {
		if err := w.Event(e); err != nil {
			t.Fatal(err)
		}
	}
	want := []execution.ToolCall{{ID: "a", Name: "look", Arguments: `{"at":1}`}, {ID: "b", Name: "now", Arguments: `{}`}}
	if len(w.Calls) != 2 || w.Calls[0] != want[0] || w.Calls[1] != want[1] {
		t.Errorf("%+v", w.Calls)
	}
}

// The number of a call comes from a node: no memory is reserved for it before it is believed.
func TestWholeRefusesANumberTooHigh(t *testing.T) {
	var w Whole
	for _, index := range []int{MaxCalls, 1<<32 - 1, -1} {
		var f *execution.Failure
		if err := w.Event(piece(index, "a", "look", "")); !errors.As(err, &f) || f.Code != execution.CodeAdapterDecode || len(w.Calls) > 0 {
			t.Errorf("%d: %v, %d calls", index, err, len(w.Calls))
		}
	}
}

// The time for a call's arguments grows with their length and not with its square: a million pieces are soon there.
func TestWholeTakesManyPieces(t *testing.T) {
	var w Whole
	for range 1 << 20 {
		if err := w.Event(piece(0, "", "", "1234")); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.Calls[0].Arguments; got != strings.Repeat("1234", 1<<20) {
		t.Errorf("%d bytes", len(got))
	}
	var f *execution.Failure
	if err := w.Event(piece(0, "", "", strings.Repeat("x", MaxWhole))); !errors.As(err, &f) || f.Code != execution.CodeBadRequest {
		t.Errorf("the bound doesn't hold, or clients would ask again: %v", err)
	}
}
