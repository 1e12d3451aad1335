package execution

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCodesHaveStableNames(t *testing.T) {
	seen := map[string]Code{}
	for _, c := range Codes() {
		name := c.String()
		if name == "" || strings.HasPrefix(name, "code_") {
			t.Errorf("code %d has no name", c)
		}
		if other, dup := seen[name]; dup {
			t.Errorf("codes %d and %d share the name %q", other, c, name)
		}
		seen[name] = c
	}
	if got, want := len(Codes()), int(CodeInternal); got != want {
		t.Errorf("Codes() has %d entries, want %d", got, want)
	}
	if got := Code(200).String(); got != "code_200" {
		t.Errorf("a code of a later version prints %q, want code_200", got)
	}
}

func TestAsFailure(t *testing.T) {
	if AsFailure(nil, OriginEdge) != nil {
		t.Error("AsFailure(nil) is a failure")
	}
	f := Failf(CodeNoNode, OriginEdge, "no node offers %q", "m")
	if got := AsFailure(fmt.Errorf("dispatch: %w", f), OriginNode); got != f {
		t.Errorf("a wrapped failure became %v", got)
	}
	secret := errors.New("dial https://user:S3CR3T@host")
	got := AsFailure(secret, OriginNode)
	if got.Code != CodeInternal || got.Origin != OriginNode || strings.Contains(got.Error(), "S3CR3T") {
		t.Errorf("a foreign error became %v (origin %v); its text must not pass", got, got.Origin)
	}
}

func TestCancelCauseCode(t *testing.T) {
	want := map[CancelCause]Code{
		CauseClientGone:        CodeClientGone,
		CauseClientSlow:        CodeClientSlow,
		CauseAPI:               CodeCancelled,
		CauseDeadline:          CodeDeadline,
		CauseLinkLost:          CodeNodeLost,
		CauseEdgeDraining:      CodeEdgeDraining,
		CauseNodeDraining:      CodeNodeDraining,
		CauseCredentialRevoked: CodeCredentialRefused,
	}
	for cause := CauseClientGone; cause <= CauseCredentialRevoked; cause++ {
		if cause.Code() != want[cause] {
			t.Errorf("%v ends a run with %v, want %v", cause, cause.Code(), want[cause])
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		var back CancelCause
		if !errors.As(context.Cause(ctx), &back) || back != cause {
			t.Errorf("context cause %v came back as %v", cause, context.Cause(ctx))
		}
	}
}

// A model goes by its name and, tagged latest, by its name without the tag; not the other way about, since who lists a
// plain name may know no tags.
func TestSameModel(t *testing.T) {
	for _, k := range []struct {
		listed, asked string
		want          bool
	}{
		{"tiny:latest", "tiny", true}, {"tiny:latest", "tiny:latest", true}, {"tiny", "tiny", true}, {"a/b:latest", "a/b", true},
		{"tiny", "tiny:latest", false}, {"tiny:8b", "tiny", false}, {"tiny:latest", "tin", false}, {"tiny:latest", "", false},
		{"tiny:latest:latest", "tiny", false}, {"tinylatest", "tiny", false}, {"tiny:Latest", "tiny", false},
	} {
		if got := SameModel(k.listed, k.asked); got != k.want {
			t.Errorf("%q listed, %q asked for: %v", k.listed, k.asked, got)
		}
	}
}

func TestUsageUnknownIsNotZero(t *testing.T) {
	zero := int64(0)
	if (Usage{}).Known() {
		t.Error("empty usage is known")
	}
	if !(Usage{Output: &zero}).Known() {
		t.Error("a zero count is unknown")
	}
}

func TestSequence(t *testing.T) {
	tunnel, run := KindTunnel, KindRun
	tests := []struct {
		name  string
		kind  Kind
		steps []Step
		bad   int // index of the first refused step, -1 = none
		done  bool
	}{
		{"whole tunnel", tunnel, []Step{StepAccepted, StepHead, StepBody, StepBody, StepUsage, StepMetadata, StepEnd}, -1, true},
		{"empty tunnel", tunnel, []Step{StepAccepted, StepHead, StepEnd}, -1, true},
		{"rejected", tunnel, []Step{StepRejected}, -1, true},
		{"error before head", tunnel, []Step{StepAccepted, StepError}, -1, true},
		{"error after body", tunnel, []Step{StepAccepted, StepHead, StepBody, StepError}, -1, true},
		{"cut", tunnel, []Step{StepAccepted, StepHead, StepBody}, -1, false},
		{"head without accepted", tunnel, []Step{StepHead}, 0, false},
		{"error without accepted", tunnel, []Step{StepError}, 0, false},
		{"two heads", tunnel, []Step{StepAccepted, StepHead, StepHead}, 2, false},
		{"body before head", tunnel, []Step{StepAccepted, StepBody}, 1, false},
		{"body after usage", tunnel, []Step{StepAccepted, StepHead, StepUsage, StepBody}, 3, false},
		{"two terminals", tunnel, []Step{StepAccepted, StepHead, StepEnd, StepError}, 3, true},
		{"rejected after accepted", tunnel, []Step{StepAccepted, StepRejected}, 1, false},
		{"end without head", tunnel, []Step{StepAccepted, StepEnd}, 1, false},
		{"a run's event on a tunnel", tunnel, []Step{StepAccepted, StepHead, StepDelta}, 2, false}, // E41
		{"whole run", run, []Step{StepAccepted, StepStart, StepDelta, StepUsage, StepDelta, StepComplete}, -1, true},
		{"run without start", run, []Step{StepAccepted, StepDelta, StepCancelled}, -1, true},
		{"start after delta", run, []Step{StepAccepted, StepDelta, StepStart}, 2, false},
		{"a tunnel's body on a run", run, []Step{StepAccepted, StepBody}, 1, false},
		{"run: complete then error", run, []Step{StepAccepted, StepComplete, StepError}, 2, true}, // ST-20
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := NewSequence(tt.kind)
			for i, step := range tt.steps {
				err := s.Accept(step, s.Next())
				if refused := err != nil; refused != (i == tt.bad) {
					t.Fatalf("step %d (%d): %v", i, step, err)
				}
				if err != nil {
					var f *Failure
					if !errors.As(err, &f) || f.Code != CodeProtocol {
						t.Errorf("violation is %v, want a protocol failure", err)
					}
				}
			}
			if s.Done() != tt.done {
				t.Errorf("Done() = %v, want %v", s.Done(), tt.done)
			}
		})
	}
}

func TestSequenceRefusesGaps(t *testing.T) {
	s := NewSequence(KindTunnel)
	for _, seq := range []uint64{0, 2} {
		if s.Accept(StepAccepted, seq) == nil {
			t.Errorf("first message numbered %d was taken", seq)
		}
	}
	if err := s.Accept(StepAccepted, 1); err != nil {
		t.Fatalf("a refused message changed the sequence: %v", err)
	}
	if s.Accept(StepHead, 1) == nil || s.Accept(StepHead, 3) == nil {
		t.Error("a repeated or skipped number was taken")
	}
}

// ST-20: whatever order the steps come in, at most one terminal is taken and nothing after it.
func TestSequenceOneTerminal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]Kind{KindRun, KindTunnel}).Draw(t, "kind")
		steps := rapid.SliceOfN(rapid.Uint8Range(1, 12), 1, 40).Draw(t, "steps")
		s, terminals := NewSequence(kind), 0
		for _, step := range steps {
			doneBefore := s.Done()
			if s.Accept(Step(step), s.Next()) != nil {
				continue
			}
			if doneBefore {
				t.Fatalf("step %d was taken after the terminal", step)
			}
			switch Step(step) {
			case StepRejected, StepEnd, StepComplete, StepCancelled, StepError:
				terminals++
			}
		}
		if terminals > 1 || s.Done() != (terminals == 1) {
			t.Fatalf("%d terminals, Done() = %v", terminals, s.Done())
		}
	})
}
