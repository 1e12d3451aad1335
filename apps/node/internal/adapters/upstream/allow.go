package upstream

import (
	"fmt"
	"strings"

	"iop/packages/go/httprules"
)

// allowList says which raw paths may be sent to a provider.
type allowList struct {
	exact    map[string]bool
	prefixes []string // each ends in a slash
}

// newAllowList takes whole paths, and paths that end in "/*" for everything below.
func newAllowList(lists ...[]string) (allowList, error) {
	a := allowList{exact: map[string]bool{}}
	for _, list := range lists {
		for _, entry := range list {
			prefix, below := strings.CutSuffix(entry, "*")
			if err := httprules.CheckTarget(prefix, ""); err != nil {
				return allowList{}, fmt.Errorf("allow_paths: %q: %w", entry, err)
			}
			switch {
			case strings.Contains(prefix, "*") || below && !strings.HasSuffix(prefix, "/"):
				return allowList{}, fmt.Errorf("allow_paths: %q: a star stands only at the end, after a slash", entry)
			case below:
				a.prefixes = append(a.prefixes, prefix)
			default:
				a.exact[entry] = true
			}
		}
	}
	return a, nil
}

// allows reports whether a path that [httprules.CheckTarget] passed is on the list. It compares bytes: what a provider
// would take for the same path under another spelling is not on it. (HT-15)
func (a *allowList) allows(path string) bool {
	if a.exact[path] {
		return true
	}
	for _, prefix := range a.prefixes {
		if len(path) > len(prefix) && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
