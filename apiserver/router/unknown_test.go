package router

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// served answers what the router finds.
type served struct{}

func (served) Serve(w http.ResponseWriter, _ *http.Request, match resource.Match) {
	_, _ = w.Write([]byte(match.Plural))
}

func (served) ServeHTTP(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("discovery")) }

// TestUnknownResources: the router looks again after it has awaited definitions, and never answers 404 if it could not.
func TestUnknownResources(t *testing.T) {
	thing := &resource.Definition{
		Source: resource.Custom, Group: "example.com", Plural: "things", Versions: []*resource.Version{{Name: "v1"}},
	}
	builtIn := &resource.Definition{
		Group: "apps.k8s.io", Plural: "deployments", Versions: []*resource.Version{{Name: "v1"}},
	}
	for _, test := range []struct {
		name, path  string
		await       func(*resource.CatalogHolder) error // nil: must not be called
		code        int
		contains    string
		isDiscovery bool
	}{
		{"arrives", "/apis/example.com/v1/things", func(h *resource.CatalogHolder) error {
			h.Publish(resource.NewCatalog(builtIn, thing))
			return nil
		}, 200, "things", false},
		{
			"does not exist", "/apis/example.com/v1/things", func(*resource.CatalogHolder) error { return nil }, 404,
			"404 page not found", false,
		},
		{
			"cannot be known", "/apis/example.com/v1/things",
			func(*resource.CatalogHolder) error { return errors.New("no quorum") }, 503, "please try again", false,
		},
		{
			"group cannot be known", "/apis/example.com", func(*resource.CatalogHolder) error { return errors.New("no quorum") },
			503, "please try again", true,
		},
		{
			"version cannot be known", "/apis/example.com/v1",
			func(*resource.CatalogHolder) error { return errors.New("no quorum") }, 503, "please try again", true,
		},
		{
			"group is confirmed", "/apis/example.com", func(*resource.CatalogHolder) error { return nil }, 200,
			"discovery", true,
		},
		{"built-in group", "/apis/apps.k8s.io/v1/things", nil, 404, "NotFound", false},
		{"not a domain", "/apis/example/v1/things", nil, 404, "404 page not found", false},
		{"served", "/apis/apps.k8s.io/v1/deployments", nil, 200, "deployments", false},
		{"list of groups", "/apis", nil, 200, "discovery", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			holder := &resource.CatalogHolder{}
			holder.Publish(resource.NewCatalog(builtIn))
			r := New(Options{
				Catalog: holder, Resources: served{}, Discovery: served{}, Complete: func() bool { return true },
				Await: func(context.Context) error {
					if test.await == nil {
						t.Error("awaits definitions")
						return nil
					}
					return test.await(holder)
				},
			})
			w := httptest.NewRecorder()
			q := httptest.NewRequest(http.MethodGet, test.path, nil)
			record := request.Begin(q, time.Now(), testr.New(t))
			segments := strings.Split(test.path, "/")
			if record.Info.IsResourceRequest = !test.isDiscovery; !test.isDiscovery {
				record.Info.APIPrefix, record.Info.APIGroup, record.Info.APIVersion = segments[1], segments[2], segments[3]
				record.Info.Resource = segments[4]
			}
			r.ServeHTTP(w, q.WithContext(record))
			if w.Code != test.code || !strings.Contains(w.Body.String(), test.contains) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, test.code, test.contains)
			}
		})
	}
}
