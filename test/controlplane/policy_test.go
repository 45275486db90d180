package controlplane

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// quota is counted and enforced, for controllers too.
func quota(s *stepTest) {
	counted(s)
	s.create(deploymentOf("web", 3))
	s.awaitPods("web", 2, image)
	s.awaitCondition("Deployment.apps", "web", "ReplicaFailure", "True")
}

// counted checks the usage of a quota and its enforcement.
func counted(s *stepTest) {
	s.begin()
	s.create(`{apiVersion: v1, kind: ConfigMap, metadata: {name: before}}`)
	s.create(`{apiVersion: v1, kind: ResourceQuota, metadata: {name: little}, spec: {hard: {count/secrets: 1, pods: 2}}}`)
	s.awaitField("ResourceQuota", "little", "status.used", map[string]any{"count/secrets": "0", "pods": "0"})
	s.create(`{apiVersion: v1, kind: Secret, metadata: {name: first}}`)
	s.awaitField("ResourceQuota", "little", "status.used", map[string]any{"count/secrets": "1", "pods": "0"})
	_, err := s.typed.CoreV1().Secrets(s.namespace).Create(s.Context(),
		&core.Secret{ObjectMeta: meta.ObjectMeta{Name: "second"}}, meta.CreateOptions{})
	if !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(),
			"exceeded quota: little, requested: count/secrets=1, used: count/secrets=1, limited: count/secrets=1") {
		s.Errorf("a secret too many: %v", err)
	}
	s.delete("Secret", "first", meta.DeletePropagationBackground)
	s.awaitField("ResourceQuota", "little", "status.used", map[string]any{"count/secrets": "0", "pods": "0"})
}

// autoscaler has no metrics, but enforces the minimum number of replicas.
func autoscaler(s *stepTest) {
	s.begin()
	s.create(deploymentOf("web", 1))
	s.create(`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: web}, spec: {minReplicas: 2, maxReplicas: 4,
		scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web},
		metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 50}}}]}}`)
	s.awaitField("HorizontalPodAutoscaler.autoscaling", "web", "status.desiredReplicas", 2)
	s.awaitPods("web", 2, image)
	s.awaitCondition("HorizontalPodAutoscaler.autoscaling", "web", "AbleToScale", "True")
	s.awaitCondition("HorizontalPodAutoscaler.autoscaling", "web", "ScalingActive", "False") // there is no metrics API
	s.awaitField("HorizontalPodAutoscaler.autoscaling", "web", "status.currentReplicas", 2)
}

// budget prevents evictions.
func budget(s *stepTest) {
	s.begin()
	s.create(deploymentOf("web", 2))
	pods := s.awaitPods("web", 2, image)
	s.create(`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: web}, spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}}`)
	s.awaitField("PodDisruptionBudget.policy", "web", "status.currentHealthy", 2)
	evict := func() error {
		return s.typed.PolicyV1().Evictions(s.namespace).Evict(s.Context(), &policy.Eviction{
			ObjectMeta: meta.ObjectMeta{Namespace: s.namespace, Name: pods[0].Name},
		})
	}
	if err := evict(); apierrors.ReasonForError(err) != meta.StatusReasonTooManyRequests {
		s.Fatalf("an eviction against the budget: %v", err)
	}
	s.patch("PodDisruptionBudget.policy", "web", `{spec: {minAvailable: 1}}`)
	s.awaitField("PodDisruptionBudget.policy", "web", "status.disruptionsAllowed", 1)
	if err := evict(); err != nil {
		s.Fatalf("an eviction that the budget allows: %v", err)
	}
	s.awaitGone("Pod", pods[0].Name)
	s.awaitPods("web", 2, image)
	s.awaitField("PodDisruptionBudget.policy", "web", "status.disruptionsAllowed", 1)
}

// service has the addresses of its ready pods.
func service(s *stepTest) {
	s.begin()
	s.create(`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}`)
	s.create(deploymentOf("web", 2))
	s.awaitPods("web", 2, image)
	s.awaitAddresses("web", 2)
	s.patch("Deployment.apps", "web", `{spec: {replicas: 3}}`)
	s.awaitAddresses("web", 3)
	s.await("the endpoints of old", func(ctx context.Context) error {
		endpoints, err := s.typed.CoreV1().Endpoints(s.namespace).Get(ctx, "web", meta.GetOptions{})
		if err == nil && (len(endpoints.Subsets) != 1 || len(endpoints.Subsets[0].Addresses) != 3) {
			err = fmt.Errorf("subsets %+v", endpoints.Subsets)
		}
		return err
	})
	s.delete("Service", "web", meta.DeletePropagationBackground)
	s.await("the endpoint slices to be gone", func(ctx context.Context) error {
		slices, err := s.typed.DiscoveryV1().EndpointSlices(s.namespace).List(ctx, meta.ListOptions{})
		if err == nil && len(slices.Items) > 0 {
			err = fmt.Errorf("there are %d", len(slices.Items))
		}
		return err
	})
}

func (s *stepTest) awaitAddresses(name string, count int) {
	s.Helper()
	s.await(fmt.Sprintf("%d addresses of service %s", count, name), func(ctx context.Context) error {
		slices, err := s.typed.DiscoveryV1().EndpointSlices(s.namespace).List(ctx, meta.ListOptions{
			LabelSelector: "kubernetes.io/service-name=" + name,
		})
		if err != nil {
			return err
		}
		found := 0
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready && *slice.Ports[0].Port == 8080 {
					found += len(endpoint.Addresses)
				}
			}
		}
		if found != count {
			err = fmt.Errorf("there are %d", found)
		}
		return err
	})
}

// namespaceLife ends with everything in the namespace, when its last finalizer is done.
func namespaceLife(s *stepTest) {
	s.begin()
	s.create(deploymentOf("web", 2))
	s.awaitPods("web", 2, image)
	ended(s)
}

// ended deletes a namespace with content.
func ended(s *stepTest) {
	s.create(`{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, finalizers: [example.com/slow]}}`)
	s.delete("Namespace", s.namespace, meta.DeletePropagationBackground)
	s.awaitCondition("Namespace", s.namespace, "NamespaceFinalizersRemaining", "True")
	_, err := s.typed.CoreV1().ConfigMaps(s.namespace).Create(s.Context(),
		&core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "late"}}, meta.CreateOptions{})
	if status, ok := err.(apierrors.APIStatus); !ok || status.Status().Code != http.StatusForbidden ||
		!apierrors.HasStatusCause(err, core.NamespaceTerminatingCause) {
		s.Errorf("something new in a namespace that ends: %v", err)
	}
	s.patch("ConfigMap", "kept", `{metadata: {finalizers: null}}`)
	s.awaitGone("Namespace", s.namespace)
}
