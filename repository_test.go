// Package iop has no code of its own: its tests hold the rules that the whole repository keeps.
package iop

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"iop/packages/go/execution"
	pb "iop/proto/iop"
)

// mayImport is the table of import directions inside the module: a package (its tests aside) may import what its row
// lists, and nothing else of ours. A row ends at a prefix: "apps/edge/internal/service" covers what lies below it.
var mayImport = map[string][]string{
	"proto/iop":                         {},
	"packages/go/execution":             {},
	"packages/go/faultpoint":            {},
	"packages/go/credentiallease":       {},
	"packages/go/httprules":             {},
	"packages/go/logging":               {},
	"packages/go/identity":              {},
	"packages/go/identity/identitytest": {"packages/go/identity"}, // test support
	"packages/go/config":                {"packages/go/identity", "packages/go/httprules"},
	"packages/go/patience":              {}, // test support
	"packages/go/tracing":               {"packages/go/config"},
	"packages/go/program":               {"packages/go/config", "packages/go/identity", "packages/go/logging"},
	"packages/go/doctor":                {"packages/go/config", "packages/go/identity", "packages/go/program"},
	"packages/go/transport":             {"proto/iop", "packages/go/execution", "packages/go/faultpoint"},
	"apps/edge/internal/admission":      {"packages/go/execution"},
	"apps/edge/internal/events":         {"packages/go/execution"},
	"apps/edge/internal/node": {"proto/iop", "packages/go/execution", "packages/go/faultpoint", "packages/go/transport", "packages/go/config",
		"packages/go/identity", "packages/go/credentiallease", "apps/edge/internal/admission", "apps/edge/internal/events"},
	"apps/edge/internal/ca":    {"packages/go/identity", "packages/go/program"},
	"apps/edge/internal/setup": {"packages/go/config", "packages/go/identity", "packages/go/program", "apps/edge/internal/ca"},
	"apps/edge/internal/usage": {},
	"apps/edge/internal/credential": {"packages/go/credentiallease", "packages/go/config", "packages/go/execution", "packages/go/httprules",
		"packages/go/program", "apps/edge/internal/events"},
	"apps/edge/internal/transport": {"proto/iop", "packages/go/execution", "packages/go/faultpoint", "packages/go/transport", "packages/go/config", "packages/go/identity", "packages/go/credentiallease",
		"apps/edge/internal/admission", "apps/edge/internal/events", "apps/edge/internal/node"},
	"apps/edge/internal/service": {"packages/go/tracing", "proto/iop", "packages/go/execution", "packages/go/faultpoint", "packages/go/transport", "packages/go/config", "packages/go/httprules", "packages/go/credentiallease",
		"apps/edge/internal/admission", "apps/edge/internal/events", "apps/edge/internal/node"},
	"apps/edge/internal/httpapi": {"packages/go/tracing", "packages/go/execution", "packages/go/config", "packages/go/httprules",
		"apps/edge/internal/dialect", "apps/edge/internal/service"},
	"apps/edge/internal/dialect": {"packages/go/execution", "apps/edge/internal/dialect"},
	"apps/edge/internal/admin": {"packages/go/identity", "packages/go/execution", "packages/go/config", "packages/go/httprules", "apps/edge/internal/admission",
		"apps/edge/internal/dialect", "apps/edge/internal/events", "apps/edge/internal/node", "apps/edge/internal/service"},
	"apps/edge/internal/edgetest": {"apps/edge/internal", "packages/go", "proto/iop"}, // test support
	"apps/edge/internal/diagnose": {"packages/go/doctor", "packages/go/config", "packages/go/execution", "packages/go/identity", "packages/go/program", "apps/edge/internal/credential"},
	"apps/edge/cmd":               {"apps/edge", "packages/go/config", "packages/go/doctor", "packages/go/identity", "packages/go/logging", "packages/go/program", "packages/go/tracing"},
	"apps/edge":                   {"apps/edge/internal", "packages/go"},

	"apps/node/internal/adapters":             {"packages/go/tracing", "packages/go/execution", "packages/go/httprules", "apps/node/internal/adapters"},
	"apps/node/internal/router":               {"packages/go/execution"},
	"apps/node/internal/store":                {"packages/go/execution"},
	"apps/node/internal/node":                 {"packages/go/tracing", "proto/iop", "packages/go/execution", "packages/go/faultpoint", "packages/go/httprules", "packages/go/transport", "packages/go/credentiallease", "apps/node/internal/page", "apps/node/internal/router", "apps/node/internal/store"},
	"apps/node/internal/page":                 {},
	"apps/node/internal/transport":            {"proto/iop", "packages/go/execution", "packages/go/transport", "packages/go/config", "packages/go/identity", "packages/go/credentiallease", "apps/node/internal/node", "apps/node/internal/router", "apps/node/internal/adapters"},
	"apps/node/internal/admin":                {"packages/go/identity", "packages/go/execution", "apps/node/internal/node", "apps/node/internal/store", "apps/node/internal/transport"},
	"apps/node/internal/nodetest":             {"apps/node/internal", "packages/go", "proto/iop"},                                                                            // test support
	"apps/node/internal/adapters/adaptertest": {"packages/go/execution", "packages/go/httprules", "packages/go/patience", "apps/node/internal/adapters", "e2e/fakeprovider"}, // test support
	"apps/node/internal/diagnose": {"proto/iop", "packages/go/doctor", "packages/go/config", "packages/go/execution", "packages/go/identity", "packages/go/program", "packages/go/transport",
		"apps/node/internal/adapters", "apps/node/internal/store", "apps/node/internal/transport"},
	"apps/node/cmd": {"apps/node", "packages/go/config", "packages/go/doctor", "packages/go/logging", "packages/go/program", "packages/go/tracing"},
	"apps/node":     {"apps/node/internal", "packages/go"},

	"e2e":     {"e2e", "apps/edge", "apps/node", "packages/go", "proto/iop"},
	"scripts": {"e2e/procs", "packages/go"},
}

// onlyIn names the packages that may import a library, or a package of ours that is for tests; the rest of the module
// must not.
var onlyIn = map[string][]string{
	"iop/packages/go/patience":            {"apps/edge/internal/edgetest", "apps/node/internal/nodetest", "apps/node/internal/adapters/adaptertest", "e2e"},
	"github.com/hashicorp/yamux":          {"packages/go/transport"},
	"gopkg.in/yaml.v3":                    {"packages/go/config"},
	"github.com/mattn/go-sqlite3":         {"apps/node/internal/store", "apps/edge/internal/usage"},
	"github.com/spf13/cobra":              {"apps/edge/cmd", "apps/node/cmd", "packages/go/program"},
	"google.golang.org/protobuf":          {"proto/iop", "packages/go/transport", "packages/go/tracing", "apps/edge/internal", "apps/node/internal", "scripts/protogen", "e2e"},
	"github.com/prometheus":               {"apps/edge/internal/admin", "apps/node/internal/admin", "apps/edge", "apps/node"},
	"github.com/rs/zerolog":               {"packages/go/transport", "packages/go/logging", "packages/go/program", "packages/go/tracing", "apps", "e2e"},
	"golang.org/x/sys":                    {"packages/go", "apps"},
	"pgregory.net/rapid":                  {},
	"go.uber.org/goleak":                  {},
	"github.com/google/go-cmp":            {"apps/node/internal/adapters/adaptertest"},
	"github.com/stretchr/testify":         {},
	"github.com/mattn/go-isatty":          {"packages/go/logging"},
	"golang.org/x/time/rate":              {"apps", "packages/go/transport"},
	"golang.org/x/sync":                   {"apps", "packages/go"},
	"github.com/mattn/go-colorable":       {},
	"github.com/bufbuild/protocompile":    {"scripts/protogen"},
	"go.opentelemetry.io":                 {"packages/go/tracing"},
	"iop/packages/go/tracing/tracingtest": {"e2e"}, // for tests only
}

func TestImportDirections(t *testing.T) {
	for path, file := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		allowed, known := row(dir)
		if !known {
			t.Errorf("%s: its package has no row in mayImport", path)
			continue
		}
		for _, spec := range file.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			if own, ok := strings.CutPrefix(name, "iop/"); ok {
				if !slices.ContainsFunc(allowed, func(prefix string) bool { return under(own, prefix) }) && !under(own, dir) {
					t.Errorf("%s imports %s; its row allows only %v", path, own, allowed)
				}
			}
			for library, users := range onlyIn {
				if under(name, library) && !slices.ContainsFunc(users, func(prefix string) bool { return under(dir, prefix) }) {
					t.Errorf("%s imports %s, which belongs to %v only", path, name, users)
				}
			}
		}
	}
}

// row returns the entry of mayImport with the longest prefix of dir.
func row(dir string) (allowed []string, known bool) {
	for prefix := dir; prefix != "."; prefix = filepath.ToSlash(filepath.Dir(prefix)) {
		if allowed, known = mayImport[prefix]; known {
			return allowed, true
		}
	}
	return nil, false
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

// Style: no init functions; no time.Sleep in tests outside a synctest bubble; every package says what it is.
func TestStyleRules(t *testing.T) {
	documented := map[string]bool{}
	for path, file := range goFiles(t) {
		dir := filepath.Dir(path)
		documented[dir] = documented[dir] || file.Doc != nil
		bubble := strings.Contains(source(t, path), "synctest.") || strings.Contains(source(t, path), "ubble(t")
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s has an init function", path)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && n.Sel.Name == "Sleep" &&
					strings.HasSuffix(path, "_test.go") && !bubble {
					t.Errorf("%s sleeps in a test", path)
				}
			}
			return true
		})
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

// The wire's failure codes mirror execution.Code number by number and name by name.
func TestFailureCodesMirrorTheWire(t *testing.T) {
	values := pb.FailureCode(0).Descriptor().Values()
	if got, want := values.Len(), len(execution.Codes())+1; got != want {
		t.Errorf("the wire has %d codes, execution %d", got-1, want-1)
	}
	for _, code := range execution.Codes() {
		value := values.ByNumber(protoreflect.EnumNumber(code))
		if value == nil || string(value.Name()) != "FAILURE_CODE_"+strings.ToUpper(code.String()) {
			t.Errorf("code %d (%v) has no twin on the wire", code, code)
		}
	}
}

// Every failure code and every oneof case of the control messages has a row in the contract.
func TestContractHasEveryRow(t *testing.T) {
	runtime := source(t, "agent-contract/inner/execution-runtime.md")
	for _, code := range execution.Codes() {
		if !regexp.MustCompile(`(?m)^\| [a-z_, ]*\b` + code.String() + `\b`).MatchString(runtime) {
			t.Errorf("execution-runtime.md has no row for code %v", code)
		}
	}
	wire := source(t, "agent-contract/inner/edge-node-runtime-wire.md")
	for _, message := range []protoreflect.ProtoMessage{&pb.NodeControl{}, &pb.EdgeControl{}, &pb.WorkOpen{}} {
		fields := message.ProtoReflect().Descriptor().Oneofs().Get(0).Fields()
		for i := range fields.Len() {
			if name := string(fields.Get(i).Name()); !strings.Contains(wire, "| `"+name+"` |") {
				t.Errorf("edge-node-runtime-wire.md has no row for %s of %T", name, message)
			}
		}
	}
}

// What was removed stays reserved, by number and by name.
func TestRemovedValuesStayReserved(t *testing.T) {
	for _, removed := range []struct {
		enum   protoreflect.EnumDescriptor
		number protoreflect.EnumNumber
		name   protoreflect.Name
	}{
		{pb.CancelType(0).Descriptor(), 2, "TERMINATE_SESSION"},
		{pb.CommandType(0).Descriptor(), 3, "USAGE_STATUS"},
		{pb.CommandType(0).Descriptor(), 4, "SESSION_LIST"},
	} {
		if !removed.enum.ReservedRanges().Has(removed.number) || !removed.enum.ReservedNames().Has(removed.name) {
			t.Errorf("%s: %d %s isn't reserved", removed.enum.Name(), removed.number, removed.name)
		}
	}
	if !(&pb.ProviderTunnelRequest{}).ProtoReflect().Descriptor().ReservedRanges().Has(1) {
		t.Error("field 1 of ProviderTunnelRequest isn't reserved")
	}
}

// Commands that the documents show exist: each make target, each path in the map of the repository.
func TestDocumentsNameWhatExists(t *testing.T) {
	targets := source(t, "Makefile")
	for _, doc := range []string{"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"} {
		text := source(t, doc)
		for _, m := range regexp.MustCompile("`make ([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			if !strings.Contains(targets, "\n"+m[1]+":") {
				t.Errorf("%s names `make %s`, which isn't a target", doc, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`\]\(([A-Za-z0-9_./-]+)\)`).FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(m[1]); err != nil {
				t.Errorf("%s links to %s: %v", doc, m[1], err)
			}
		}
	}
}

// casesDue are the cases that this version is about: each has a row in CASES.md.
var casesDue = strings.Fields(`
	ST-01 ST-02 ST-03 ST-04 ST-06 ST-07 ST-10 ST-11 ST-12 ST-13 ST-16 ST-17 ST-18 ST-20 ST-21 ST-23 ST-24 ST-26 ST-28
	ST-29 ST-30 HT-01 HT-03 HT-05 HT-08 HT-09 HT-10 HT-12 HT-13 HT-14 HT-15 HT-16 CA-01 CA-02 CA-04 CA-05 CA-07
	CF-01 CF-02 CF-03 CF-05 TU-01 TU-02 TU-04 TU-05 TU-06 TU-08 TU-10 TU-11 TU-13 TU-16 TU-17 TU-18 TU-19 TU-20 TU-23
	TU-24 TU-26 TU-27 TU-28 TU-30 CR-03 CR-07 CR-09 OL-01 OL-02 OL-03 OL-07 OL-08 OL-09 OL-10 CP-10 CP-18 EV-01 EV-02
	TL-01 TL-03 TL-04 TL-06 TL-08 E1 E2 E3 E4 E5 E6 E7 E8 E9 E10 E11 E12 E13 E14 E15 E16 E17 E18 E19 E20 E21 E22 E23 E24 E25 E26 E27 E28 E29 E30 E31 E32 E33 E34 E35 E36 E37 E38 E39 E40 E41 E42 E43 E44 E45 E46`)

// protocolTestsDue are the rows of the protocol's list of tests that must exist before their code.
var protocolTestsDue = []string{
	"place confirmed behind a slow caller", "cancel overtakes the request", "ReadyAck races the first work", "gate deadlock",
	"Close destroys data", "multiplexer before authentication", "background runs and reconnect", "busy spins",
	"never left the edge", "node that never confirms", "duplicate rule", "request body", "timers without an owner",
	"refresh races", "time through the queue", "places shared by pools", "unbounded yamux calls", "net/http replays a POST",
}

// CASES.md has every case that is due, names tests that exist, and says of the others what they wait for.
func TestCasesNameTestsThatExist(t *testing.T) {
	tests := testFunctions(t)
	seen, header := map[string]bool{}, []string(nil)
	for line := range strings.Lines(source(t, "agent-contract/CASES.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		held, remark := slices.Index(header, "held by"), slices.Index(header, "remark")
		switch {
		case !strings.HasPrefix(line, "|"):
			header = nil
			continue
		case header == nil:
			header = cells
			continue
		case strings.HasPrefix(cells[0], "---"):
			continue
		case held < 0 || remark < 0 || len(cells) != len(header):
			t.Errorf("CASES.md: a row of %d cells under %q: %s", len(cells), header, line)
			continue
		}
		seen[cells[0]] = true
		if cells[held] == "—" {
			if cells[remark] == "" {
				t.Errorf("CASES.md: %s has no test and doesn't say why", cells[0])
			}
			continue
		}
		for _, name := range namedTests(t, cells[held]) {
			if !tests[name] {
				t.Errorf("CASES.md: %s names %s, which doesn't exist", cells[0], name)
			}
		}
	}
	for _, id := range append(casesDue, protocolTestsDue...) {
		if !seen[id] {
			t.Errorf("CASES.md has no row for %s", id)
		}
	}
}

// namedTests reads "`package`: TestOne, TestTwo; `other`: TestThree".
func namedTests(t *testing.T, cell string) (names []string) {
	t.Helper()
	for _, part := range strings.Split(cell, ";") {
		m := regexp.MustCompile("^`([a-z0-9/_-]+)`: ([A-Za-z0-9_, ]+)$").FindStringSubmatch(strings.TrimSpace(part))
		if m == nil {
			t.Errorf("%q isn't `package`: TestOne, TestTwo", part)
			continue
		}
		for _, name := range strings.Split(m[2], ",") {
			names = append(names, m[1]+"."+strings.TrimSpace(name))
		}
	}
	return names
}

// testFunctions are all tests and fuzz targets, as package.Name.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for path, file := range goFiles(t) {
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasSuffix(path, "_test.go") && regexp.MustCompile("^(Test|Fuzz)").MatchString(f.Name.Name) {
				found[filepath.ToSlash(filepath.Dir(path))+"."+f.Name.Name] = true
			}
		}
	}
	return found
}

func source(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// goFiles parses every Go file of the main module that isn't generated.
func goFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, set := map[string]*ast.File{}, token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			_, other := os.Stat(filepath.Join(path, "go.mod"))
			if path != "." && (other == nil || strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go") {
			return nil
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		files[path] = file
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
