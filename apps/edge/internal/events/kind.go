package events

// Kind is what happened. The numbers are those of the wire's EventKind, so that an event of a node needs no table.
type Kind uint8

// The kinds.
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
}

// String returns the kind's stable name, "unknown" for a number that this version doesn't know.
func (k Kind) String() string {
	if k > 0 && int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}
