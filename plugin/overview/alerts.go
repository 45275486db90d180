package overview

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// Alert is an alert of the rules in config/monitoring whose cause is visible in the status of the cluster. Prometheus
// fires the alert after the cause has lasted for some time. The causes of other alerts are visible only in metrics.
type Alert struct {
	Name     string `json:"name"` // also the name of the runbook in docs/runbooks
	Severity string `json:"severity"`
	Message  string `json:"message,omitempty"`
	Member   string `json:"member,omitempty"` // the member that is down
}

// Severities of alerts.
const (
	critical = "critical"
	warning  = "warning"
)

// cause is a status of a condition that causes an alert.
type cause struct {
	condition string
	status    metav1.ConditionStatus
	reasons   []string // nil: any
	alert     string
	severity  string
}

// causes are the causes of alerts in conditions, ordered by urgency.
var causes = []cause{
	{v1alpha1.EtcdQuorum, metav1.ConditionFalse, []string{v1alpha1.ReasonQuorumLost}, "QuorateEtcdNoQuorum", critical},
	{v1alpha1.Available, metav1.ConditionFalse, nil, "QuorateClusterUnavailable", critical},
	{v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse, nil, "QuorateEtcdNoSpace", critical},
	{
		v1alpha1.CertificatesValid, metav1.ConditionFalse, []string{v1alpha1.ReasonExpired},
		"QuorateCertificateExpiringSoon", critical,
	},
	{v1alpha1.Degraded, metav1.ConditionTrue, nil, "QuorateClusterDegraded", warning},
	{
		v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse, []string{v1alpha1.ReasonSoftQuotaExceeded},
		"QuorateEtcdDatabaseNearQuota", warning,
	},
	{
		v1alpha1.CertificatesValid, metav1.ConditionFalse, []string{v1alpha1.ReasonExpiringSoon},
		"QuorateCertificateExpiringSoon", warning,
	},
	{v1alpha1.BackupReady, metav1.ConditionFalse, []string{v1alpha1.ReasonBackupFailed}, "QuorateBackupFailed", warning},
	{v1alpha1.BackupReady, metav1.ConditionFalse, []string{v1alpha1.ReasonBackupOverdue}, "QuorateBackupTooOld", warning},
}

// alerts returns the alerts whose causes are visible in the conditions and replicas of a cluster.
func alerts(o *Overview) []Alert {
	found := []Alert{}
	for _, c := range causes {
		i := slices.IndexFunc(o.Problems, func(p metav1.Condition) bool {
			return p.Type == c.condition && p.Status == c.status && (c.reasons == nil || slices.Contains(c.reasons, p.Reason))
		})
		if i >= 0 {
			found = append(found, Alert{Name: c.alert, Severity: c.severity, Message: o.Problems[i].Message})
		}
	}
	for _, r := range o.Replicas {
		if !r.Ready && (r.Role == "leader" || r.Role == "voter") && o.Desired > 0 {
			found = append(found, Alert{
				Name: "QuorateMemberDown", Severity: warning, Message: r.Name + " " + cmp.Or(r.Problem, "is not ready"),
				Member: r.Name,
			})
		}
	}
	return found
}
