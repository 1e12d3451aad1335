// Package adaptertest holds what every adapter must keep, as tests that an adapter's own tests run: order, exactly one
// outcome, cancel within a second, bytes that arrive as they left the provider however they were cut, truncation that
// never looks complete, no panic on garbage, and no secret where it doesn't belong.
//
// It knows adapters by the interfaces of package execution only.
package adaptertest
