package credential

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"iop/packages/go/config"
)

// A secret that a container's runtime mounted may be open to all, where only root can have written it.
func TestMountedSecrets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size=64k"); err != nil {
		t.Skip("takes the right to mount")
	}
	t.Cleanup(func() { check(t, syscall.Unmount(dir, 0)) })
	path := filepath.Join(dir, "openai")
	check(t, os.WriteFile(path, []byte(keyA), 0o444))
	read := func() error {
		_, err := newResolver().read(t.Context(), fileSource(path), false)
		return err
	}
	check(t, read())
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	if got, err := newResolver().read(t.Context(), config.SecretSource{Kind: config.SourceCred, Name: "openai"}, false); err != nil || string(got) != keyA {
		t.Error(err)
	}
	for _, c := range []struct {
		what       string
		file, path os.FileMode
	}{{"others may write the file", 0o446, 0o755}, {"others may write the directory", 0o444, 0o777 | os.ModeSticky}} {
		check(t, os.Chmod(path, c.file))
		check(t, os.Chmod(dir, c.path))
		if read() == nil {
			t.Errorf("%s, and it is read", c.what)
		}
	}
	check(t, os.Chmod(dir, 0o755))
	check(t, os.Chmod(path, 0o444))
	check(t, os.Chown(path, 4711, 0))
	if err := read(); err == nil || !strings.Contains(err.Error(), "another user") {
		t.Errorf("a file of another user: %v", err)
	}
}
