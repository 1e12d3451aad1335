package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	credName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`)
	hexHash  = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)
)

// token reads the node's token from the source that the file names. pin is the CA that a join string names.
func (d *decoder) token(path, source string) (token Secret, pin string) {
	text, name, ok := d.secret(path, source)
	if !ok {
		return Secret{}, ""
	}
	token, pin, err := parseToken(text)
	if err != nil {
		d.add(path, "%s %s", name, err)
		return Secret{}, ""
	}
	return token, pin
}

// secret reads what the source has that the file names. Everything that it reports names the source, never what is in it;
// name is how to report more of it.
func (d *decoder) secret(path, source string) (text, name string, ok bool) {
	kind, rest, _ := strings.Cut(source, ":")
	var err error
	switch kind {
	case "file":
		if rest == "" {
			d.add(path, "file: must be followed by a path")
			return "", "", false
		}
		name = d.resolve(rest)
		text, err = readSecretFile(name)
	case "env":
		if !envName.MatchString(rest) {
			d.add(path, "env: must be followed by the name of an environment variable")
			return "", "", false
		}
		name = "environment variable " + rest
		if text = os.Getenv(rest); text == "" {
			err = errors.New("isn't set")
		}
	case "cred":
		if !credName.MatchString(rest) {
			d.add(path, "cred: must be followed by the name of a systemd credential")
			return "", "", false
		}
		name = "credential " + rest
		text, err = readCredential(rest)
	case "exec":
		d.add(path, "exec: isn't supported by this version; use file:, env: or cred:")
		return "", "", false
	default:
		d.add(path, "must say where the secret is, not what it is: write it into a file that only this program's "+
			"user can read (chmod 600) and give file:PATH, or give env:NAME or cred:NAME")
		return "", "", false
	}
	if err != nil {
		d.add(path, "%s %s", name, err)
		return "", "", false
	}
	return text, name, true
}

func readCredential(name string) (string, error) {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return "", errors.New("can't be read: CREDENTIALS_DIRECTORY isn't set; systemd sets it for LoadCredential=")
	}
	return readSecretFile(filepath.Join(dir, name))
}

// ReadTokenFile returns the token in a file, as a node reads it. Its errors say what is wrong, not with which file.
func ReadTokenFile(name string) (Secret, error) {
	text, err := readSecretFile(name)
	if err != nil {
		return Secret{}, err
	}
	return ParseToken(text)
}

// readSecretFile returns a file's content without the line break at its end. The group may read it, since a mounted
// secret of Kubernetes needs that, everybody may not.
func readSecretFile(name string) (string, error) {
	info, err := os.Stat(name)
	if err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("is open to every user of this machine (mode %04o); chmod 600 it", info.Mode().Perm())
	}
	return readSmallFile(name)
}

// readSmallFile returns the content of a regular file of at most maxToken bytes without the line break at its end. A
// device or pipe is refused before it is opened, since reading it may never end.
func readSmallFile(name string) (string, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", errors.New("doesn't exist")
	case err != nil:
		return "", fmt.Errorf("can't be read: %w", plainError(err))
	case !info.Mode().IsRegular():
		return "", errors.New("isn't a regular file")
	}
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("can't be read: %w", plainError(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("can't be read: %w", plainError(err))
	}
	if len(b) > maxToken {
		return "", fmt.Errorf("is longer than %d bytes", maxToken)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
}

// plainError is an error without the path that the caller names itself.
func plainError(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// hash returns a SHA-256 in lower-case hex, from itself or from the file that it is in.
func (d *decoder) hash(path, s string) string {
	if name, ok := strings.CutPrefix(s, "file:"); ok {
		return d.hashFile(path, d.resolve(name))
	}
	if !hexHash.MatchString(s) {
		d.add(path, "must be a SHA-256 in hex, 64 digits, as iop-edge token new and iop-edge key new print it; "+
			"never the secret itself")
		return ""
	}
	return strings.ToLower(s)
}

func (d *decoder) hashFile(path, name string) string {
	d.files = append(d.files, name)
	s, err := readSmallFile(name)
	if err != nil {
		d.add(path, "%s %s; iop-edge token new NODE --hash-file writes such a file", name, err)
		return ""
	}
	if !hexHash.MatchString(s) {
		d.add(path, "%s must hold a SHA-256 in hex, 64 digits, and nothing else", name)
		return ""
	}
	return strings.ToLower(s)
}
