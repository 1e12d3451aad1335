package console

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// axeCore returns the script that checks a page's accessibility, installed into the cache by npm's lock file.
func axeCore(ctx context.Context, cache string) (string, error) {
	if cache == "" {
		return "", errors.New("IOP_CACHE isn't set")
	}
	lock, err := os.ReadFile("npm/package-lock.json")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "axe", fmt.Sprintf("%x", sha256.Sum256(lock))[:16])
	script := filepath.Join(dir, "node_modules", "axe-core", "axe.min.js")
	if text, err := os.ReadFile(script); err == nil {
		return string(text), nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for _, name := range []string{"package.json", "package-lock.json"} {
		text, err := os.ReadFile(filepath.Join("npm", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, out[max(0, len(out)-1000):])
	}
	text, err := os.ReadFile(script)
	return string(text), err
}

// accessible fails the test for each thing in the page that WCAG 2 (A, AA) or a good habit forbids.
func (p *tab) accessible(state string) {
	p.t.Helper()
	if the.axe == "" {
		return
	}
	const check = `axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.flatMap((v) =>
		v.nodes.map((n) => v.id + ': ' + n.target.join(' ') + ' ' + n.any.concat(n.all, n.none).map((c) => c.message).join('; '))))`
	js[bool](p, the.axe+"\n;true")
	found := js[[]string](p, check)
	if len(found) > 0 {
		p.t.Errorf("%s: axe-core finds\n%s", state, strings.Join(found, "\n"))
	}
}
