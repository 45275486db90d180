package apiserver

import (
	"fmt"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	builtininformers "quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceresolver"
	"quorate.dev/apiserver/serving"
)

// local returns the configuration of a client-go client that calls the server's handler directly, for upstream's controllers
// and admission plugins. Requests that are sent before the handler is set wait for it.
func (s *Server) local(userAgent string) *rest.Config {
	return &rest.Config{
		Host: "https://localhost", QPS: -1, UserAgent: userAgent, WrapTransport: s.tracing.wrapper(),
		Transport: serving.Local{
			Handler: http.HandlerFunc(s.serveLocal),
			User: &user.DefaultInfo{
				Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup},
			},
		},
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
}

// serveLocal waits for the handler: upstream's admission plugins call this server as soon as they are created.
func (s *Server) serveLocal(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.composed:
		s.handler.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// userAgent identifies the server's own requests and writes.
func (s *Server) userAgent() string {
	return s.mode.name + "/" + Version(s.config).GitVersion
}

// composeInformers creates the clients and the informers for upstream's controllers and admission plugins.
func (s *Server) composeInformers(publisher *resource.CatalogHolder) (err error) {
	config := s.local(s.userAgent())
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("prepare the local client: %w", err)
	}
	if s.dynamic, err = dynamic.NewForConfig(rest.CopyConfig(config)); err != nil {
		return fmt.Errorf("prepare the local dynamic client: %w", err)
	}
	options := s.informerOptions(s.client, publisher)
	s.informers = builtininformers.New(options)
	s.parameters = builtininformers.Dynamic(s.informers, options)
	s.resolver, err = serviceresolver.New(s.informers, s.config.API.AggregatorRouting)
	return err
}

func (s *Server) informerOptions(client kubernetes.Interface, publisher *resource.CatalogHolder) builtininformers.Options {
	return builtininformers.Options{
		Client: client, Source: s.registry.Client(), Catalog: publisher, Logger: s.logger.WithName("informers"),
	}
}
