package overview

import (
	"os"
	"regexp"
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
			set(condition(v1alpha1.Available, metav1.ConditionFalse, v1alpha1.ReasonQuorumLost, "etcd has no quorum")),
			follower(false),
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
		}, []string{"critical QuorateEtcdNoSpace", "warning QuorateClusterDegraded"}},
		{"over the soft quota", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse, v1alpha1.ReasonSoftQuotaExceeded, "")),
		}, []string{"critical QuorateEtcdNoSpace", "warning QuorateEtcdDatabaseNearQuota"}},
		{"an expired certificate", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.CertificatesValid, metav1.ConditionFalse, v1alpha1.ReasonExpired, "")),
		}, []string{"critical QuorateCertificateExpiringSoon"}},
		{"a late backup", []func(*v1alpha1.ApiServerCluster){
			set(condition(v1alpha1.BackupReady, metav1.ConditionFalse, v1alpha1.ReasonBackupOverdue, "")),
			set(condition(v1alpha1.CertificatesValid, metav1.ConditionFalse, v1alpha1.ReasonExpiringSoon, "")),
		}, []string{"warning QuorateCertificateExpiringSoon", "warning QuorateBackupTooOld"}},
	} {
		var got []string
		for _, a := range Build(Input{Cluster: settled(test.changes...), Now: now, PodsUnknown: true}).Alerts {
			got = append(got, a.Severity+" "+a.Name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

var conditionOfRule = regexp.MustCompile(`quorate_cluster_status_condition\{condition="(\w+)"`)

// TestAlertsAreRules compares the names, severities and conditions with the rules and runbooks.
func TestAlertsAreRules(t *testing.T) {
	text, err := os.ReadFile("../../config/monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	alertRules := strings.Split(string(text), "alert: ")[1:]
	for _, rule := range alertRules {
		name, _, _ := strings.Cut(rule, "\n")
		match := conditionOfRule.FindStringSubmatch(rule)
		if match == nil || match[1] == v1alpha1.Progressing { // a long change is not visible in the status
			continue
		}
		if !slices.ContainsFunc(causes, func(c cause) bool { return c.alert == name && c.condition == match[1] }) {
			t.Errorf("condition %s causes alert %s, but is none of its causes", match[1], name)
		}
	}
	for _, c := range append(slices.Clone(causes), cause{alert: "QuorateMemberDown", severity: warning}) {
		if !slices.ContainsFunc(alertRules, func(rule string) bool {
			return strings.HasPrefix(rule, c.alert+"\n") && strings.Contains(rule, "severity: "+c.severity)
		}) {
			t.Errorf("no rule %s has severity %s", c.alert, c.severity)
		}
		if _, err := os.Stat("../../docs/runbooks/" + c.alert + ".md"); err != nil {
			t.Error(err)
		}
	}
}
