package nodetest

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "iop/proto/iop"
)

// Run is one work stream whose answer is a run's.
type Run struct {
	Work
	last uint64 // number of the last event
}

// Input is the content of a run that says "hi".
func Input() *pb.RunInput { return prompt("hi") }

func prompt(text string) *pb.RunInput {
	return &pb.RunInput{Messages: []*pb.Message{{Role: "user", Parts: []*pb.Part{{Part: &pb.Part_Text{Text: text}}}}}}
}

// RunOpen is the open of a run of n bytes of content on the adapter "a" at revision 1.
func (e *EdgeSide) RunOpen(runID string, n int) *pb.WorkOpen {
	return &pb.WorkOpen{ConnectionGeneration: e.Generation, Attempt: 1, Work: &pb.WorkOpen_Run{Run: &pb.RunRequest{
		RunId: runID, Adapter: "a", AdapterRevision: 1, Target: "m", InputBytes: int64(n),
	}}}
}

// OpenRun opens a work stream and sends the open of a run on it.
func (e *EdgeSide) OpenRun(open *pb.WorkOpen) *Run {
	e.t.Helper()
	return &Run{Work: e.Open(open).Work}
}

// StartRun opens a run that says "hi" and sends its content.
func (e *EdgeSide) StartRun(runID string, change ...func(*pb.RunRequest)) *Run {
	e.t.Helper()
	return e.Ask(runID, "hi", change...)
}

// Ask opens a run that says text and sends its content.
func (e *EdgeSide) Ask(runID, text string, change ...func(*pb.RunRequest)) *Run {
	e.t.Helper()
	content, err := proto.Marshal(prompt(text))
	if err != nil {
		e.t.Fatal(err)
	}
	open := e.RunOpen(runID, len(content))
	for _, c := range change {
		c(open.GetRun())
	}
	return e.OpenRun(open).Body(content).End()
}

// Background makes a run one that goes on without its caller.
func Background(r *pb.RunRequest) { r.Background = true }

// Body sends bytes of the content in frames.
func (r *Run) Body(p []byte) *Run { r.t.Helper(); r.send(p); return r }

// End sends the end of the content as it is.
func (r *Run) End() *Run { r.t.Helper(); r.end(r.total); return r }

// EndOf sends an end that names a length.
func (r *Run) EndOf(total int64) *Run { r.t.Helper(); r.end(total); return r }

// Next reads one event and checks its number.
func (r *Run) Next() (*pb.RunEvent, error) {
	r.t.Helper()
	timer := time.AfterFunc(Limit, r.Cancel)
	defer timer.Stop()
	e, err := r.ReadEvent()
	if err == nil {
		if r.last++; e.GetSeq() != r.last {
			r.t.Errorf("event number %d where %d was due", e.GetSeq(), r.last)
		}
	}
	return e, err
}

// Accepted reads the first event, which must be accepted.
func (r *Run) Accepted() *pb.Accepted {
	r.t.Helper()
	e, err := r.Next()
	if err != nil || e.GetAccepted() == nil {
		r.t.Fatalf("first event: %v, %v, want accepted", e, err)
	}
	return e.GetAccepted()
}

// RunResult is everything that came on a run's stream.
type RunResult struct {
	Kinds     string // one letter an event: a(ccepted) r(ejected) s(tart) d(elta) t(hought) f(unction) u(sage) c(omplete) x(error) k(illed)
	Text      strings.Builder
	Reasoning strings.Builder
	Calls     map[uint32]*pb.ToolCall // put together from their fragments
	Usage     *pb.Usage               // the last
	Longest   int                     // bytes of the longest fragment
	Complete  *pb.RunComplete
	Error     *pb.Failure
	Cancelled *pb.RunCancelled
	Rejected  *pb.Rejected
	Accepted  *pb.Accepted
	Start     *pb.RunStart
	Err       error // why reading stopped before a terminal
}

// Terminals counts the terminals in what came.
func (r *RunResult) Terminals() int {
	n := 0
	for _, k := range r.Kinds {
		if strings.ContainsRune("rcxk", k) {
			n++
		}
	}
	return n
}

// Collect reads until the terminal and closes the stream as an edge does.
func (r *Run) Collect() *RunResult {
	r.t.Helper()
	out := &RunResult{Calls: map[uint32]*pb.ToolCall{}}
	for out.Terminals() == 0 {
		e, err := r.Next()
		if err != nil {
			out.Err = err
			return out
		}
		out.add(e)
	}
	r.Close()
	if e, err := r.Next(); err == nil {
		r.t.Errorf("an event after the terminal: %v", e)
	}
	return out
}

func (r *RunResult) add(e *pb.RunEvent) {
	kind := byte('?')
	switch v := e.GetEvent().(type) {
	case *pb.RunEvent_Accepted:
		kind, r.Accepted = 'a', v.Accepted
	case *pb.RunEvent_Rejected:
		kind, r.Rejected = 'r', v.Rejected
	case *pb.RunEvent_Start:
		kind, r.Start = 's', v.Start
	case *pb.RunEvent_Delta:
		kind, r.Longest = 'd', max(r.Longest, len(v.Delta))
		r.Text.WriteString(v.Delta)
	case *pb.RunEvent_ReasoningDelta:
		kind, r.Longest = 't', max(r.Longest, len(v.ReasoningDelta))
		r.Reasoning.WriteString(v.ReasoningDelta)
	case *pb.RunEvent_ToolCall:
		kind, r.Longest = 'f', max(r.Longest, len(v.ToolCall.GetArgumentsFragment()))
		r.call(v.ToolCall)
	case *pb.RunEvent_Usage:
		kind, r.Usage = 'u', v.Usage
	case *pb.RunEvent_Complete:
		kind, r.Complete = 'c', v.Complete
	case *pb.RunEvent_Error:
		kind, r.Error = 'x', v.Error
	case *pb.RunEvent_Cancelled:
		kind, r.Cancelled = 'k', v.Cancelled
	}
	r.Kinds += string(kind)
}

// call puts a fragment where it belongs.
func (r *RunResult) call(c *pb.ToolCall) {
	known := r.Calls[c.GetIndex()]
	if known == nil {
		r.Calls[c.GetIndex()] = c
		return
	}
	known.Id += c.GetId()
	known.Name += c.GetName()
	known.ArgumentsFragment += c.GetArgumentsFragment()
}
