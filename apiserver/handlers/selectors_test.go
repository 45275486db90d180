package handlers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

func TestSelectorsAreBounded(t *testing.T) {
	same := func(name, value string) (string, string, error) { return name, value, nil }
	many := func(count int, term string) string {
		terms := make([]string, count)
		for i := range terms {
			terms[i] = fmt.Sprintf(term, i)
		}
		return strings.Join(terms, ",")
	}
	for _, test := range []struct {
		parameter, selector string
		refused             bool
	}{
		{"labelSelector", "", false},
		{"labelSelector", "a", false},
		{"labelSelector", many(maxRequirements, "!a%d"), false},
		{"labelSelector", many(maxRequirements+1, "!a%d"), true},
		{"labelSelector", "a in (" + many(maxSelectorValues, "v%d") + ")", false},
		{"labelSelector", "a in (" + many(maxSelectorValues, "v%d") + "),b=c", true},
		{"fieldSelector", many(maxRequirements, "metadata.name!=a%d"), false},
		{"fieldSelector", many(maxRequirements+1, "metadata.name!=a%d"), true},
	} {
		query := url.Values{test.parameter: {test.selector}}
		r := httptest.NewRequest(http.MethodGet, "/?"+query.Encode(), nil)
		target := resource.Target{Match: resource.Match{Version: &resource.Version{FieldLabel: same}}}
		c := &call{r: r, record: request.Begin(r, time.Now(), logr.Discard()), target: target}
		_, _, err := c.listOptions()
		if refused := apierrors.IsBadRequest(err); refused != test.refused || (err != nil) != test.refused {
			t.Errorf("%s of %d bytes: %v", test.parameter, len(test.selector), err)
		}
	}
}
