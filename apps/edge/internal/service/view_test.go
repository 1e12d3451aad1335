package service

import "testing"

// A run that is live shows how far its answer has come: when it began, and how much of it the caller took.
func TestLiveRunsTellHowFarTheyAre(t *testing.T) {
	begin, proceed := make(chan struct{}), make(chan struct{})
	r := newRig(t, setup{capacity: 2, work: func(w *work) {
		w.accept()
		<-begin
		if w.isRun {
			w.start("m")
			w.delta("four")
			<-proceed
			w.complete("stop")
			return
		}
		w.head(200)
		w.body("seven77")
		<-proceed
		w.end(7)
	}})
	view := func(id string) RunView {
		v, found := r.svc.Run(id)
		if !found {
			t.Fatalf("%s isn't known", id)
		}
		return v
	}
	bytes := map[string]int64{"tunnel": 7, "run": 4}
	tunnel, run := r.submit(r.tunnel("tunnel", ""), &recorder{}), r.start(r.spec("run"), &listener{})
	r.poll("both are sent", func() bool { return r.node("a", 1).openCount() == 2 })
	for id := range bytes {
		if v := view(id); v.FirstByteMS != 0 || v.BytesOut != 0 {
			t.Errorf("%s has got nothing yet: %+v", id, v)
		}
	}
	close(begin)
	for id, n := range bytes {
		r.poll(id+" has an answer", func() bool { return view(id).BytesOut == n })
		if v := view(id); !v.Live || v.FirstByteMS == 0 {
			t.Errorf("%s: %+v", id, v)
		}
	}
	close(proceed)
	if o := r.outcome(tunnel); !o.OK() {
		t.Error(o.Failure)
	}
	if o := r.result(run); !o.OK() {
		t.Error(o.Failure)
	}
	for id, n := range bytes {
		if v := view(id); v.Live || v.FirstByteMS == 0 || v.BytesOut != n {
			t.Errorf("%s: %+v", id, v)
		}
	}
}
