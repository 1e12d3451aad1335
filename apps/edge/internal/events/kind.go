package events

// Kind is what happened. The numbers below 32 are those of the wire's EventKind, so that an event of a node needs no
// table; the others never travel to or from a node.
type Kind uint8

// What happens to a node's connection, or is told by the node.
const (
	KindNotReady             Kind = 1  // registered, but no Ready within the limit
	KindRefusedProjection    Kind = 2  // the node couldn't apply what the edge told it to offer
	KindStoreDegraded        Kind = 3  // the node's run store can't write
	KindClockSkew            Kind = 4  // the node's clock jumped
	KindIdentityReloadFailed Kind = 5  // certificate or key files couldn't be read again
	KindCapacityDrift        Kind = 6  // node and edge disagree about places
	KindClone                Kind = 7  // one token used from two machines
	KindRegistered           Kind = 8  // a connection was accepted
	KindRefused              Kind = 9  // a registration was refused; Code says why
	KindReady                Kind = 10 // work may be sent
	KindDraining             Kind = 11 // takes no new work
	KindFenced               Kind = 12 // the connection is over; Code says why
	KindUnresponsive         Kind = 13 // connected, but doesn't answer opens
)

// What the edge and its operators do to nodes, and what becomes of their adapters.
const (
	KindDrained            Kind = 32 // an operator keeps new work from the node
	KindUndrained          Kind = 33 // and doesn't any more
	KindPlaceReleased      Kind = 34 // an operator took a place back that a run held
	KindAdapterAvailable   Kind = 35 // its provider is there (again)
	KindAdapterUnavailable Kind = 36 // Text says why
	KindLeaseRefused       Kind = 37 // a provider's key wasn't lent, or its node didn't use it; Code says why
	KindLeaseMisused       Kind = 38 // what only an attack or a broken program explains; Code says what
	KindSlotChanged        Kind = 39 // a provider's key or what it may be used for; Code is the new state, or "rotated"
	KindSlotStale          Kind = 40 // a slot's source can't be read; Text says why
	KindLeaseKeyChanged    Kind = 41 // of the keys that leases are signed with
	KindReloaded           Kind = 48 // a new configuration is in force
	KindReloadRefused      Kind = 49 // one was wrong; the old one stays
	KindReflected          Kind = 60 // a provider sent the key back that it was called with
)

// The steps of a run's or tunnel's life.
const (
	KindRunSubmitted Kind = 64 // the edge has it
	KindRunQueued    Kind = 65 // no place was free; Position is where it stands
	KindRunPlaced    Kind = 66 // got a place
	KindRunAccepted  Kind = 67 // the node has it
	KindRunFirstByte Kind = 68 // the answer begins
	KindRunRetried   Kind = 69 // the attempt started nothing and the place is given back; Code says why
	KindRunDetached  Kind = 70 // a background run whose node lost its connection
	KindRunAdopted   Kind = 71 // its node is back and has it still
	KindRunRecovered Kind = 72 // a node told of a run that an earlier process of this edge had started
	KindRunEnded     Kind = 73 // Code says how, ok = well
)

var kindNames = [...]string{
	KindNotReady:             "not_ready",
	KindRefusedProjection:    "refused_projection",
	KindStoreDegraded:        "store_degraded",
	KindClockSkew:            "clock_skew",
	KindIdentityReloadFailed: "identity_reload_failed",
	KindCapacityDrift:        "capacity_drift",
	KindClone:                "clone",
	KindRegistered:           "registered",
	KindRefused:              "refused",
	KindReady:                "ready",
	KindDraining:             "draining",
	KindFenced:               "fenced",
	KindUnresponsive:         "unresponsive",

	KindDrained:            "drained",
	KindUndrained:          "undrained",
	KindPlaceReleased:      "place_released",
	KindAdapterAvailable:   "adapter_available",
	KindAdapterUnavailable: "adapter_unavailable",
	KindLeaseRefused:       "lease_refused",
	KindLeaseMisused:       "lease_misused",
	KindSlotChanged:        "slot_changed",
	KindSlotStale:          "slot_stale",
	KindLeaseKeyChanged:    "lease_key_changed",
	KindReloaded:           "reloaded",
	KindReloadRefused:      "reload_refused",
	KindReflected:          "credential_reflected",

	KindRunSubmitted: "run_submitted",
	KindRunQueued:    "run_queued",
	KindRunPlaced:    "run_placed",
	KindRunAccepted:  "run_accepted",
	KindRunFirstByte: "run_first_byte",
	KindRunRetried:   "run_retried",
	KindRunDetached:  "run_detached",
	KindRunAdopted:   "run_adopted",
	KindRunRecovered: "run_recovered",
	KindRunEnded:     "run_ended",
}

// String returns the kind's stable name, "unknown" for a number that this version doesn't know.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return "unknown"
}

// Run reports whether the kind is a step of a run's life; all others are about nodes and the edge itself.
func (k Kind) Run() bool { return k >= KindRunSubmitted }

// ParseKind finds a kind by its name.
func ParseKind(name string) (Kind, bool) {
	for k, known := range kindNames {
		if known == name && name != "" {
			return Kind(k), true
		}
	}
	return 0, false
}
