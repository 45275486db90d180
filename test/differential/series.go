package differential

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Series returns the type, name and labels of each series in /metrics whose name begins with any of the prefixes,
// sorted.
func (s *Server) Series(ctx context.Context, prefixes ...string) (_ []string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Origin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := s.admin.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("parse the metrics of %s: %w", s.Name, err)
	}
	all := map[string]bool{}
	for name, family := range families {
		if !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		for _, metric := range family.Metric {
			labels := make([]string, len(metric.Label))
			for i, label := range metric.Label {
				labels[i] = fmt.Sprintf("%s=%q", label.GetName(), label.GetValue())
			}
			slices.Sort(labels)
			all[fmt.Sprintf("%s %s{%s}", strings.ToLower(family.GetType().String()), name, strings.Join(labels, ","))] = true
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}
