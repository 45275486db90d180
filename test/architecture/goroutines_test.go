package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Reasons why a goroutine may be started without the package panics. A panic in it ends the process.
const (
	// The panics of the goroutine are caught in the function that it calls.
	caught = "its panics are caught"
	// The goroutine waits, closes, copies bytes or cancels, and handles no object.
	simple = "it handles no object"
	// The state would be inconsistent: the process must end and start again.
	consistent = "a panic leaves inconsistent state, so that the process must end"
	// A command that a user runs, and that reports the panic by ending.
	command = "it is part of a command that a user runs"
	// Upstream's code, which handles its panics with util/runtime (reportUpstreamPanics).
	upstream = "upstream handles its panics"
	// Each unit of work is passed to panics.Catch; the loop around it handles no object.
	perObject = "each object is handled with panics.Catch"
	// Packages that only tests use.
	inTest = "it is part of a test"
)

// goroutines are the functions with go statements, or with calls of a method named Go, such as the methods of
// sync.WaitGroup and errgroup.Group, by file. A new goroutine uses panics.Group, panics.Reporter or
// panics.Catch, or has a reason here.
var goroutines = map[string]map[string]string{
	"apiserver/aggregator/remote/poll.go":                {"run": perObject},
	"apiserver/audit/webhook.go":                         {"Run": simple},
	"apiserver/authentication/jwt/jwttest/signer.go":     {"StartSigner": inTest},
	"apiserver/authentication/jwt/reload.go":             {"replace": simple},
	"apiserver/builtin/builtintest/builtintest.go":       {"NewServerOn": inTest},
	"apiserver/builtin/builtintest/etcd.go":              {"Watch": inTest},
	"apiserver/builtin/builtintest/wait.go":              {"Background": inTest},
	"apiserver/controllers/availability/availability.go": {"work": perObject},
	"apiserver/controllers/availability/check.go":        {"probe": simple},
	"apiserver/controllers/leadership/leadership.go":     {"Run": upstream},
	"apiserver/controllers/term.go": {
		"startNamespace": upstream, "startCollector": upstream, "startServiceAccount": upstream, "startQuota": upstream,
		"startAggregation": upstream, "startPolicyStatus": upstream,
	},
	"apiserver/crd/conversion.go": {"call": caught},
	"apiserver/egress/egress.go":  {"bounded": simple},
	"apiserver/egress/egresstest/proxy.go": {
		"ServeConnect": inTest, "connect": inTest, "ServeGRPC": inTest, "Proxy": inTest,
	},
	"apiserver/encryption/encryptiontest/plugin.go": {"Up": inTest},
	"apiserver/etcd/integrity.go":                   {"start": consistent, "compareData": consistent},
	"apiserver/etcd/peers.go":                       {"serve": simple},
	"apiserver/etcd/member.go":                      {"Start": consistent, "launch": caught, "Stop": simple},
	"apiserver/fairness.go":                         {"followFlows": simple},
	"apiserver/handlers/websocket.go":               {"serveWebSocket": simple},
	"apiserver/startup/hooks.go":                    {"Start": caught, "Released": simple},
	"apiserver/informers/informer.go":               {"Run": simple, "load": consistent},
	"apiserver/informers/registration.go":           {"start": perObject},
	"apiserver/server.go":                           {"Run": caught, "closeLast": simple},
	"apiserver/serviceip/addressrepair.go":          {"Run": simple},
	"apiserver/serviceip/sharedrange.go":            {"do": consistent},
	"apiserver/serving/local.go":                    {"RoundTrip": caught},
	"apiserver/serving/server.go":                   {"Serve": simple, "Shutdown": simple},
	"apiserver/serving/workers.go":                  {"ServeHTTP": caught},
	"apiserver/snapshot/snapshot.go":                {"download": simple},
	"apiserver/storage/features.go":                 {"CheckFeatures": simple},
	"apiserver/storage/handover.go":                 {"repeat": consistent, "untilClosed": simple},
	"apiserver/storage/metrics.go":                  {"Collect": simple},
	"apiserver/storage/revision.go":                 {"join": consistent},
	"apiserver/storage/space.go":                    {"Space": simple},
	"apiserver/stores/stores.go":                    {"Close": simple},
	"apiserver/storage/watch.go":                    {"watch": consistent},
	"apiserver/watchcache/converted.go":             {"begin": caught},
	"apiserver/watchcache/decrypt.go":               {"decrypt": consistent, "reread": consistent},
	"apiserver/watchcache/load.go":                  {"load": consistent},
	"apiserver/watchcache/stream.go":                {"Run": consistent, "jump": consistent},
	"plugin/forward.go":                             {"forward": command, "pass": command},
	"plugin/logs.go":                                {"logs": command},
	"plugin/overview/collect.go":                    {"read": command, "Sample": command},
	"plugin/replica/dial.go":                        {"Dial": simple, "connect": simple},
	"apiserver/command.go":                          {"Run": simple},
	"extension/move/objects.go":                     {"copyOnce": command, "deleteEach": command},
	"sandbox/inspect.go":                            {"printLogs": command},
	"sandbox/names/server.go":                       {"Run": simple},
	"sandbox/node/agent.go":                         {"Run": command},
	"sandbox/node/dispatch.go":                      {"dispatch": command},
	"sandbox/node/start.go":                         {"startUnit": simple, "probe": simple},
	"sandbox/process/process.go":                    {"NewSpawner": simple, "Start": simple},
	"sandbox/proxy/proxy.go":                        {"apply": simple, "accept": simple, "forward": simple},
	"sandbox/run.go":                                {"begin": command},
}

func TestGoroutinesHandlePanics(t *testing.T) {
	found := map[string]map[string]bool{}
	for _, file := range sourceFiles(t) {
		for _, name := range bare(t, file) {
			relative := strings.TrimPrefix(filepath.ToSlash(file), "../../")
			if found[relative] == nil {
				found[relative] = map[string]bool{}
			}
			found[relative][name] = true
			if goroutines[relative][name] == "" {
				t.Errorf("%s: %s starts a goroutine whose panic ends the process: use the package panics, or add a reason",
					relative, name)
			}
		}
	}
	for file, functions := range goroutines {
		for name := range functions {
			if !found[file][name] {
				t.Errorf("%s: %s starts no goroutine; remove it from the list", file, name)
			}
		}
	}
}

// sourceFiles returns the files of the product: without tests, tools and the package panics.
func sourceFiles(t *testing.T) (files []string) {
	t.Helper()
	for _, folder := range []string{"apiserver", "operator", "plugin", "extension", "sandbox", "terminal"} {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(file string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
				files = append(files, file)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// bare returns the functions of a file with go statements or calls of methods named Go.
func bare(t *testing.T, file string) (functions []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(function, func(node ast.Node) bool {
			if startsGoroutine(node) {
				functions = append(functions, function.Name.Name)
			}
			return true
		})
	}
	return functions
}

func startsGoroutine(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.GoStmt:
		return !catches(node)
	case *ast.CallExpr:
		method, ok := node.Fun.(*ast.SelectorExpr)
		return ok && method.Sel.Name == "Go" && !catches(node)
	}
	return false
}

// catches reports whether a function literal in a node calls panics.Catch.
func catches(node ast.Node) (found bool) {
	ast.Inspect(node, func(inner ast.Node) bool {
		if selector, ok := inner.(*ast.SelectorExpr); ok && selector.Sel.Name == "Catch" {
			name, ok := selector.X.(*ast.Ident)
			found = found || ok && name.Name == "panics"
		}
		return !found
	})
	return found
}
