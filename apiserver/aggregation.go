package apiserver

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"

	"quorate.dev/apiserver/aggregator"
	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/controllers/availability"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/startup"
)

// aggregation has the components that handle extension API servers.
type aggregation struct {
	proxy        *aggregator.Aggregator
	documents    *remote.Controller
	availability *availability.Controller
}

func (s *cluster) composeAggregation() (a aggregation, err error) {
	options := aggregator.Options{
		Resolver: s.resolver, RejectRedirects: s.config.API.RejectForwardingRedirects,
		Dial: s.egress.Cluster, MaxRequestsInFlight: s.maxDelegated(), Unknown: router.Incomplete{},
		Rejected: s.requests.Undelegated, Inspect: s.tracing.inspector(aggregator.Certificates(s.metrics)),
	}
	if c := s.config.API; c.ProxyClientCertFile != "" && c.ProxyClientKeyFile != "" {
		if options.Certificate, err = aggregator.NewCertificate(c.ProxyClientCertFile, c.ProxyClientKeyFile); err != nil {
			return a, err
		}
		s.auth.reload = append(s.auth.reload, options.Certificate)
	}
	a.proxy = aggregator.New(options)
	a.availability = availability.New(availability.Options{
		Objects: s.objects.Named("apiservice-availability"), Backend: func(name string) *aggregator.Backend {
			return a.proxy.Table().Get(name)
		},
		Services:       s.informers.Core().V1().Services().Lister(),
		EndpointSlices: s.informers.Discovery().V1().EndpointSlices().Lister(),
		Follow:         s.objects.Follow,
		Clock:          s.clock, Logger: s.logger.WithName("availability"), Registerer: s.metrics,
	})
	a.documents, err = remote.New(s.clock, s.logger.WithName("aggregator"))
	return a, err
}

// maxDelegated returns the limit of requests in flight to each extension API server, which is the limit for this
// server's own requests. 0 means no limit.
func (s *cluster) maxDelegated() int {
	reading, mutating := s.config.Limits.MaxRequestsInFlight, s.config.Limits.MaxMutatingRequestsInFlight
	if reading == 0 || mutating == 0 {
		return 0
	}
	return reading + mutating
}

// runDiscovery downloads discovery documents until ctx ends. The hook is done when the discovery of every extension API
// server has been requested.
func (a *aggregation) runDiscovery(ctx context.Context, done func()) error {
	return startup.Together(ctx, func(ctx context.Context) error {
		a.documents.RunDiscovery(ctx)
		return nil
	}, func(ctx context.Context) error {
		select {
		case <-a.documents.Completed():
			done()
		case <-ctx.Done():
		}
		return nil
	})
}

// runAvailability checks the availability of extension API servers until ctx ends. The hook is done immediately.
func (a *aggregation) runAvailability(ctx context.Context, done func()) error {
	done()
	return a.availability.Run(ctx)
}

// observe passes the state of an APIService to all components, first to the proxy, which the others use.
func (a *aggregation) observe(name string, object runtime.Object) {
	backend := a.proxy.Set(name, object)
	a.availability.SetAPIService(name, object)
	service, _ := object.(*apiregistration.APIService)
	if service == nil {
		a.documents.Observe(name, nil)
		return
	}
	observed := &remote.APIService{
		GroupVersion: schema.GroupVersion{Group: service.Spec.Group, Version: service.Spec.Version},
		Priority:     priority.Priority{Group: service.Spec.GroupPriorityMinimum, Version: service.Spec.VersionPriority},
		Managed:      autoregister.IsManaged(service),
	}
	if backend != nil {
		observed.Server = remote.Server{
			Namespace: backend.Service.Namespace, Name: backend.Service.Name, Port: backend.Service.Port,
			Trust: fmt.Sprint(service.Spec.InsecureSkipTLSVerify, string(service.Spec.CABundle)),
		}
		observed.Backend, observed.Available = backend, backend.Available
	}
	a.documents.Observe(name, observed)
}

// known notifies the components that all APIServices that existed at the start have been observed.
func (a *aggregation) known() {
	a.proxy.Known()
	a.documents.Known()
}

// forward sends a request for a document of a group version to the extension API server of that version.
func (a *aggregation) forward(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) {
	backend := a.proxy.Table().Lookup(gv)
	if backend == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	backend.ServeHTTP(w, r)
}
