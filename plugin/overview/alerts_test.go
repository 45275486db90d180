package overview

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

func TestAlerts(t *testing.T) {
	follower := func(ready bool) func(*v1alpha1.ApiServerCluster) {
		return func(c *v1alpha1.ApiServerCluster) {
			c.Status.Members = append(c.Status.Members, v1alpha1.MemberStatus{Name: "demo-1", Role: "voter", Ready: ready})
		}
	}
	for _, test := range []struct {
		name    string
		changes []func(*v1alpha1.ApiServerCluster)
		want    []string
	}{
		{"healthy", []func(*v1alpha1.ApiServerCluster){follower(true)}, nil},
		{"no quorum", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.EtcdQuorum, metav1.ConditionFalse, v1alpha1.ReasonQuorumLost, "demo-1 is unreachable")),
			set(condition(v1alpha1.Available, metav1.ConditionFalse, v1alpha1.ReasonQuorumLost, "etcd has no quorum")), follower(false),
		}, []string{"critical QuorateEtcdNoQuorum", "critical QuorateClusterUnavailable", "warning QuorateMemberDown"}},
		{"bootstrapping", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.EtcdQuorum, metav1.ConditionFalse, v1alpha1.ReasonBootstrappingEtcd, "")),
		}, nil},
		{"hibernated", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.Available, metav1.ConditionFalse, v1alpha1.ReasonHibernated, "")),
			set(condition(v1alpha1.EtcdQuorum, metav1.ConditionFalse, v1alpha1.ReasonHibernated, "")),
		}, nil},
		{"an alarm", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.Degraded, metav1.ConditionTrue, v1alpha1.ReasonEtcdAlarm, "demo-0: NOSPACE")),
			set(condition(v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse, v1alpha1.ReasonNoSpace, "")),
		}, []string{"warning QuorateClusterDegraded", "warning QuorateEtcdDatabaseNearQuota"}},
		{"a late backup", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.BackupReady, metav1.ConditionFalse, v1alpha1.ReasonBackupOverdue, "")),
			set(condition(v1alpha1.CertificatesValid, metav1.ConditionFalse, v1alpha1.ReasonExpiringSoon, "")),
		}, []string{"warning QuorateCertificateExpiringSoon", "warning QuorateBackupTooOld"}},
	} {
		var got []string
		for _, a := range Build(Input{Cluster: settled(test.changes...), Now: now}).Alerts {
			got = append(got, a.Severity+" "+a.Name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// TestAlertsAreRules compares the names and severities with the rules and runbooks.
func TestAlertsAreRules(t *testing.T) {
	text, err := os.ReadFile("../../config/monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range append(slices.Clone(causes), cause{alert: "QuorateMemberDown", severity: warning}) {
		_, rule, ok := strings.Cut(string(text), fmt.Sprintf("alert: %s\n", c.alert))
		rule, _, _ = strings.Cut(rule, "alert: ")
		if !ok || !strings.Contains(rule, "severity: "+c.severity) {
			t.Errorf("no rule %s has severity %s: %s", c.alert, c.severity, rule)
		}
		if _, err := os.Stat("../../docs/runbooks/" + c.alert + ".md"); err != nil {
			t.Error(err)
		}
	}
}
