package transport

import (
	"sync"
	"time"

	pb "iop/proto/iop"
)

const (
	// maxEvents is how many events wait at most; they are news, not state.
	maxEvents = 20
	// maxAnswers is how many confirmations of ends, and answers to cancels, wait at most. A peer that asks for them and
	// doesn't read would have them pile up. It repeats an end that isn't confirmed, and shows what became of a cancel.
	maxAnswers = 4096
)

// mailbox holds what the control writer has still to write, by kind. State messages are snapshots of which the latest
// wins, cancels are one a run, ends are a list, and answers have a bound: so it is bounded by live runs, nobody ever
// blocks on it, and nothing that matters is dropped.
type mailbox struct {
	wake chan struct{} // capacity 1

	mu         sync.Mutex
	closed     bool // a Goodbye is in, or the link is down: nothing more comes in
	readyAsked bool // ends wait for the first Ready, which tells the edge what runs
	letters
}

// letters are the contents of a mailbox.
type letters struct {
	pulse   pulse
	edge    edgeLetters
	node    nodeLetters
	goodbye *pb.Goodbye
}

// pulse is what goes into one Heartbeat.
type pulse struct {
	beat   bool // a nonce is wanted
	echo   uint64
	heard  time.Duration // when the nonce to echo came
	probes []*probe
}

// edgeLetters go from edge to node.
type edgeLetters struct {
	cancels []*pb.CancelRequest
	byRun   map[string]bool // which runs cancels names
	ack     *pb.ReadyAck
	refresh *pb.NodeConfigPayload
	notice  *pb.DrainNotice
	endAcks []string
	revoked []*pb.CredentialRevoked // in order; an operator's doing, so never many
	asked   *pb.RecipientChallenge
}

// nodeLetters go from node to edge.
type nodeLetters struct {
	results []*pb.CancelResult
	ready   func() *pb.Ready
	ended   []*pb.RunEnd
	status  func() *pb.NodeStatus
	events  []*pb.EdgeNodeEvent
	revoked []*pb.RevokeAck
	key     *pb.RecipientKey
	proof   *pb.RecipientProof
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// put changes the contents under the lock and wakes the writer. After a Goodbye it does nothing.
func (b *mailbox) put(change func(*letters)) {
	b.mu.Lock()
	if !b.closed {
		change(&b.letters)
		b.readyAsked = b.readyAsked || b.node.ready != nil
	}
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// putGoodbye puts the last message in.
func (b *mailbox) putGoodbye(g *pb.Goodbye) {
	b.put(func(l *letters) { l.goodbye = g })
	b.close()
}

// close lets nothing more in.
func (b *mailbox) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
}

// take empties the mailbox but for the Goodbye, which is taken alone, when nothing else is left. Ends stay until a
// Ready was asked for.
func (b *mailbox) take() (l letters, some bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l, b.letters = b.letters, letters{}
	if !b.readyAsked {
		b.node.ended, l.node.ended = l.node.ended, nil
	}
	if l.pulse.empty() && l.edge.empty() && l.node.empty() {
		return l, l.goodbye != nil
	}
	b.goodbye, l.goodbye = l.goodbye, nil
	return l, true
}

// takeGoodbye takes the Goodbye and forgets the rest; for a link that is being closed.
func (b *mailbox) takeGoodbye() *pb.Goodbye {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.goodbye
	b.letters, b.closed = letters{}, true
	return g
}

func (p *pulse) empty() bool { return !p.beat && p.echo == 0 && len(p.probes) == 0 }

func (e *edgeLetters) empty() bool {
	return len(e.cancels) == 0 && e.ack == nil && e.refresh == nil && e.notice == nil && len(e.endAcks) == 0 &&
		len(e.revoked) == 0 && e.asked == nil
}

func (n *nodeLetters) empty() bool {
	return len(n.results) == 0 && n.ready == nil && len(n.ended) == 0 && n.status == nil && len(n.events) == 0 &&
		len(n.revoked) == 0 && n.key == nil && n.proof == nil
}

// cancel merges cancels of one run; the first cause stands.
func (e *edgeLetters) cancel(m *pb.CancelRequest) {
	if e.byRun[m.RunId] {
		return
	}
	if e.byRun == nil {
		e.byRun = make(map[string]bool)
	}
	e.byRun[m.RunId] = true
	e.cancels = append(e.cancels, m)
}
