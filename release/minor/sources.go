package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addSources adds the facts that are read from the sources of a minor version. source is the directory of
// k8s.io/kubernetes.
func (i inventory) addSources(minor int, source string, packages map[string]*sourcePackage) error {
	if err := i.addDependencies(filepath.Join(source, "go.mod")); err != nil {
		return err
	}
	if err := i.addResources(filepath.Join(source, "api", "discovery")); err != nil {
		return err
	}
	for _, p := range packages {
		files, err := p.parse()
		if err != nil {
			return err
		}
		constants := stringConstants(files)
		for _, file := range files {
			i.addHooks(file, constants)
			i.addMetrics(file, constants, minor)
			if p.ImportPath == "k8s.io/apiserver/pkg/server" {
				i.addFilters(file)
			}
		}
	}
	return nil
}

// requirement matches a required module in a go.mod. Libraries of Kubernetes have the version v0.0.0 there.
var requirement = regexp.MustCompile(`(?m)^\s+(\S+\.\S+/?\S*) (v\S+)`)

func (i inventory) addDependencies(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, match := range requirement.FindAllStringSubmatch(string(text), -1) {
		i.set(sectionDependencies, match[1], match[2])
	}
	return nil
}

// addResources reads the discovery documents that Kubernetes keeps in its repository; they have all versions, also
// those that are not served by default.
func (i inventory) addResources(directory string) error {
	paths, err := filepath.Glob(filepath.Join(directory, "api*__v*.json"))
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("%s has no discovery documents", directory)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var list metav1.APIResourceList
		if err := json.Unmarshal(text, &list); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, resource := range list.APIResources {
			resource.StorageVersionHash = ""
			description, err := json.Marshal(resource)
			if err != nil {
				return err
			}
			i.set(sectionResources, list.GroupVersion+" "+resource.Name, string(description))
		}
	}
	return nil
}

func (p *sourcePackage) parse() ([]*ast.File, error) {
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// stringConstants returns the values of the constants of a package that are string literals.
func stringConstants(files []*ast.File) map[string]string {
	constants := map[string]string{}
	for _, file := range files {
		for _, declaration := range file.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST {
				continue
			}
			for _, specification := range general.Specs {
				value, _ := specification.(*ast.ValueSpec)
				for n, name := range value.Names {
					if n < len(value.Values) {
						if text, ok := stringValue(value.Values[n], nil); ok {
							constants[name.Name] = text
						}
					}
				}
			}
		}
	}
	return constants
}

// stringValue returns the value of an expression that is a string literal, a constant, or a sum of these.
func stringValue(expression ast.Expr, constants map[string]string) (string, bool) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			return strings.Trim(e.Value, "`\""), true
		}
	case *ast.Ident:
		text, ok := constants[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, leftOK := stringValue(e.X, constants)
		right, rightOK := stringValue(e.Y, constants)
		return left + right, leftOK && rightOK && e.Op == token.ADD
	}
	return "", false
}

// hookFunctions are the functions whose first argument is the name of a hook or health check.
var hookFunctions = map[string]string{
	"AddPostStartHook": "hook", "AddPostStartHookOrDie": "hook", "AddPreShutdownHook": "hook before the shutdown",
	"AddPreShutdownHookOrDie": "hook before the shutdown", "NamedCheck": "check",
}

func (i inventory) addHooks(file *ast.File, constants map[string]string) {
	ast.Inspect(file, func(node ast.Node) bool {
		if call, ok := node.(*ast.CallExpr); ok && len(call.Args) > 0 {
			if kind := hookFunctions[calledName(call)]; kind != "" {
				if name, ok := stringValue(call.Args[0], constants); ok {
					i.set(sectionHooks, name, kind)
				}
			}
		}
		return true
	})
}

// calledName returns the name of the called function or method, without its package or receiver.
func calledName(call *ast.CallExpr) string {
	switch function := call.Fun.(type) {
	case *ast.SelectorExpr:
		return function.Sel.Name
	case *ast.Ident:
		return function.Name
	}
	return ""
}

// addFilters adds the filters of DefaultBuildHandlerChain, which lists the innermost first.
func (i inventory) addFilters(file *ast.File) {
	inside := "none"
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || function.Name.Name != "DefaultBuildHandlerChain" {
			continue
		}
		ast.Inspect(function, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				if name := calledName(call); strings.HasPrefix(name, "With") {
					i.set(sectionFilters, name, "around "+inside)
					inside = name
				}
			}
			return true
		})
	}
}
