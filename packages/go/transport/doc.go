// Package transport moves bytes between an Edge and a Node: length-prefixed protobuf frames, the coalescing writer
// under the multiplexer, the gate that keeps bulk from delaying control, one [Stream] per run, and one [Link] per
// connection with its control stream, heartbeat and orderly end.
//
// It owns the write path (the wire contract, "Bytes: gate, coalescer, control") and is the only package that knows the
// multiplexer. It must not know what a run, a place or a node record is: it decodes messages, checks their caps, and
// hands them to its handlers. It takes no decision about registration, admission or outcomes.
//
// # What is safe to do from where
//
// A [Stream] has one reading and one writing goroutine; Cancel and Close may be called from anywhere, at any time. All
// Send methods of a [Link] are non-blocking and may be called from anywhere. Handlers are called by the one control
// reader and must return at once.
package transport
