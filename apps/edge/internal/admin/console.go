package admin

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
)

// consoleFiles are the page that shows all this to people: as they are, without a build step.
//
//go:embed console
var consoleFiles embed.FS

// consoleTypes are the kinds of files that the console has.
var consoleTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// consoleEndpoints are the rows of the console. Its files are the same for everybody and say nothing, so no key is asked
// for; the page asks its user for one, and sends it with what it asks.
//
// There is no session and no cookie: the key stays in the page's memory (console/api.js says why), and what curl does with
// a bearer key, the page does.
func consoleEndpoints() []Endpoint {
	rows := []Endpoint{
		{http.MethodGet, "/", AccessPage, toConsole},
		{http.MethodGet, "/console", AccessPage, toConsole},
		{http.MethodGet, "/console/", AccessPage, serveConsole("index.html")},
	}
	for _, name := range consoleNames() {
		if name != "index.html" {
			rows = append(rows, Endpoint{http.MethodGet, "/console/" + name, AccessOpen, serveConsole(name)})
		}
	}
	return rows
}

func consoleNames() (names []string) {
	entries, err := fs.ReadDir(consoleFiles, "console")
	if err != nil {
		panic(err) // it is in the program
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// toConsole leads to the page. The way there is relative, for proxies that have this listener below a path of theirs.
func toConsole(_ *handler, w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Location", "console/")
	w.WriteHeader(http.StatusFound)
}

func serveConsole(name string) func(*handler, http.ResponseWriter, *http.Request) {
	return func(h *handler, w http.ResponseWriter, _ *http.Request) {
		text, err := fs.ReadFile(consoleFiles, path.Join("console", name))
		if err != nil {
			panic(err) // it is in the program
		}
		w.Header().Set("Content-Type", consoleTypes[path.Ext(name)])
		// Whoever asked may be gone already; there is nobody else to tell.
		_, _ = w.Write(text)
	}
}

// policy is what a browser may do with an answer of this listener: run its own scripts and styles and ask its own origin,
// nothing inline, nothing from elsewhere, no markup made of text, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// protect sets what browsers are told with every answer.
func protect(header http.Header) {
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", policy)
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
}
