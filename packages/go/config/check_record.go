package config

import (
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

func (d *decoder) checkNodes(nodes []NodeRecord) {
	ids := newUnique(d, "node id")
	hashes := newUnique(d, "token hash")
	for i := range nodes {
		n, p := &nodes[i], index("nodes", i)
		if d.id(p+".id", n.ID) {
			ids.add(p+".id", n.ID, n.ID)
		}
		if len(n.TokenHashes) == 0 && n.Enabled {
			d.add(p+".token_hashes", "is missing, so this node can't register; iop-edge token new %s makes a token",
				idOr(n.ID, "NODE"))
		}
		for j := range n.TokenHashes {
			d.checkTokenHash(index(p+".token_hashes", j), &n.TokenHashes[j], hashes)
		}
		d.checkLabels(p+".labels", n.Labels)
		names := newUnique(d, "adapter name on this node")
		for j := range n.Adapters {
			a, ap := &n.Adapters[j], index(p+".adapters", j)
			if d.id(ap+".name", a.Name) {
				names.add(ap+".name", a.Name, a.Name)
			}
			d.checkAdapter(ap, a)
		}
	}
}

func (d *decoder) checkTokenHash(p string, t *TokenHash, hashes *unique) {
	switch {
	case t.SHA256 == "" && t.File == "":
		d.add(p+".sha256", "is missing; iop-edge token new NODE prints it")
		return
	case t.SHA256 != "" && t.File != "":
		d.add(p, "has both sha256 and file; keep one")
		return
	case t.File != "":
		t.SHA256 = d.hashFile(p+".file", t.File)
	}
	if t.SHA256 != "" {
		hashes.add(p, t.SHA256, "this token")
	}
}

// checkLabels checks names and values; they are shown in logs and administration.
func (d *decoder) checkLabels(p string, labels map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if !ValidID(k) || !ValidID(strings.ReplaceAll(labels[k], "/", "_")) {
			d.add(join(p, showKey(k)), "must be a name and a value of 1 to 64 characters A-Z a-z 0-9 . _ - (/ too in the value)")
		}
	}
}

// checkAdapter checks one adapter as far as the Edge can: whether the provider is there only the node can tell.
func (d *decoder) checkAdapter(p string, a *Adapter) {
	switch a.Kind {
	case "openai", "ollama", "anthropic":
		d.checkBaseURL(p+".base_url", a.BaseURL)
	case "auto":
		if a.BaseURL != "" {
			d.add(p+".base_url", "has no meaning for kind auto, which looks for an Ollama on its default port; remove it, or use kind ollama")
		}
	case "loopback":
		if a.BaseURL != "" {
			d.add(p+".base_url", "has no meaning for kind loopback, which answers by itself; remove it")
		}
	case "":
		d.add(p+".kind", "is missing; use auto, ollama, openai, anthropic or loopback")
	default:
		d.unknownWord(p+".kind", "kind", a.Kind, "auto", "ollama", "openai", "anthropic", "loopback")
	}
	d.rangeOf(p+".max_concurrency", int64(a.MaxConcurrency), 1, 10_000)
	targets := newUnique(d, "target in this list")
	for i, t := range a.Targets {
		tp := index(p+".targets", i)
		if !modelName(t) {
			d.add(tp, "%s can't be a model's name: at most 256 characters, no blanks", quote(t))
		}
		targets.add(tp, t, t)
	}
	for i, allowed := range a.AllowPaths {
		if !allowedPath(allowed) {
			d.add(index(p+".allow_paths", i), "%s isn't a path; write it like /v1/chat/completions, or /v1/* for all below it",
				quote(allowed))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(a.Options)) {
		if secretWord(k) {
			d.add(join(p+".options", showKey(k)), "looks like a secret, and options are sent to the node and shown; "+
				"give a provider's key to a slot")
		}
	}
}

// allowedPath reports whether s is a path in its plainest form, perhaps with a star as its last segment.
func allowedPath(s string) bool {
	if s == "/*" {
		return true
	}
	s = strings.TrimSuffix(s, "/*")
	return strings.HasPrefix(s, "/") && path.Clean(s) == s && !strings.ContainsAny(s, "?#%\\ *")
}

func secretWord(key string) bool {
	words := strings.FieldsFunc(strings.ToLower(key), func(c rune) bool { return c == '_' || c == '-' || c == '.' })
	return slices.ContainsFunc(words, func(w string) bool {
		return slices.Contains([]string{"key", "apikey", "secret", "password", "token", "authorization", "bearer",
			"credential", "credentials"}, w)
	})
}

// checkBaseURL keeps to what is only an address: a secret in it would be logged, and a query would be joined to paths.
func (d *decoder) checkBaseURL(p, s string) {
	const like = "write it like http://127.0.0.1:8000 or https://api.example.com/v1"
	if s == "" {
		d.add(p, "is missing; %s", like)
		return
	}
	u, err := url.Parse(s)
	if err != nil {
		d.add(p, "isn't a URL; %s", like)
		return
	}
	port, portErr := strconv.Atoi(u.Port())
	switch {
	case u.User != nil:
		d.add(p, "holds a user or password; remove them, secrets don't belong into addresses")
	case u.Scheme != "http" && u.Scheme != "https":
		d.add(p, "must start with http:// or https://; %s", like)
	case u.Hostname() == "":
		d.add(p, "names no host; %s", like)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#"):
		d.add(p, "has a query or fragment; remove what follows ? or #")
	case u.Port() != "" && (portErr != nil || port < 1 || port > 65535) || strings.HasSuffix(u.Host, ":"):
		d.add(p, "has no valid port; ports are 1 to 65535")
	case u.RawPath != "" || path.Clean("/"+u.Path) != strings.TrimSuffix("/"+strings.TrimPrefix(u.Path, "/"), "/") && u.Path != "" && u.Path != "/":
		d.add(p, "has a path with .., // or %% in it; write it plainly")
	}
}
