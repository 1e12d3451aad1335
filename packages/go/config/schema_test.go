package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The schema is written down four times: types, comments, defaults, example files. These tests keep them one.

func TestEveryFieldHasAComment(t *testing.T) {
	for _, file := range []string{"edge.go", "node.go"} {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			for _, f := range spec.Type.(*ast.StructType).Fields.List {
				checkComment(t, spec.Name.Name, f)
			}
			return false
		})
	}
}

func checkComment(t *testing.T, section string, f *ast.Field) {
	t.Helper()
	name, comment := f.Names[0].Name, strings.Join(strings.Fields(f.Doc.Text()), " ")
	if comment == "" || name != "_" && !strings.HasPrefix(comment, name+" ") {
		t.Errorf("%s.%s has no comment that starts with its name", section, name)
	}
	if f.Tag == nil {
		return
	}
	if def := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("default"); def != "" && !strings.Contains(comment, "Default "+def) {
		t.Errorf("%s.%s: the comment doesn't say Default %s", section, name, def)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	for _, root := range []reflect.Type{reflect.TypeFor[Edge](), reflect.TypeFor[Node]()} {
		walkSchema(root, "", func(path string, f *field) {
			if f.def == "" {
				return
			}
			v := reflect.New(f.typ).Elem()
			setDefault(v, f)
			if v.IsZero() {
				t.Errorf("%s: default %q isn't a value", path, f.def)
			}
		})
	}
	if _, err := ParseEdge("edge.yaml", []byte("mode: dev\n")); err != nil {
		t.Errorf("defaults alone: %v", err)
	}
	if Default[Limits]().Body != 64<<20 || Default[Queue]().Depth != 64 || Default[NodeTimers]().Drain.Seconds() != 30 {
		t.Error("Default")
	}
}

// examples returns the shipped files, as they would be used after `make run-edge` made the token.
func examples(t *testing.T) (edge, node string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/state", 0o700); err != nil {
		t.Fatal(err)
	}
	join, hash := NewToken()
	writeFile(t, dir, "node.token", join.Reveal()+"\n", 0o600)
	writeFile(t, dir+"/state", "local.token.sha256", hash+"\n", 0o644)
	for _, name := range []string{"edge.yaml", "node.yaml"} {
		b, err := os.ReadFile("../../../configs/" + name)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, dir, name, string(b), 0o644)
	}
	return dir + "/edge.yaml", dir + "/node.yaml"
}

func TestExamplesLoadAndShowTheDefaults(t *testing.T) {
	edgeFile, nodeFile := examples(t)
	e, err := LoadEdge(edgeFile)
	if err != nil {
		t.Fatal(err)
	}
	n, err := LoadNode(nodeFile)
	if err != nil {
		t.Fatal(err)
	}
	if e.Limits != Default[Limits]() || e.Timers != Default[EdgeTimers]() || e.Log != Default[Log]() ||
		e.Listen != Default[Listen]() || e.Routes[0].Queue != Default[Queue]() {
		t.Error("configs/edge.yaml shows other values than the defaults")
	}
	if n.Timers != Default[NodeTimers]() || n.Log != Default[Log]() || n.Edges[0] != e.Listen.Nodes {
		t.Error("configs/node.yaml shows other values than the defaults")
	}
	rec, expired := NewState(e, 1, nil).NodeByTokenHash(HashSecret(n.Token.Reveal()), time.Now())
	if rec == nil || rec.ID != "local" || expired {
		t.Error("the token of configs/node.yaml doesn't open the node of configs/edge.yaml")
	}
}

// The parts that are commented out are configuration too: as their comments say, without their "# " they load.
func TestExamplesLoadWithEverythingSwitchedOn(t *testing.T) {
	edgeFile, nodeFile := examples(t)
	on := switchedOn(t, edgeFile)
	on = strings.Replace(on, "\nmode: dev\n", "\nmode: managed\n", 1) // as its comment says of tls
	writeCertificate(t, filepath.Dir(edgeFile), "http.crt", "http.key")
	e, err := ParseEdge(edgeFile, []byte(on))
	if err != nil {
		t.Fatal(err)
	}
	if e.TLS == nil || e.TLS.TrustDomain == "" || e.Nodes[0].SPIFFEID == "" || len(e.Nodes[0].RevokedSerials) != 1 {
		t.Errorf("not all of managed mode was switched on: %+v", e)
	}
	if e.Lease.TTL != Default[Lease]().TTL || len(e.Slots) != 1 || e.Slots[0].Refresh != Default[Slot]().Refresh ||
		e.Slots[0].StaleMax != Default[Slot]().StaleMax || len(e.Profiles) != 1 || e.Routes[2].Slot != e.Slots[0].ID {
		t.Errorf("leases aren't what they are by default: %+v", e)
	}
	if len(e.Nodes[0].Adapters) != 4 || len(e.Principals) != 1 || len(e.Routes) != 3 || len(e.Nodes[0].TokenHashes) != 2 {
		t.Errorf("not everything was switched on: %+v", e)
	}
	writeFile(t, filepath.Dir(nodeFile), "proxy.credentials", "node:password\n", 0o600)
	n, err := ParseNode(nodeFile, []byte(switchedOn(t, nodeFile)))
	if err != nil {
		t.Fatal(err)
	}
	if n.Proxy == "" || n.ProxyCredentials.Reveal() != "node:password" {
		t.Errorf("the proxy wasn't switched on: %q", n.Proxy)
	}
	if n.TLS == nil || n.TLS.EdgeSPIFFEID != "spiffe://"+e.TLS.TrustDomain+"/iop/edge" {
		t.Errorf("the node of the example doesn't look for the edge of the example: %+v", n.TLS)
	}
}

// switchedOn is a file without the "# " in front of its keys.
func switchedOn(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^( *)# ((?:  )*(?:- )?\w+:(?: .*)?)$`).ReplaceAllString(string(b), "$1$2")
}

func TestExamplesNameEveryKey(t *testing.T) {
	edgeFile, nodeFile := examples(t)
	for file, root := range map[string]reflect.Type{edgeFile: reflect.TypeFor[Edge](), nodeFile: reflect.TypeFor[Node]()} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		walkSchema(root, "", func(path string, f *field) {
			shown := regexp.MustCompile(`(?m)(^|[ {#-])` + f.key + `:( |$)`).Match(b)
			if f.is("later") == shown && f.key != "limits" { // limits is a later key of principals only
				t.Errorf("%s: %s: shown %v, supported %v", file, path, shown, !f.is("later"))
			}
		})
	}
}
