package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/controllers/autoregister"
)

// extensions follows the APIServices of extension API servers.
type extensions struct {
	documents *remote.Controller
	resolver  webhook.ServiceResolver
}

func (s *Server) composeExtensions() (err error) {
	s.extensions.resolver = s.resolver
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

// observe delivers the state of an APIService to the documents of extension API servers.
func (e *extensions) observe(name string, object runtime.Object) {
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
		observed.Backend = newExtensionBackend(e.resolver, service)
	}
	e.documents.Observe(name, observed)
}

// extensionBackend sends requests to the server of an APIService.
type extensionBackend struct {
	resolver webhook.ServiceResolver
	service  *apiregistration.APIService
	client   *http.Client
}

func newExtensionBackend(resolver webhook.ServiceResolver, service *apiregistration.APIService) *extensionBackend {
	reference := service.Spec.Service
	config := &tls.Config{
		ServerName: reference.Name + "." + reference.Namespace + ".svc", InsecureSkipVerify: service.Spec.InsecureSkipTLSVerify,
	}
	if len(service.Spec.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(service.Spec.CABundle)
	}
	return &extensionBackend{resolver, service, &http.Client{Transport: &http.Transport{TLSClientConfig: config}}}
}

// Fetch implements remote.Backend.
func (b *extensionBackend) Fetch(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	reference := b.service.Spec.Service
	location, err := b.resolver.ResolveEndpoint(reference.Namespace, reference.Name, reference.Port)
	if err != nil {
		return nil, err
	}
	location.Path = path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, header)
	request.Header.Set("X-Remote-User", "system:kube-aggregator")
	return b.client.Do(request)
}

// forward serves a document of an extension API server.
func (e *extensions) forward(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) {
	backend, ok := e.documents.Backend(gv)
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	response, err := backend.Fetch(r.Context(), r.URL.Path, r.Header)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer func() { _ = response.Body.Close() }()
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body)
}
