package execution

import "fmt"

// Kind is what a work stream carries.
type Kind uint8

// The kinds.
const (
	KindRun    Kind = 1
	KindTunnel Kind = 2
)

// String returns the kind's stable name.
func (k Kind) String() string {
	switch k {
	case KindRun:
		return "run"
	case KindTunnel:
		return "tunnel"
	}
	return "unknown"
}

// Step is the kind of one message from node to edge, as far as order is concerned.
type Step uint8

// The steps. Accepted and Rejected open every stream; Head, Body and End belong to tunnels; Start, Delta, Complete and
// Cancelled to runs; Usage, Metadata and Error as the grammar of [Sequence] says.
const (
	StepAccepted  Step = 1
	StepRejected  Step = 2
	StepHead      Step = 3
	StepBody      Step = 4
	StepUsage     Step = 5
	StepMetadata  Step = 6
	StepEnd       Step = 7
	StepStart     Step = 8
	StepDelta     Step = 9 // text, reasoning, or a piece of a tool call
	StepComplete  Step = 10
	StepCancelled Step = 11
	StepError     Step = 12
)

type phase uint8

const (
	phaseNew phase = iota
	phaseAccepted
	phaseStreaming // after head or start, or after a run's first event
	phaseTrailing  // tunnel: after usage or metadata, no more body
	phaseDone
)

// Sequence checks that the messages of one work stream keep their order and end exactly once:
//
//	tunnel: accepted (head body* (usage|metadata)* end | … error), or rejected
//	run:    accepted start? (delta|usage)* (complete|error|cancelled), or rejected
//
// Sequence numbers start at 1 and have no gaps. Both sides use it: the node to keep from sending what is wrong, the
// edge to refuse it. It isn't safe for concurrent use; the zero value is not usable, use [NewSequence].
type Sequence struct {
	kind  Kind
	phase phase
	last  uint64
}

// NewSequence returns the checker of a stream that carries kind.
func NewSequence(kind Kind) *Sequence { return &Sequence{kind: kind} }

// Next returns the number that the next message carries.
func (s *Sequence) Next() uint64 { return s.last + 1 }

// Done reports whether the terminal was seen.
func (s *Sequence) Done() bool { return s.phase == phaseDone }

// Accept takes one message. An error is a violation of the protocol; the sequence is unchanged by it.
func (s *Sequence) Accept(step Step, seq uint64) error {
	if seq != s.last+1 {
		return Failf(CodeProtocol, OriginNode, "message number %d where %d was due", seq, s.last+1)
	}
	next, ok := s.follow(step)
	if !ok {
		return &Failure{Code: CodeProtocol, Origin: OriginNode,
			Text: fmt.Sprintf("message of kind %d out of order on a %s", step, s.kind)}
	}
	s.phase, s.last = next, seq
	return nil
}

func (s *Sequence) follow(step Step) (phase, bool) {
	switch s.phase {
	case phaseNew:
		switch step {
		case StepAccepted:
			return phaseAccepted, true
		case StepRejected:
			return phaseDone, true
		}
		return 0, false
	case phaseDone:
		return 0, false
	}
	if step == StepError {
		return phaseDone, true
	}
	if s.kind == KindTunnel {
		return s.followTunnel(step)
	}
	return s.followRun(step)
}

func (s *Sequence) followTunnel(step Step) (phase, bool) {
	if s.phase == phaseAccepted {
		return phaseStreaming, step == StepHead
	}
	switch step {
	case StepBody:
		return phaseStreaming, s.phase == phaseStreaming
	case StepUsage, StepMetadata:
		return phaseTrailing, true
	case StepEnd:
		return phaseDone, true
	}
	return 0, false
}

func (s *Sequence) followRun(step Step) (phase, bool) {
	switch step {
	case StepStart:
		return phaseStreaming, s.phase == phaseAccepted
	case StepDelta, StepUsage:
		return phaseStreaming, true
	case StepComplete, StepCancelled:
		return phaseDone, true
	}
	return 0, false
}
