package page

import "golang.org/x/sys/unix"

// allocate maps a page of the best kind that this machine gives. Heap means that there is none.
func allocate() ([]byte, Kind) {
	if b := secret(); b != nil {
		return b, Secret
	}
	if b := locked(); b != nil {
		return b, Locked
	}
	return nil, Heap
}

// secret maps memfd_secret memory; nil where the kernel was built without it or its lock limit is reached.
func secret() []byte {
	fd, err := unix.MemfdSecret(unix.O_CLOEXEC)
	if err != nil {
		return nil
	}
	defer unix.Close(fd) // the mapping stays
	if unix.Ftruncate(fd, Size) != nil {
		return nil
	}
	b, err := unix.Mmap(fd, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil
	}
	_ = unix.Madvise(b, unix.MADV_DONTFORK) // it is shared: a child would have it, too
	return b
}

// locked maps memory that is never swapped, nor dumped, nor seen by a child.
func locked() []byte {
	b, err := unix.Mmap(-1, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil
	}
	if unix.Mlock(b) != nil || unix.Madvise(b, unix.MADV_DONTDUMP) != nil || unix.Madvise(b, unix.MADV_WIPEONFORK) != nil {
		_ = unix.Munmap(b)
		return nil
	}
	return b
}

func unmap(b []byte) { _ = unix.Munmap(b) }
