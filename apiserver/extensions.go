package apiserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/aggregator"
	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/controllers/autoregister"
)

// extensions follows the APIServices of extension API servers.
type extensions struct {
	aggregator *aggregator.Aggregator
	documents  *remote.Controller
}

func (s *Server) composeExtensions() (err error) {
	s.extensions.aggregator = aggregator.New(aggregator.Options{
		Resolver: s.resolver, Logger: s.logger.WithName("aggregator"),
	})
	s.extensions.documents, err = remote.New(s.clock, s.logger.WithName("aggregator"))
	return err
}

// runDiscovery downloads discovery documents until ctx ends. The hook is done when discovery was requested from every
// extension API server.
func (e *extensions) runDiscovery(ctx context.Context, done func()) error {
	return together(ctx, func(ctx context.Context) error {
		e.documents.RunDiscovery(ctx)
		return nil
	}, func(ctx context.Context) error {
		select {
		case <-e.documents.Completed():
			done()
		case <-ctx.Done():
		}
		return nil
	})
}

// known marks all APIServices that existed at the start as observed.
func (e *extensions) known() {
	e.aggregator.Known()
	e.documents.Known()
}

// observe delivers the state of an APIService.
func (e *extensions) observe(name string, object runtime.Object) {
	e.aggregator.Set(name, object)
	service, _ := object.(*apiregistration.APIService)
	if service == nil {
		e.documents.Observe(name, nil)
		return
	}
	observed := &remote.APIService{
		GroupVersion: schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
		Priority:     priority.Priority{Group: service.Spec.GroupPriorityMinimum, Version: service.Spec.VersionPriority},
		Managed:      autoregister.IsManaged(service),
	}
	if reference := service.Spec.Service; reference != nil {
		observed.Server = remote.Server{
			Namespace: reference.Namespace, Name: reference.Name, Port: reference.Port,
			Trust: fmt.Sprint(service.Spec.InsecureSkipTLSVerify, string(service.Spec.CABundle)),
		}
		observed.Backend = extensionBackend{e.aggregator, observed.GroupVersion}
		observed.Available = apiregistration.IsAPIServiceConditionTrue(service, apiregistration.Available)
	}
	e.documents.Observe(name, observed)
}

// extensionBackend sends requests to the current server of a group version.
type extensionBackend struct {
	aggregator *aggregator.Aggregator
	gv         schema.GroupVersion
}

// Fetch implements remote.Backend.
func (b extensionBackend) Fetch(
	ctx context.Context, path string, header http.Header, as user.Info, limit int64,
) (*aggregator.Response, error) {
	backend, ok := b.aggregator.Table().Lookup(b.gv.Group, b.gv.Version)
	if !ok {
		return nil, fmt.Errorf("no APIService has a server of %s", b.gv)
	}
	return backend.Fetch(ctx, path, header, as, limit)
}

// forward serves a document of an extension API server.
func (e *extensions) forward(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) {
	const limit = 64 << 20
	backend := extensionBackend{e.aggregator, gv}
	response, err := backend.Fetch(r.Context(), r.URL.RequestURI(), r.Header, aggregator.OpenAPIUser, limit)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.Status)
	_, _ = w.Write(response.Body)
}
