package main

// nodeMutants break executions at the node.
func nodeMutants() []Mutant {
	node := func(run string) []Test { return []Test{{Layer: unit, Package: "apps/node/internal/node", Run: run}} }
	return []Mutant{
		{
			Name: "terminal-lost", Promise: "a caller gets exactly one terminal",
			File:  "apps/node/internal/node/task.go",
			Old:   "if err := t.reply.end(t.work.terminal(o, seen)); err != nil {",
			New:   "if err := error(nil); err != nil {",
			Tests: node("TestAdapterOutcomes|TestRunOutcomes"),
		},
		{
			Name: "place-freed-after-its-end-was-told", Promise: "the node's place is free before the edge hears of the end",
			File:  "apps/node/internal/node/task.go",
			Old:   "\t\tt.place.Release()\n\t}\n\trow :=",
			New:   "\t\tdefer t.place.Release()\n\t}\n\trow :=",
			Tests: node("Test"),
		},
		{
			Name: "node-ignores-cancel", Promise: "a cancel reaches the provider",
			File:  "apps/node/internal/node/cancel.go",
			Old:   "\t\tt.cancel(causeFromWire(req.GetCause()))\n",
			New:   "",
			Tests: node("TestCancelRequest"),
		},
		{
			Name: "overtaken-cancel-forgotten", Promise: "a cancel that overtakes its open keeps it from starting",
			File:  "apps/node/internal/node/cancel.go",
			Old:   "\t\tx.tombs.add(id, time.Now())\n",
			New:   "",
			Tests: node("TestCancelOvertakesTheRequest"),
		},
		{
			Name: "background-dies-with-its-link", Promise: "a background run goes on without its node's connection",
			File:  "apps/node/internal/node/task.go",
			Old:   "func (t *task) lost() {\n\tif t.background && t.body.complete() {",
			New:   "func (t *task) lost() {\n\tif t.background && !t.body.complete() {",
			Tests: node("TestBackgroundRunSurvivesItsLink"),
		},
	}
}

// recordMutants break what the node keeps: its places, what runs, and its journal.
func recordMutants() []Mutant {
	node := func(run string) []Test { return []Test{{Layer: unit, Package: "apps/node/internal/node", Run: run}} }
	return []Mutant{
		{
			Name: "same-run-twice", Promise: "an execution of one run_id isn't started beside another",
			File:  "apps/node/internal/node/admit.go",
			Old:   "case x.running[o.runID] != nil || x.commands[o.runID] != nil:",
			New:   "case x.commands[o.runID] != nil:",
			Tests: node("TestRejections"),
		},
		{
			Name: "stale-projection-runs", Promise: "nothing starts under a configuration that isn't in force",
			File:  "apps/node/internal/router/place.go",
			Old:   "case a.revision != revision:",
			New:   "case a.revision < revision:",
			Tests: []Test{{Layer: unit, Package: "apps/node/internal/router", Run: "Test"}},
		},
		{
			Name: "node-place-released-twice", Promise: "a place is given back once",
			File:  "apps/node/internal/router/place.go",
			Old:   "if p.state == placeFree {\n\t\tr.mu.Unlock()\n\t\tr.late.Add(1)\n\t\treturn false\n\t}",
			New:   "",
			Tests: []Test{{Layer: machine, Package: "apps/node/internal/router", Run: "TestDoubleRelease|TestPlacesRapid"}},
		},
		{
			Name: "journal-in-front", Promise: "a store that fails delays no terminal",
			File:  "apps/node/internal/node/task.go",
			Old:   "\tt.entry.End(row) // once only\n",
			New:   "\tt.entry.End(row) // once only\n\tfor range 100 {\n\t\tif t.executor().cfg.Journal.Flush(context.Background()) == nil {\n\t\t\tbreak\n\t\t}\n\t\ttime.Sleep(50 * time.Millisecond)\n\t}\n",
			Tests: node("TestPlacesComeBackWithABlockedStore|TestFailingStoreIsToldAndDelaysNothing"),
		},
		{
			Name: "no-sweep", Promise: "after a crash every run has a final status",
			File:  "apps/node/internal/store/schema.go",
			Old:   "WHERE status = 'running' AND id < ?`",
			New:   "WHERE status = 'walking' AND id < ?`",
			Tests: []Test{{Layer: unit, Package: "apps/node/internal/store", Run: "TestCrashAtAnyWrite"}},
		},
		{
			Name: "row-lost-on-a-failed-write", Promise: "the journal ends every run, also when the disk was full in between",
			File:  "apps/node/internal/store/writer.go",
			Old:   "\t\tj.queue.restore(w.batch)\n",
			New:   "\t\t_ = j.queue\n",
			Tests: []Test{{Layer: unit, Package: "apps/node/internal/store", Run: "TestLockedWhileRunning|TestNoPagesLeft"}},
		},
	}
}

// providerMutants break what is between the node and a provider.
func providerMutants() []Mutant {
	upstream := func(run string) []Test {
		return []Test{{Layer: unit, Package: "apps/node/internal/adapters/upstream", Run: run}}
	}
	return []Mutant{
		{
			Name: "truncated-chunks-whole", Promise: "a chunked answer that was cut off isn't whole",
			File:  "apps/node/internal/adapters/upstream/exchange.go",
			Old:   "case errors.Is(err, io.EOF):\n\t\t\treturn nil",
			New:   "case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):\n\t\t\treturn nil",
			Tests: upstream("TestCutBodies|TestShortBody"),
		},
		{
			Name: "nothing-sent-says-who-sent", Promise: "a provider that may have the request isn't asked for again",
			File:  "apps/node/internal/adapters/upstream/exchange.go",
			Old:   "case n == 0 && c.reused && x.pool.tls == nil && !x.isAborted():",
			New:   "case n >= 0 && c.reused && x.pool.tls == nil && !x.isAborted():",
			Tests: upstream("TestKeptConnectionThatEndsUnderARequest"),
		},
		{
			Name: "bytes-written-forgotten", Promise: "a request of which a byte may have left counts as sent",
			File:  "apps/node/internal/adapters/upstream/request.go",
			Old:   "\t\tx.wrote = true\n",
			New:   "",
			Tests: upstream("TestProviderStopsTakingTheRequest|TestRequestBodyThatFails"),
		},
		{
			Name: "provider-not-stopped", Promise: "a cancel reaches the provider within a second",
			File:  "apps/node/internal/adapters/upstream/exchange.go",
			Old:   "stop := context.AfterFunc(ctx, x.abort)",
			New:   "stop := context.AfterFunc(ctx, x.closeBody)",
			Tests: upstream("TestCancelWhileTheRequestIsSent"),
		},
	}
}

// leaseMutants break what keeps provider keys.
func leaseMutants() []Mutant {
	lease := func(run string) []Test {
		return []Test{{Layer: unit, Package: "packages/go/credentiallease", Run: run}}
	}
	return []Mutant{
		{
			Name: "lease-replayed", Promise: "a lease is used at most once",
			File:  "packages/go/credentiallease/replay.go",
			Old:   "if _, ok := s.seen[id]; ok {",
			New:   "if _, ok := s.seen[id]; ok && now.Synced == false {",
			Tests: lease("TestVectors|TestReplayModel"),
		},
		{
			Name: "secret-left-behind", Promise: "no plaintext outlives its use",
			File:  "packages/go/credentiallease/held.go",
			Old:   "\tdefer clear(page[:n])\n",
			New:   "",
			Tests: lease("TestPageIsCleared"),
		},
		{
			Name: "revoked-between", Promise: "a lease that was revoked before the write is refused",
			File:  "packages/go/credentiallease/held.go",
			Old:   "\tif err := g.fenceLocked(&h.claims, now); err != nil {\n\t\treturn h.burnLocked(err.(Refusal))\n\t}\n\th.state = committedState",
			New:   "\t_ = now\n\th.state = committedState",
			Tests: lease("TestRevokeRace|TestStateChangesBetweenVerifyAndSend"),
		},
		{
			Name: "lease-of-an-older-connection", Promise: "a lease of another connection generation is refused",
			File:  "packages/go/credentiallease/guard.go",
			Old:   "case g.closed || c.Generation != g.generation:",
			New:   "case g.closed:",
			Tests: lease("TestVectors|TestStateChangesBetweenVerifyAndSend"),
		},
		{
			Name: "expired-lease", Promise: "no tolerance past a lease's end",
			File:  "packages/go/credentiallease/guard.go",
			Old:   "case now.Latest >= c.ExpiresAt:",
			New:   "case now.Earliest >= c.ExpiresAt+graceMS:",
			Tests: lease("TestVectors|TestTimeIsJudgedFromBothEnds|TestClock"),
		},
	}
}

// lendingMutants break what both programs do with leases.
func lendingMutants() []Mutant {
	return []Mutant{
		{
			Name: "sent-without-its-key", Promise: "a route that needs a key is never asked for without one",
			File:  "apps/node/internal/node/lease.go",
			Old:   "case len(k.lease) == 0 && route == nil && k.slot == \"\" && k.profile == \"\":",
			New:   "case len(k.lease) == 0:",
			Tests: []Test{{Layer: unit, Package: "apps/node/internal/node", Run: "TestALeaseIsThereExactlyWhereItIsNeeded|TestARouteThatNeedsAKeyWithoutNegotiation"}},
		},
		{
			Name: "any-lease-for-any-route", Promise: "a lease is for what this node was told of its route",
			File:  "apps/node/internal/node/lease.go",
			Old:   "if why := contradicts(k, route, profile, &own); why != nil {",
			New:   "if why := contradicts(k, route, profile, &own); why != nil && len(k.slot) > 1<<20 {",
			Tests: []Test{{Layer: unit, Package: "apps/node/internal/node", Run: "TestALeaseIsRefusedBeforeAdmission|TestALeaseIsThereExactlyWhereItIsNeeded"}},
		},
		{
			Name: "revoke-hits-the-next-key", Promise: "what is revoked is the key that was there",
			File:  "apps/edge/internal/credential/change.go",
			Old:   "\tchanges := []<-chan Change{s.awaiting(ctx, first)}\n",
			New:   "\ts.await(ctx, first)\n\tchanges := []<-chan Change{s.awaiting(ctx, first)}\n",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/credential", Run: "TestRevokeMeansTheKeyThatWasThere"}},
		},
		{
			Name: "revoke-unheard", Promise: "a node that took in a revocation sends that key no more",
			File:  "packages/go/credentiallease/guard.go",
			Old:   "case c.SlotRevision < s.floor:",
			New:   "case c.SlotRevision < s.floor && !s.known:",
			Tests: []Test{{Layer: unit, Package: "packages/go/credentiallease", Run: "TestRevokeRace|TestStateChangesBetweenVerifyAndSend"}},
		},
		{
			Name: "time-not-asked-for", Promise: "a node that doesn't know the edge's time asks for it",
			File:  "apps/node/internal/transport/lending.go",
			Old:   "\t\t\t\tmux.Beat()\n",
			New:   "\t\t\t\t_ = mux\n",
			Tests: []Test{{Layer: unit, Package: "apps/node/internal/transport", Run: "TestTimeIsAskedForAfterAJump"}},
		},
		{
			Name: "wide-open-window", Promise: "a slow caller costs no more than its stream's window",
			File:  "packages/go/transport/session.go",
			Old:   "streamWindow = 1 << 20",
			New:   "streamWindow = 1 << 24",
			Tests: []Test{{Layer: unit, Package: "packages/go/transport", Run: "TestStalledReadersDontStopOthers"}},
		},
		{
			Name: "stale-lease-sent", Promise: "a key that changed between lease and open isn't used",
			File:  "apps/edge/internal/service/attempt.go",
			Old:   "if a.lease != nil && !a.lease.Current() {",
			New:   "if a.lease != nil && !a.lease.Current() && a.opened {",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/service", Run: "TestLeasesAreFenced"}},
		},
		{
			Name: "lease-under-a-changing-configuration", Promise: "a lease is issued under the configuration in force",
			File:  "apps/edge/internal/credential/issue.go",
			Old:   "if s.cfg.State() != state {\n\t\treturn nil, nil\n\t}",
			New:   "",
			Tests: []Test{{Layer: unit, Package: "apps/edge/internal/credential", Run: "TestChangesWhileALeaseIsMade"}},
		},
	}
}
