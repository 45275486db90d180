package main

import (
	"fmt"
	"go/ast"
	"go/printer"
	"go/token"
	"math"
	"slices"
	"strings"
)

// metricOptions are the types of k8s.io/component-base/metrics that describe a metric, with the metric's type.
var metricOptions = map[string]string{
	"CounterOpts": "counter", "GaugeOpts": "gauge", "HistogramOpts": "histogram", "SummaryOpts": "summary",
	"TimingHistogramOpts": "timing histogram",
}

// addMetrics adds the metrics that a file of a minor version describes: composite literals of metricOptions, and calls
// of NewDesc.
func (i inventory) addMetrics(file *ast.File, constants map[string]string, minor int) {
	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		i.addDescription(call, constants)
		for _, argument := range call.Args {
			kind, literal := metricLiteral(argument)
			if literal == nil {
				continue
			}
			fields := fieldValues(literal, constants)
			name := joined(fields["Namespace"], fields["Subsystem"], fields["Name"])
			if fields["Name"] != "" {
				value := fmt.Sprintf("%s, %s, labels [%s]", kind, stability(fields), strings.Join(labels(call, constants), " "))
				if buckets := expressionOf(literal, "Buckets"); buckets != "" {
					value += ", buckets " + buckets
				}
				if since := fields["DeprecatedVersion"]; since != "" {
					value += ", deprecated since " + since
					if minor >= hiddenMinor(since, stability(fields)) {
						value += ", hidden"
					}
				}
				if help := fields["Help"]; help != "" {
					value += ", help: " + help
				}
				i.set(sectionMetrics, name, value)
			}
		}
		return true
	})
}

// hiddenMinor returns the minor version from which a metric that is deprecated since a version is no longer exported by
// default. It mirrors shouldHide of k8s.io/component-base/metrics.
func hiddenMinor(since, stability string) int {
	var major, minor int
	if _, err := fmt.Sscanf(since, "%d.%d", &major, &minor); err != nil {
		return math.MaxInt
	}
	return minor + map[string]int{"STABLE": 3, "BETA": 1}[stability]
}

// addDescription adds the metric of a call of NewDesc, whose arguments are the name, the help, the labels, the constant
// labels, the stability and the version of the deprecation.
func (i inventory) addDescription(call *ast.CallExpr, constants map[string]string) {
	if calledName(call) != "NewDesc" || len(call.Args) < 5 {
		return
	}
	name, ok := stringValue(call.Args[0], constants)
	level, isConstant := call.Args[4].(*ast.SelectorExpr)
	if ok && isConstant {
		i.set(sectionMetrics, name, fmt.Sprintf("description, %s, labels [%s]", level.Sel.Name,
			strings.Join(labels(&ast.CallExpr{Args: call.Args[2:3]}, constants), " ")))
	}
}

// expressionOf returns the source of the value of a field, or "" if the literal has no such field.
func expressionOf(literal *ast.CompositeLit, field string) string {
	for _, element := range literal.Elts {
		value, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		if key, ok := value.Key.(*ast.Ident); ok && key.Name == field {
			var source strings.Builder
			if err := printer.Fprint(&source, token.NewFileSet(), value.Value); err != nil {
				return ""
			}
			return normalized(source.String())
		}
	}
	return ""
}

// metricLiteral returns the literal in an expression such as &metrics.CounterOpts{}, and the type of the metric.
func metricLiteral(expression ast.Expr) (string, *ast.CompositeLit) {
	if address, ok := expression.(*ast.UnaryExpr); ok {
		expression = address.X
	}
	literal, ok := expression.(*ast.CompositeLit)
	if !ok {
		return "", nil
	}
	name := ""
	switch t := literal.Type.(type) {
	case *ast.SelectorExpr:
		name = t.Sel.Name
	case *ast.Ident:
		name = t.Name
	}
	if kind := metricOptions[name]; kind != "" {
		return kind, literal
	}
	return "", nil
}

// fieldValues returns the fields of a literal whose values are strings, and the name of the constant in the field of
// the stability.
func fieldValues(literal *ast.CompositeLit, constants map[string]string) map[string]string {
	values := map[string]string{}
	for _, element := range literal.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		key, ok := field.Key.(*ast.Ident)
		if !ok {
			continue
		}
		if selector, ok := field.Value.(*ast.SelectorExpr); ok {
			values[key.Name] = selector.Sel.Name
		} else if text, ok := stringValue(field.Value, constants); ok {
			values[key.Name] = text
		}
	}
	return values
}

func stability(fields map[string]string) string {
	if fields["StabilityLevel"] == "" {
		return "ALPHA"
	}
	return fields["StabilityLevel"]
}

// labels returns the labels of a metric: the strings in the call's argument that is a []string.
func labels(call *ast.CallExpr, constants map[string]string) []string {
	var names []string
	for _, argument := range call.Args {
		literal, ok := argument.(*ast.CompositeLit)
		if !ok {
			continue
		}
		if _, isList := literal.Type.(*ast.ArrayType); !isList {
			continue
		}
		for _, element := range literal.Elts {
			if text, ok := stringValue(element, constants); ok {
				names = append(names, text)
			}
		}
	}
	slices.Sort(names)
	return names
}

// joined returns the non-empty parts of a metric's name, joined as Prometheus does.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "_")
}
