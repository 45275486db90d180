package apiservices

import (
	"context"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Connect returns a client for the kinds that the operator writes inside a cluster. The kinds are known in advance, so
// the client needs no discovery, which is slow while an extension API server does not respond.
func Connect(config *rest.Config) (client.Client, error) {
	kinds := runtime.NewScheme()
	utilruntime.Must(scheme.AddToScheme(kinds))
	utilruntime.Must(apiregistrationv1.AddToScheme(kinds))
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Namespace"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	for kind, scope := range map[string]meta.RESTScope{
		"ClusterRoleBinding": meta.RESTScopeRoot, "Role": meta.RESTScopeNamespace, "RoleBinding": meta.RESTScopeNamespace,
	} {
		mapper.Add(rbacv1.SchemeGroupVersion.WithKind(kind), scope)
	}
	mapper.Add(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"), meta.RESTScopeRoot)
	return client.New(config, client.Options{Scheme: kinds, Mapper: mapper})
}

// Discover returns an error unless the API server at config serves the group version at path.
func Discover(ctx context.Context, config *rest.Config, path string) error {
	requests, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
	if err != nil {
		return err
	}
	response, err := requests.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, io.LimitReader(response.Body, discoveryLimit)); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return nil
}

const discoveryLimit = 4 << 20 // bytes
