//go:build !linux

package page

// allocate has nothing better than the heap here.
func allocate() ([]byte, Kind) { return nil, Heap }

func unmap([]byte) {}
