package service

import (
	"testing"

	"iop/packages/go/execution"
	"iop/packages/go/faultpoint"
)

// Seed 71682 of the simulation: the edge crashes over a node's refusal. Nothing runs there, so that nobody has to confirm
// that it ended: the place is free, and the connection with everybody's streams stays.
func TestCrashOverARefusalHoldsNoPlace(t *testing.T) {
	faults := faultpoint.New(func(at faultpoint.Point, _ string) {
		if at == faultpoint.EdgeTerminal {
			panic("a fault point says so")
		}
	})
	r := newRig(t, setup{service: Config{Faults: faults}, work: func(w *work) { w.reject(execution.CodeAdapterBusy, true) }})
	if o, _ := r.run(r.tunnel("run", "body")); code(o) != execution.CodeInternal {
		t.Errorf("%v", o.Failure)
	}
	r.idle()
}
