package credential

import "syscall"

// The file systems that are in memory only, by their magic numbers in linux/magic.h.
const (
	magicRAM = 0x858458f6
	magicTmp = 0x01021994
)

// inMemory reports whether a file's file system keeps nothing on a disk.
func inMemory(path string) bool {
	var s syscall.Statfs_t
	if syscall.Statfs(path, &s) != nil {
		return false
	}
	kind := uint32(s.Type) //nolint:gosec // the numbers have 32 bits
	return kind == magicRAM || kind == magicTmp
}
