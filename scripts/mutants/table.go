package main

import "slices"

// mutants is the table. Each breaks one promise of agent-contract/FAULTS.md.
func mutants() []Mutant {
	all := slices.Concat(linkMutants(), nodeStateMutants(), runMutants(), answerMutants(), placeMutants(), nodeMutants(), recordMutants())
	all = slices.Concat(all, leaseMutants(), lendingMutants())
	for i := range all { // what no test below finds, whole histories may show
		all[i].Tests = append(all[i].Tests, Test{Layer: simulation, Package: "e2e/sim", Run: "TestSimulation", Args: "-sim.seeds=100"})
	}
	return slices.Concat(all, providerMutants())
}

// linkMutants break connections and what is sent over them.
func linkMutants() []Mutant {
	return []Mutant{
		{
			Name: "dead-link-is-an-end", Promise: "a link that died isn't taken for the end of an answer",
			File:  "packages/go/transport/stream.go",
			Old:   "case s.link.isDown() || err == yamux.ErrSessionShutdown:\n\t\treturn ErrLinkDown",
			New:   "case s.link.isDown() || err == yamux.ErrSessionShutdown:\n\t\treturn io.EOF",
			Tests: []Test{{Layer: unit, Package: "packages/go/transport", Run: "TestLinkIsDownForWhoeverComesSecond|TestReceivedBytesOutliveTheLink"}},
		},
		{
			Name: "window-credit-lost", Promise: "a stream that waits for its window holds nothing of the gate",
			File:  "packages/go/transport/stream_io.go",
			Old:   "c.back(&s.flow, k, n-sent)",
			New:   "c.back(&s.flow, k, 0*(n-sent))",
			Tests: []Test{{Layer: unit, Package: "packages/go/transport", Run: "TestStalledReadersDontStopOthers|TestLeaversLeaveTheGateWhole"}},
		},
		{
			Name: "silence-unnoticed", Promise: "a silent link is over after the dead limit",
			File:  "packages/go/transport/liveness.go",
			Old:   "if now >= next {\n\t\treturn 0, &LinkError{Reason: ReasonDead, Text: fmt.Sprintf(\"nothing was read for",
			New:   "if now >= 100*next {\n\t\treturn 0, &LinkError{Reason: ReasonDead, Text: fmt.Sprintf(\"nothing was read for",
			Tests: []Test{{Layer: unit, Package: "packages/go/transport", Run: "TestSilentPeerIsDead|TestSilenceExact"}},
		},
		{
			Name: "length-trusted", Promise: "a length that a peer sends is capped before memory is reserved",
			File:  "packages/go/transport/frame.go",
			Old:   "if uint64(n) > uint64(max) {",
			New:   "if uint64(n) > 16*uint64(max) {",
			Tests: []Test{{Layer: unit, Package: "packages/go/transport", Run: "TestReadMessageBadLength|TestReaderBadLength"}},
		},
	}
}

// nodeStateMutants break who is connected, and what is known of them.
func nodeStateMutants() []Mutant {
	return []Mutant{
		{
			Name: "probe-ignored", Promise: "a second registration doesn't replace a node that is alive",
			File:  "apps/edge/internal/transport/contend.go",
			Old:   "return duplicate(\"the node is connected already, and that connection is alive\")",
			New:   "return nil",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/transport", Run: "TestDuplicateOfALiveNode"}},
		},
		{
			Name: "any-generation", Promise: "nothing of one connection generation changes anything of another",
			File:  "apps/edge/internal/node/registry.go",
			Old:   "if c := r.Current(nodeID); c != nil && c.Generation == generation {",
			New:   "if c := r.Current(nodeID); c != nil && generation > 0 {",
			Tests: []Test{{Layer: machine, Package: "apps/edge/internal/node", Run: "TestRegistryMachine|TestFence"}},
		},
		{
			Name: "late-clean-up", Promise: "the late end of an old connection doesn't remove the new one",
			File:  "apps/edge/internal/node/fence.go",
			Old:   "if e.current == c {",
			New:   "if e.current != nil {",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/node", Run: "TestFenceOfAReplacedConnection|TestRegistryMachine"}},
		},
		{
			Name: "fence-keeps-places", Promise: "a fence frees the places of its connection",
			File:  "apps/edge/internal/node/fence.go",
			Old:   "\tr.cfg.Scheduler.Fence(c.NodeID, c.Generation)\n",
			New:   "",
			Tests: []Test{{Layer: machine, Package: "apps/edge/internal/node", Run: "TestRegistryMachine|TestFence"}, {Layer: unit, Package: "apps/edge/internal/transport", Run: "TestSilence"}},
		},
		{
			Name: "data-path-dead", Promise: "a node whose heartbeat is answered and whose runs aren't gets no more of them",
			File:  "apps/edge/internal/node/status.go",
			Old:   "s.unresponsive = s.unresponsive || s.misses[k] >= c.registry.cfg.Misses",
			New:   "s.unresponsive = s.unresponsive || s.misses[k] >= 1000*c.registry.cfg.Misses",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/transport", Run: "TestDataPathDead|TestThreeDispatchTimeouts"}},
		},
		{
			Name: "config-typo-ignored", Promise: "what is wrong in a configuration is refused",
			File:  "packages/go/config/decode.go",
			Old:   "d.unknown(keyNode, path, fields, v.Type())",
			New:   "_ = fields",
			Tests: []Test{{Layer: unit, Package: "packages/go/config", Run: "TestNodeRefusals|TestEdgeRefusals"}},
		},
	}
}

// runMutants break what a caller gets.
func runMutants() []Mutant {
	return []Mutant{
		{
			Name: "cut-stream-whole", Promise: "a stream that ended without a terminal is no success",
			File:  "apps/edge/internal/service/attempt.go",
			Old:   "r.decide(execution.Failf(execution.CodeUpstreamTruncated, execution.OriginNode,\n\t\t\t\"the node closed the stream without saying how the execution ended\"))",
			New:   "r.complete()",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/service", Run: "TestOutcomeTable|TestRunOutcomeTable"}},
		},
		{
			Name: "write-failed-means-unsent", Promise: "a request of which a part may have left the edge counts as sent",
			File:  "apps/edge/internal/service/send.go",
			Old:   "return err == nil || errors.Is(err, transport.ErrLinkDown)",
			New:   "return err == nil",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/service", Run: "TestLinkEndsBeforeTheWriterIsTold"}},
		},
		{
			Name: "abort-swallowed", Promise: "an answer that failed after its head is cut off",
			File:  "apps/edge/internal/httpapi/tunnel.go",
			Old:   "\t\tc.out.abort()\n",
			New:   "\t\treturn nil\n",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/httpapi", Run: "TestCutAnswerAborts"}},
		},
		{
			Name: "sent-twice", Promise: "the edge sends again only what never started",
			File:  "apps/edge/internal/service/drive.go",
			Old:   "f.Code != execution.CodeUpstreamConnect || !f.NothingSent {",
			New:   "f.Code != execution.CodeUpstreamConnect {",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/service", Run: "TestNothingIsSentTwice|TestUnreachableProviders"}},
		},
		{
			Name: "rejected-retried-blindly", Promise: "a refusal without the node's word that nothing started isn't sent again",
			File:  "apps/edge/internal/service/rejected.go",
			Old:   "again := m.GetNeverStarted() && (a.retryable(f) || a.again(f))",
			New:   "again := a.retryable(f) || a.again(f)",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/service", Run: "TestNothingIsSentTwice|TestRefusedBeforeStart"}},
		},
		{
			Name: "cancel-not-forwarded", Promise: "a cancel reaches the node",
			File:  "apps/edge/internal/service/attempt.go",
			Old:   "\ta.node.SendCancel(a.run.id, cause)\n",
			New:   "\t_ = cause\n",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/service", Run: "TestCancelOvertakesTheRequest|TestCommandIsCancelledAtTheNode|TestOutcomeTable"}},
		},
		{
			Name: "caller-gone-unnoticed", Promise: "a caller that leaves ends its run",
			File:  "apps/edge/internal/httpapi/tunnel.go",
			Old:   "\t\tcancel(c.out.gone())\n",
			New:   "",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/httpapi", Run: "TestCallerGoneWhileWaiting|TestCallerLeavesARun"}},
		},
	}
}

// answerMutants break the order and the end of answers.
func answerMutants() []Mutant {
	return []Mutant{
		{
			Name: "second-terminal", Promise: "a caller gets one terminal, the first",
			File:  "packages/go/execution/sequence.go",
			Old:   "case phaseDone:\n\t\treturn 0, false\n\t}\n\tif step",
			New:   "case phaseDone:\n\t\treturn phaseDone, true\n\t}\n\tif step",
			Tests: []Test{{Layer: unit, Package: "packages/go/execution", Run: "TestSequence"}},
		},
		{
			Name: "gap-accepted", Promise: "frames arrive in order and without loss",
			File:  "packages/go/execution/sequence.go",
			Old:   "if seq != s.last+1 {",
			New:   "if seq < s.last+1 {",
			Tests: []Test{{Layer: unit, Package: "packages/go/execution", Run: "TestSequence"}},
		},
		{
			Name: "short-body-whole", Promise: "a body that is shorter than its head said never looks whole",
			File:  "apps/edge/internal/httpapi/sink.go",
			Old:   "s.length >= 0 && s.written != s.length {",
			New:   "s.length >= 0 && s.written > s.length {",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/httpapi", Run: "TestDeclaredLength"}},
		},
	}
}

// placeMutants break the books of places and the queue.
func placeMutants() []Mutant {
	scheduler := func(run string) []Test {
		return []Test{{Layer: machine, Package: "apps/edge/internal/admission", Run: run}}
	}
	return []Mutant{
		{
			Name: "place-released-twice", Promise: "a place is given back once",
			File:  "apps/edge/internal/admission/grant.go",
			Old:   "if g.state != heldSent && g.state != heldDecided {\n\t\tg.s.ignored.Rejected++\n\t\treturn false\n\t}",
			New:   "",
			Tests: scheduler("TestSchedulerAgainstModel"),
		},
		{
			Name: "place-never-released", Promise: "a place returns when its execution ended",
			File:  "apps/edge/internal/admission/scheduler.go",
			Old:   "\tg.p.desaturate()\n\tg.ended = true\n\ts.freeLocked(g, now)\n",
			New:   "\tg.p.desaturate()\n\tg.ended = true\n",
			Tests: scheduler("TestSchedulerAgainstModel|TestPlacesComeBack"),
		},
		{
			Name: "leaver-keeps-its-place", Promise: "who leaves at the moment of its grant holds nothing",
			File:  "apps/edge/internal/admission/queue.go",
			Old:   "if w.grant != nil && w.grant.state == heldUnsent {\n\t\ts.freeLocked(w.grant, now)\n\t}",
			New:   "",
			Tests: scheduler("TestLeaveRacesGrant|TestStorm"),
		},
		{
			Name: "one-too-many", Promise: "no more executions than the adapter has places",
			File:  "apps/edge/internal/admission/place.go",
			Old:   "return len(p.holders) < p.capacity() &&",
			New:   "return len(p.holders) <= p.capacity() &&",
			Tests: scheduler("TestBurst|TestSchedulerAgainstModel"),
		},
		{
			Name: "queue-overtaken", Promise: "who goes back to the queue stands where it stood",
			File:  "apps/edge/internal/admission/queue.go",
			Old:   "first := r.ticket.number == 0\n",
			New:   "first := r.ticket.number == 0 || r.Depth > 0\n",
			Tests: scheduler("TestRequeueKeepsPosition|TestRequeueInTheMiddle|TestSchedulerAgainstModel"),
		},
		{
			Name: "old-generation-heard", Promise: "words about a connection that is over change nothing",
			File:  "apps/edge/internal/admission/scheduler.go",
			Old:   "if key.generation < e.floor || e.current != nil && key.generation < e.current.key.generation {",
			New:   "if e.current != nil && key.generation < e.current.key.generation {",
			Tests: scheduler("TestSchedulerAgainstModel|TestFenceIsPerGeneration"),
		},
		{
			Name: "never-confirmed", Promise: "a node that doesn't confirm the end of a run loses its connection",
			File:  "apps/edge/internal/admission/grant.go",
			Old:   "\t\tg.s.awaitConfirmLocked(g)\n",
			New:   "",
			Tests: scheduler("TestConfirmLimit"),
		},
	}
}
