package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/native"
	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/host"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/startup"
	"quorate.dev/apiserver/transfer"
)

// extension is an extension API server, which serves some API groups to another cluster, its host.
type extension struct {
	*Server
	host *host.Cluster
	// lookup is nil if no authentication configuration is looked up in the host.
	lookup *host.Lookup
}

func (s *extension) definitions() ([]*resource.Definition, error) {
	return builtin.CustomResourceDefinitions(s.clock), nil
}

func (s *extension) composeBackground() (background, error) {
	return background{
		documents: remote.None{}, hosts: ownHosts(s.config.Serving),
		addresses: discovery.Addresses{Default: address(s.config.Serving)},
	}, nil
}

func (s *extension) guard(next router.ResourceHandler) router.ResourceHandler {
	return transfer.Guard{ResourceHandler: next, Registry: s.registry}
}

// addRoutes removes the documents that the host serves instead. Upstream's extension servers do not serve /api,
// either.
func (s *extension) addRoutes(r *router.Router) {
	r.Handle("/api", http.NotFoundHandler())
	r.Handle("/openapi/v3", chosenDocuments{s.schemas, s.config.Extension.Groups})
}

// composeClients connects to the host. Upstream's code reads the host's objects, and this server's own objects in the
// served groups.
func (s *extension) composeClients() (c clients, err error) {
	if s.host, err = host.Connect(host.Options{Config: s.config.Extension, UserAgent: s.userAgent()}); err != nil {
		return c, err
	}
	objects, err := dynamic.NewForConfig(s.loopback.config(s.userAgent(), "custom-resources"))
	if err != nil {
		return c, fmt.Errorf("prepare the local dynamic client: %w", err)
	}
	return clients{
		client: s.host.Client, dynamic: host.ByGroup(s.config.Extension.Groups, objects, s.host.Dynamic),
		informers: s.host.Informers, parameters: s.host.Informers,
		// As in upstream's extension servers, the resolver uses DNS.
		resolver: webhook.NewDefaultServiceResolver(),
	}, nil
}

// composeAuth composes authentication by the host's front proxy, client certificates and TokenReviews, and
// authorization by SubjectAccessReviews. Files in flags replace the values that the host publishes.
func (s *extension) composeAuth(ctx context.Context) (a *auth, err error) {
	a = &auth{}
	c, lookUp := s.config.Authentication, !s.config.Extension.SkipLookup
	options := authentication.Options{Anonymous: c.Anonymous, Clock: s.clock, Registerer: s.metrics}
	// clients and proxies are the authorities that are looked up in the host.
	var clients, proxies *authentication.Authority
	switch {
	case c.ClientCAFile != "":
		a.clients, err = a.authority(c.ClientCAFile)
	case lookUp:
		clients = a.lookedUp()
		a.clients = clients
	}
	if err != nil {
		return nil, err
	}
	if c.RequestHeaderCAFile == "" && lookUp {
		proxies = a.lookedUp()
	}
	if err := s.lookUp(ctx, clients, proxies); err != nil {
		return nil, err
	}
	if proxies != nil {
		a.proxy = s.lookup.FrontProxy
	} else if err := a.composeFrontProxy(withStandardHeaders(c)); err != nil {
		return nil, err
	}
	tokens, err := s.host.Tokens(s.config.TokenTTL())
	if err != nil {
		return nil, err
	}
	options.Clients, options.FrontProxy, options.Tokens = a.clients, a.proxy, []authenticator.Token{tokens}
	a.authenticator = authentication.New(options)
	a.authorizer, err = s.host.Authorizer(host.Authorization{
		AlwaysAllowPaths: s.config.Extension.AlwaysAllowPaths,
		AuthorizedTTL:    s.config.AuthorizedTTL(), UnauthorizedTTL: s.config.UnauthorizedTTL(),
	})
	return a, err
}

// withStandardHeaders sets the header names that upstream's extension servers assume. The header of UIDs has no
// default, because hosts before Kubernetes 1.33 forward it from their clients.
func withStandardHeaders(c config.Authentication) config.Authentication {
	for _, names := range []struct {
		of       *[]string
		standard string
	}{
		{&c.RequestHeaderUsername, "x-remote-user"},
		{&c.RequestHeaderGroup, "x-remote-group"},
		{&c.RequestHeaderExtraPrefix, "x-remote-extra-"},
	} {
		if len(*names.of) == 0 {
			*names.of = []string{names.standard}
		}
	}
	return c
}

// lookedUp returns an authority whose certificates the host publishes.
func (a *auth) lookedUp() *authentication.Authority {
	authority := authentication.NewEmptyAuthority()
	a.authorities = append(a.authorities, authority)
	return authority
}

// lookUp reads the authentication configuration that the host publishes. An authority is nil if a file provides it. A
// failure prevents the start unless --authentication-tolerate-lookup-failure is set; the hook host-authentication then
// reads the configuration later.
func (s *extension) lookUp(ctx context.Context, clients, proxies *authentication.Authority) error {
	if clients == nil && proxies == nil {
		return nil
	}
	s.lookup = s.host.Lookup(clients, proxies, s.logger.WithName("host-authentication"))
	err := s.lookup.Once(ctx)
	if err == nil {
		return nil
	}
	if !s.config.Extension.TolerateLookupFailure {
		return fmt.Errorf("look up the authentication configuration: %w", err)
	}
	s.logger.Error(err, "Failed to look up the authentication configuration; requests may be anonymous until it is read")
	return nil
}

// composeAdmission composes the host's webhooks and policies for the served groups. They do not apply to
// CustomResourceDefinitions, which are local administration.
func (s *extension) composeAdmission(chain *admission.Chain) error {
	options := s.pluginOptions()
	options.Selection.Of = plugins.OfExtensions
	options.Mapper = meta.FirstHitRESTMapper{MultiRESTMapper: meta.MultiRESTMapper{options.Mapper, s.host.Mapper}}
	made, err := plugins.New(options)
	if err != nil {
		return err
	}
	chain.Metrics = admission.NewMetrics(s.metrics, s.clock)
	for _, plugin := range made {
		switch {
		case plugin.Rules != nil:
			chain.Plugins = append(chain.Plugins, s.selectingPlugin(plugin, chosenRules{plugin.Rules, s.config.Extension}))
		case plugin.Upstream != nil:
			chain.Plugins = append(chain.Plugins, s.upstreamPlugin(plugin))
		default:
			chain.Plugins = append(chain.Plugins, s.namespaceLifecycle(&native.NamespaceLifecycle{
				Get: s.hostNamespace, Remote: true,
			}))
		}
	}
	chain.Plugins = append(chain.Plugins, native.ServedGroups{Groups: s.config.Extension.Groups}.Plugin())
	return nil
}

// chosenRules restricts the rules of the host's webhooks and policies to the groups that this server serves.
type chosenRules struct {
	admission.Rules
	groups config.Extension
}

// MaySelect implements admission.Rules.
func (r chosenRules) MaySelect(operation string, resource schema.GroupResource, subresource string) bool {
	return r.groups.Serves(resource.Group) && r.Rules.MaySelect(operation, resource, subresource)
}

// hostNamespace reads a namespace of the host. Only NotFound is an error of the client; any other error is internal.
func (s *extension) hostNamespace(ctx context.Context, name string) (metav1.Object, error) {
	namespace, err := s.host.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("read namespace %s of the host: %w", name, err))
	}
	return namespace, nil
}

// discoveryLife is the time for which the host's discovery is cached, as in kube-apiserver.
const discoveryLife = 30 * time.Second

// startUp returns the hooks of an extension server.
func (s *extension) startUp() startup.Sequence {
	list := append(append(s.stores.Hooks(), s.housekeeping()...),
		startup.Hook{Name: hookInformers, Check: true, Run: s.runInformers},
		startup.Hook{
			Name: "start-apiextensions-controllers", After: []string{hookStorage}, Check: true, Run: s.runDefinitions,
		},
		startup.Hook{Name: "crd-informer-synced", Check: true, Run: startup.Await(s.custom.Synced())},
		startup.Hook{Name: hookComplete, Run: s.completeCatalog},
		startup.Hook{Name: "host-discovery", Run: startup.Forever(s.resetDiscovery)},
	)
	if s.lookup != nil {
		list = append(list, startup.Hook{Name: "host-authentication", Run: func(ctx context.Context, _ func()) error {
			return s.lookup.Run(ctx)
		}})
	}
	return list
}

// runDefinitions runs the controller of custom resources. The hook is done when the custom resources that existed at
// the start are served.
func (s *extension) runDefinitions(ctx context.Context, done func()) error {
	return startup.Together(ctx, s.custom.Run, func(ctx context.Context) error {
		// await never returns an error.
		_ = startup.Await(s.complete)(ctx, nil)
		done()
		return nil
	})
}

// resetDiscovery makes the mapper read the host's discovery again on the next use after discoveryLife, until ctx ends.
func (s *extension) resetDiscovery(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(discoveryLife):
			s.host.Mapper.Reset()
		}
	}
}

// synced returns an error until the host's authentication configuration is known and its namespaces, webhooks
// and policies have been read once. It does not fail if the host becomes unavailable later, because cached decisions
// remain valid.
func (s *extension) synced(context.Context) error {
	if !s.config.Extension.TolerateLookupFailure && s.auth.proxy != nil && s.auth.proxy() == nil {
		return errors.New("the host has not published its authentication configuration")
	}
	now := make(chan struct{})
	// WaitForCacheSync does not wait if the channel is closed.
	close(now)
	var unsynced []reflect.Type
	for kind, synced := range s.informers.WaitForCacheSync(now) {
		if !synced {
			unsynced = append(unsynced, kind)
		}
	}
	if len(unsynced) > 0 {
		slices.SortFunc(unsynced, func(a, b reflect.Type) int { return cmp.Compare(a.String(), b.String()) })
		return fmt.Errorf("%d informers of the host have not synced: %v", len(unsynced), unsynced)
	}
	return nil
}
