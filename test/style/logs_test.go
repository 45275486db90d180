package style

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// logMethods are the methods of logr.Logger and slog.Logger, and the structured functions of klog, that write messages.
var logMethods = map[string]bool{
	"Info": true, "InfoS": true, "Error": true, "ErrorS": true, "Warn": true, "Debug": true,
}

// notLogs are functions with the names of methods of loggers.
var notLogs = map[string]bool{"http.Error": true, "status.Error": true}

// sentence matches log messages: sentences that open with a capital, as in client-go, and have no full stop.
var sentence = regexp.MustCompile(`^[A-Z](?s:.*)[^.]$`)

// TestLogMessages checks the case of log messages outside of tests.
func TestLogMessages(t *testing.T) {
	seen := 0
	inspect(t, func(file *source, n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok || file.isTest() || len(call.Args) == 0 {
			return
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !logMethods[method.Sel.Name] || notLogs[selector(call)] {
			return
		}
		message := opening(call.Args[0])
		if message == "" && len(call.Args) > 1 && strings.HasPrefix(method.Sel.Name, "Error") { // the error comes first
			message = opening(call.Args[1])
		}
		if message == "" {
			return
		}
		seen++
		if !sentence.MatchString(message) {
			t.Errorf("%s: %q: log messages start with a capital and have no full stop", file.at(call), message)
		}
	})
	if seen < 100 {
		t.Errorf("only %d log messages found", seen)
	}
}
