package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// newHosted returns a client of the simulated API inside the cluster.
func newHosted(t *testing.T) client.Client {
	t.Helper()
	return fake.NewClientBuilder().WithScheme(ownedtest.NewScheme(t)).
		WithTypeConverters(managedfields.NewDeducedTypeConverter()).
		WithStatusSubresource(&apiregistrationv1.APIService{}).Build()
}

func (c *cluster) address(name string) {
	pod := &corev1.Pod{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, pod))
	pod.Status.PodIP = "127.0.0.1"
	c.must(c.client.Status().Update(c.t.Context(), pod))
}

func (c *cluster) aggregate(entries []string) {
	object := c.get()
	object.Spec.Aggregation.APIServices = nil
	for _, text := range entries {
		fields := strings.Split(text, ",")
		version, group, _ := strings.Cut(fields[0], ".")
		entry := v1alpha1.AggregatedAPIService{Group: group, Version: version, Address: fields[1]}
		if namespace, name, ok := strings.Cut(fields[1], "/"); ok {
			entry.Address, entry.Service = "", &v1alpha1.HostService{Namespace: namespace, Name: name}
		}
		if len(fields) > 2 {
			entry.CABundle = &v1alpha1.CABundleSource{}
			reference := &corev1.LocalObjectReference{Name: fields[2]}
			if name, secret := strings.CutPrefix(fields[2], "secret/"); secret {
				reference.Name, entry.CABundle.SecretRef = name, reference
			} else {
				entry.CABundle.ConfigMapRef = reference
			}
		}
		object.Spec.Aggregation.APIServices = append(object.Spec.Aggregation.APIServices, entry)
	}
	object.Generation++
	c.must(c.client.Update(c.t.Context(), object))
}

// deleteRegistered deletes the objects that the operator has created inside the cluster.
func (c *cluster) deleteRegistered() {
	for _, list := range []client.ObjectList{
		&apiregistrationv1.APIServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.ServiceList{}, &corev1.NamespaceList{},
	} {
		c.must(c.hosted.List(c.t.Context(), list))
		c.must(meta.EachListItem(list, func(item runtime.Object) error {
			return c.hosted.Delete(c.t.Context(), item.(client.Object))
		}))
	}
}

func (c *cluster) ca(name, commonName string) {
	authority, err := pki.NewAuthority(commonName, time.Hour, c.clock.Now())
	c.must(err)
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{
			"ca.crt": string(authority.Certificate),
		},
	}
	if err := c.client.Create(c.t.Context(), config); err != nil {
		c.must(c.client.Update(c.t.Context(), config))
	}
}

func (c *cluster) available(name, reason string) {
	service, api := &apiregistrationv1.APIService{}, c.hosted
	if c.get().IsExtension() {
		api = c.client
	}
	c.must(api.Get(c.t.Context(), client.ObjectKey{Name: name}, service))
	condition := apiregistrationv1.APIServiceCondition{
		Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, Reason: reason,
		Message: "all checks passed",
	}
	if reason != "Passed" {
		condition.Status, condition.Message = apiregistrationv1.ConditionFalse, "no response"
	}
	service.Status.Conditions = []apiregistrationv1.APIServiceCondition{condition}
	c.must(api.Status().Update(c.t.Context(), service))
}

func (c *cluster) registered() {
	var services apiregistrationv1.APIServiceList
	c.must(c.hosted.List(c.t.Context(), &services))
	for _, service := range services.Items {
		text := "= APIService " + service.Name
		if reference := service.Spec.Service; reference != nil {
			text += fmt.Sprintf(" at %s/%s:%d", reference.Namespace, reference.Name, *reference.Port)
		}
		if chain, err := cert.ParseCertsPEM(service.Spec.CABundle); err == nil {
			text += " trusting " + chain[0].Subject.CommonName
		}
		c.results = append(c.results, text)
	}
	var slices discoveryv1.EndpointSliceList
	c.must(c.hosted.List(c.t.Context(), &slices))
	for _, slice := range slices.Items {
		c.results = append(c.results,
			fmt.Sprintf("= EndpointSlice %s/%s %s %v", slice.Namespace, slice.Name, slice.AddressType,
				slice.Endpoints[0].Addresses))
	}
	var unrelated corev1.ServiceList
	c.must(c.hosted.List(c.t.Context(), &unrelated))
	for _, service := range unrelated.Items {
		c.results = append(c.results, fmt.Sprintf("= Service %s/%s", service.Namespace, service.Name))
	}
}

// host prints the objects of the cluster in its host. It compares a caBundle with the published authority.
func (c *cluster) host() {
	var services apiregistrationv1.APIServiceList
	c.must(c.client.List(c.t.Context(), &services))
	for _, service := range services.Items {
		trusted := "an outdated caBundle"
		if string(service.Spec.CABundle) == string(c.secret("demo-serving").Data["ca.crt"]) {
			trusted = "the published authorities"
		}
		c.results = append(c.results, fmt.Sprintf("= APIService %s at %s/%s:%d, priority %d, trusting %s", service.Name,
			service.Spec.Service.Namespace, service.Spec.Service.Name, *service.Spec.Service.Port,
			service.Spec.VersionPriority, trusted))
	}
	for _, list := range []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}, &corev1.ServiceAccountList{},
	} {
		c.must(c.client.List(c.t.Context(), list))
		c.must(meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			c.results = append(c.results, fmt.Sprintf("= %T %s/%s", object, object.GetNamespace(), object.GetName()))
			return nil
		}))
	}
}
