package program

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"iop/packages/go/config"
)

// CreateSecretFile writes a secret into a new file that only this user can read. A file that is there already isn't
// touched and reported as fs.ErrExist. The file appears with its content, so that nobody reads half of it.
func CreateSecretFile(path string, secret config.Secret) error {
	temp, err := tempFile(path, secret.Reveal()+"\n", 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Link(temp, path); err != nil {
		return fmt.Errorf("%s: %w", path, plain(err))
	}
	return nil
}

// WriteFile replaces a file as a whole, so that whoever reads it sees the old or the new content.
func WriteFile(path, content string, mode os.FileMode) error {
	temp, err := tempFile(path, content, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return fmt.Errorf("%s: %w", path, plain(err))
	}
	return nil
}

// tempFile makes a file beside path, and the directory if it is missing.
func tempFile(path, content string, mode os.FileMode) (name string, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("%s: %w", dir, plain(err))
	}
	f, err := os.CreateTemp(dir, ".iop-*")
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, plain(err))
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("%s: %w", path, plain(err))
	}
	return f.Name(), nil
}

// plain is an error without the paths that the caller names itself.
func plain(err error) error {
	var pathErr *fs.PathError
	var linkErr *os.LinkError
	switch {
	case errors.As(err, &pathErr):
		return pathErr.Err
	case errors.As(err, &linkErr):
		return linkErr.Err
	}
	return err
}
