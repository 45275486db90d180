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
	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/host"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/transfer"
)

// extension returns the parts of an extension API server, which serves some API groups to another cluster, its host.
func (s *Server) extension() mode {
	return mode{
		name:           "quorate-extension",
		clients:        s.composeHost,
		webhookClients: s.hostWebhookClients,
		auth:           s.composeDelegatedAuth,
		definitions: func(*resource.CatalogHolder) ([]*resource.Definition, error) {
			return builtin.CustomResourceDefinitions(s.clock), nil
		},
		serves:     s.isChosen,
		follow:     s.followOwnDefinitions,
		known:      func() []<-chan struct{} { return []<-chan struct{}{s.definitionsKnown()} },
		background: func() error { return nil },
		admission:  s.composeHostAdmission,
		guard: func(next router.ResourceHandler) router.ResourceHandler {
			return transfer.Guard{ResourceHandler: next, Registry: s.registry}
		},
		routes:    s.extensionRoutes,
		addresses: func() discovery.Addresses { return discovery.Addresses{Default: s.address()} },
		hosts:     s.ownHosts,
		startUp:   s.startUpExtension,
		synced:    s.checkHostSynced,
	}
}

// isChosen reports whether an API group is one of --extension-groups.
func (s *Server) isChosen(group string) bool {
	return slices.Contains(s.config.Extension.Groups, group)
}

// extensionRoutes removes what the host has instead. Upstream's extension servers have no /api either.
func (s *Server) extensionRoutes(r *router.Router) {
	r.Handle("/api", http.NotFoundHandler())
	r.Handle("/openapi/v3", chosenDocuments{s.schemas, s.config.Extension.Groups})
}

// composeHost connects to the host. Upstream's code sees the host's objects, and this server's own in the chosen groups.
func (s *Server) composeHost(*resource.CatalogHolder) (err error) {
	if s.host, err = host.Connect(host.Options{Config: s.config.Extension, UserAgent: s.userAgent()}); err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(s.local(s.userAgent()))
	if err != nil {
		return fmt.Errorf("prepare the local dynamic client: %w", err)
	}
	s.client = s.host.Client
	s.dynamic = host.ByGroup(s.config.Extension.Groups, objects, s.host.Dynamic)
	s.informers, s.parameters = s.host.Informers, s.host.Informers
	s.resolver = webhook.NewDefaultServiceResolver() // by DNS, like upstream's extension servers
	return nil
}

// composeDelegatedAuth composes authentication by the host's front proxy, client certificates and TokenReviews, and
// authorization by SubjectAccessReviews. Files given by flags take the place of what the host publishes.
func (s *Server) composeDelegatedAuth(ctx context.Context) (a *auth, err error) {
	a = &auth{}
	c, lookUp := s.config.Authentication, !s.config.Extension.SkipLookup
	options := authentication.Options{Anonymous: c.Anonymous, Clock: s.clock, Registerer: s.metrics}
	var clients, proxies *authentication.Authority // to be looked up
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

// withStandardHeaders sets the names of headers that an extension server of upstream assumes. The header of UIDs has
// none, because hosts before Kubernetes 1.33 pass it on from their clients.
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

// lookedUp returns an authority that the host publishes.
func (a *auth) lookedUp() *authentication.Authority {
	authority := authentication.NewEmptyAuthority()
	a.authorities = append(a.authorities, authority)
	return authority
}

// lookUp reads what the host publishes; nil authorities are given by files. A failure ends the start unless
// --authentication-tolerate-lookup-failure is set; the hook host-authentication reads it again.
func (s *Server) lookUp(ctx context.Context, clients, proxies *authentication.Authority) error {
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

// composeHostAdmission sets up the host's webhooks and policies for the chosen groups. Definitions of custom resources
// are local administration, which they do not concern.
func (s *Server) composeHostAdmission(chain *admission.Chain) error {
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
			adapted := admission.Upstream(plugin.Name, plugin.Upstream, s.catalogs.holder)
			rules := chosenRules{plugin.Rules, s.isChosen}
			chain.Plugins = append(chain.Plugins, adapted.Selecting(rules, s.catalogs.holder))
		case plugin.Upstream != nil:
			chain.Plugins = append(chain.Plugins, s.upstreamPlugin(plugin))
		default:
			chain.Plugins = append(chain.Plugins, s.namespaceLifecycle(s.hostNamespace))
		}
	}
	chain.Plugins = append(chain.Plugins, native.ServedGroups{Groups: s.config.Extension.Groups}.Plugin())
	return nil
}

// chosenRules narrows the rules of the host to the groups that it is served.
type chosenRules struct {
	admission.Rules
	isChosen func(group string) bool
}

// MaySelect implements admission.Rules.
func (r chosenRules) MaySelect(operation string, resource schema.GroupResource, subresource string) bool {
	return r.isChosen(resource.Group) && r.Rules.MaySelect(operation, resource, subresource)
}

// hostNamespace reads a namespace of the host. What the host refuses this server is not the client's error.
func (s *Server) hostNamespace(ctx context.Context, name string) (metav1.Object, error) {
	namespace, err := s.host.Client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, err
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("read namespace %s of the host: %w", name, err))
	}
	return namespace, nil
}

// discoveryLife is how long the host's discovery is kept, as in kube-apiserver.
const discoveryLife = 30 * time.Second

// startUpExtension returns everything that runs beside the request path of an extension server.
func (s *Server) startUpExtension() []hook {
	list := append(append(s.storageHooks(), s.encryptionHooks()...),
		hook{name: hookInformers, check: true, run: forever(s.informers.StartWithContext)},
		hook{name: "start-apiextensions-controllers", after: []string{hookStorage}, check: true, run: s.runDefinitions},
		hook{name: "crd-informer-synced", check: true, run: await(s.custom.Synced())},
		hook{name: hookComplete, run: s.completeCatalog},
		hook{name: "host-discovery", run: forever(s.resetDiscovery)},
	)
	if s.lookup != nil {
		list = append(list, hook{name: "host-authentication", run: func(ctx context.Context, _ func()) error {
			return s.lookup.Run(ctx)
		}})
	}
	return list
}

// runDefinitions serves custom resources. The hook is done when those that existed at the start are served.
func (s *Server) runDefinitions(ctx context.Context, done func()) error {
	return together(ctx, s.custom.Run, func(ctx context.Context) error {
		_ = await(s.complete)(ctx, nil) // it has no error
		done()
		return nil
	})
}

// resetDiscovery makes the mapper read the host's discovery again when it is next used.
func (s *Server) resetDiscovery(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.clock.After(discoveryLife):
			s.host.Mapper.Reset()
		}
	}
}

// checkHostSynced fails until the host's authentication configuration is known and its namespaces, webhooks and
// policies have been read once. It does not fail when the host becomes unavailable later: decisions that are cached
// remain valid.
func (s *Server) checkHostSynced(context.Context) error {
	if !s.config.Extension.TolerateLookupFailure && s.auth.proxy != nil && s.auth.proxy() == nil {
		return errors.New("the host has not published its authentication configuration")
	}
	now := make(chan struct{})
	close(now) // does not wait
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
