package reconcile

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

func (c *cluster) configMap(name, assignment string) {
	file, level, _ := strings.Cut(assignment, "=level:")
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{
		file: "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: " + level + "}]\n",
	}}
	if err := c.client.Update(c.t.Context(), object); err != nil {
		c.must(c.client.Create(c.t.Context(), object))
	}
}

func (c *cluster) encryption() {
	secret := &corev1.Secret{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-configuration"}, secret))
	for line := range strings.Lines(string(secret.Data["encryption.config.yaml"])) {
		if !strings.Contains(line, "secret:") {
			c.results = append(c.results, "= "+strings.TrimRight(line, "\n"))
		}
	}
}

func (c *cluster) degraded() {
	condition := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded)
	c.results = append(c.results, fmt.Sprintf("= %s %s: %s", condition.Status, condition.Reason, condition.Message))
}
