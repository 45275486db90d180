package main

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
)

// metricOptions are the types of k8s.io/component-base/metrics that describe a metric, with the metric's type.
var metricOptions = map[string]string{
	"CounterOpts": "counter", "GaugeOpts": "gauge", "HistogramOpts": "histogram", "SummaryOpts": "summary",
	"TimingHistogramOpts": "timing histogram",
}

// addMetrics adds the metrics that a file describes: composite literals of metricOptions, and calls of NewDesc.
func (i inventory) addMetrics(file *ast.File, constants map[string]string) {
	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		for _, argument := range call.Args {
			kind, literal := metricLiteral(argument)
			if literal == nil {
				continue
			}
			fields := fieldValues(literal, constants)
			name := joined(fields["Namespace"], fields["Subsystem"], fields["Name"])
			if fields["Name"] != "" {
				i.set(sectionMetrics, name,
					fmt.Sprintf("%s, %s, labels [%s]", kind, stability(fields), strings.Join(labels(call, constants), " ")))
			}
		}
		return true
	})
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
