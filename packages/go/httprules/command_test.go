package httprules

import "testing"

// The list of the OLLAMA_API command, exactly: what isn't here is refused, however it is written.
func TestOllamaCommand(t *testing.T) {
	list := map[string]string{"/api/version": "GET", "/api/tags": "GET", "/api/ps": "GET", "/api/show": "POST"}
	paths := []string{
		"", "/", "*", "/api", "/api/", "/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/pull", "/api/push", "/api/create",
		"/api/copy", "/api/delete", "/api/blobs/sha256:0", "/api/tags/", "/api/tags?", "/api/tags?x=1", "/api/tags#", "/api/tags ", " /api/tags",
		"/API/tags", "/api/Tags", "//api/tags", "/api//tags", "/api/./tags", "/api/x/../tags", "/api/%74ags", "/api%2ftags", "/api/tags%00",
		"/api/tags\x00", "/api\\tags", "api/tags", "http://127.0.0.1/api/tags", "/v1/models",
		// HT-15
		"/api/chat/../delete", "/api/%2e%2e/api/delete", "//api/delete", "/api%2fdelete", "/api/chat%2f..%2fdelete", "/API/delete", "/api/delete?", "/api/\\delete",
	}
	for path := range list {
		paths = append(paths, path)
	}
	for _, path := range paths {
		for _, method := range []string{"GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "get", ""} {
			if want := method != "" && list[path] == method; OllamaCommand(method, path) != want {
				t.Errorf("%q %q: carried is %v", method, path, !want)
			}
		}
	}
}
