package overview

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/plugin/replica"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: 1}
}

// settled returns a cluster that matches its spec.
func settled(changes ...func(*v1alpha1.ApiServerCluster)) *v1alpha1.ApiServerCluster {
	c := &v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name: "demo", Namespace: "default", Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		},
		Spec:   v1alpha1.ApiServerClusterSpec{Replicas: ptr.To[int32](3)},
		Status: v1alpha1.ApiServerClusterStatus{ObservedGeneration: 1, ReadyReplicas: 3, Voters: 3},
	}
	for _, kind := range []string{v1alpha1.Available, v1alpha1.EtcdQuorum, v1alpha1.CertificatesValid} {
		set(condition(kind, metav1.ConditionTrue, "Fine", ""))(c)
	}
	for _, kind := range []string{v1alpha1.Progressing, v1alpha1.Degraded} {
		set(condition(kind, metav1.ConditionFalse, "Fine", ""))(c)
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

// waiting returns a cluster whose deletion was requested and waits.
func waiting(reason, message string) *v1alpha1.ApiServerCluster {
	c := settled(func(c *v1alpha1.ApiServerCluster) { c.DeletionTimestamp = &metav1.Time{Time: now} })
	set(condition(v1alpha1.Deleting, metav1.ConditionFalse, reason, message))(c)
	return c
}

func set(condition metav1.Condition) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) {
		for i := range c.Status.Conditions {
			if c.Status.Conditions[i].Type == condition.Type {
				c.Status.Conditions[i] = condition
				return
			}
		}
		c.Status.Conditions = append(c.Status.Conditions, condition)
	}
}

func waitingBackup(name, message string) v1alpha1.ApiServerBackup {
	b := backup(name, v1alpha1.BackupPending, 0)
	b.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.BackupComplete, Status: "Unknown", Reason: v1alpha1.ReasonObjectMissing, Message: message,
	}}
	return b
}

func backup(name string, phase v1alpha1.BackupPhase, finished time.Duration) v1alpha1.ApiServerBackup {
	at := metav1.NewTime(now.Add(-finished))
	return v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ApiServerBackupSpec{ClusterName: "demo"},
		Status: v1alpha1.ApiServerBackupStatus{Phase: phase, CompletionTime: &at, Conditions: []metav1.Condition{
			condition(v1alpha1.BackupComplete, metav1.ConditionFalse, "Failed", "no space left"),
		}},
	}
}

// TestHealthAndNextStep checks the health of each state, and the most urgent applicable step.
func TestHealthAndNextStep(t *testing.T) {
	lost := set(condition(v1alpha1.EtcdQuorum, metav1.ConditionFalse, "QuorumLost", "demo-1 is unreachable"))
	unavailable := set(condition(v1alpha1.Available, metav1.ConditionFalse, "QuorumLost", ""))
	degraded := set(condition(v1alpha1.Degraded, metav1.ConditionTrue, "PodsFailing", "demo-1 fails"))
	fresh := []v1alpha1.ApiServerBackup{backup("monday", v1alpha1.BackupCompleted, time.Hour)}
	for _, test := range []struct {
		name    string
		cluster *v1alpha1.ApiServerCluster
		in      Input
		health  Health
		text    string
		command string
	}{
		{"healthy", settled(), Input{Backups: fresh}, Healthy, "Nothing to do", ""},
		{"no backup", settled(), Input{}, Healthy, "There is no backup", "kubectl quorate backup demo --claim=CLAIM"},
		{"unreadable backups", settled(), Input{BackupsUnknown: true}, Healthy, "Nothing to do", ""},
		{
			"a schedule", settled(), Input{Schedules: make([]v1alpha1.ApiServerBackupSchedule, 1)}, Healthy, "Nothing to do", "",
		},
		{"an old backup", settled(), Input{
			Backups: []v1alpha1.ApiServerBackup{backup("a", v1alpha1.BackupCompleted, 200*time.Hour)},
		},
			Healthy, "8 days old", "quorate backup demo"},
		{"a failed backup", settled(), Input{
			Backups: []v1alpha1.ApiServerBackup{fresh[0], backup("b", v1alpha1.BackupFailed, time.Minute)},
		},
			Healthy, "b, failed: no space left", "quorate backup demo"},
		{"an older failed backup", settled(), Input{
			Backups: []v1alpha1.ApiServerBackup{fresh[0], backup("b", v1alpha1.BackupFailed, 2*time.Hour)},
		},
			Healthy, "Nothing to do", ""},
		{"a waiting backup", settled(),
			Input{Backups: []v1alpha1.ApiServerBackup{waitingBackup("b", "claim x does not exist")}}, Healthy,
			"b is waiting: claim x does not exist", "describe asb b"},
		{
			"a running backup", settled(), Input{Backups: []v1alpha1.ApiServerBackup{backup("b", v1alpha1.BackupRunning, 0)}},
			Healthy, "Nothing to do", "",
		},
		{"external etcd", settled(func(c *v1alpha1.ApiServerCluster) { c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{} }),
			Input{}, Healthy, "Nothing to do", ""},
		{
			"quorum lost", settled(lost, unavailable, degraded), Input{}, Unavailable, "no quorum",
			"kubectl quorate recover demo",
		},
		{"another namespace", settled(lost, unavailable, func(c *v1alpha1.ApiServerCluster) { c.Namespace = "team-a" }),
			Input{}, Unavailable, "no quorum", "kubectl quorate recover demo -n team-a"},
		{"recovering", settled(lost, unavailable, func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Recovery = &v1alpha1.Recovery{RequestID: "one"}
		}), Input{}, Unavailable, "Wait for the recovery", "--for=recovered"},
		{"recovery fails", settled(lost, unavailable, func(c *v1alpha1.ApiServerCluster) {
			c.Status.Recovery = &v1alpha1.RecoveryStatus{Stage: v1alpha1.RecoveryRestoring, Message: "there is no data"}
		}), Input{}, Unavailable, "makes no progress: there is no data", "--for=recovered"},
		{"degraded", settled(degraded), Input{}, Degraded, "demo-1 fails", "kubectl quorate logs demo"},
		{"decryption",
			settled(set(condition(v1alpha1.Degraded, metav1.ConditionTrue, "DecryptionNotConfirmed", "set the annotation"))),
			Input{}, Degraded, "set the annotation", "kubectl edit asc demo"},
		{"a lost Secret", settled(set(condition(v1alpha1.Degraded, metav1.ConditionTrue, "SecretLost", "restore it"))),
			Input{}, Degraded, "restore it", "kubectl get secrets -l quorate.dev/cluster=demo"},
		{"invalid", settled(set(condition(v1alpha1.Degraded, metav1.ConditionTrue, "InvalidSpec", "extraArgs"))), Input{},
			Degraded, "Correct the spec: extraArgs", "kubectl edit asc demo"},
		{"expired",
			settled(set(condition(v1alpha1.CertificatesValid, metav1.ConditionFalse, "Expired", "Certificate expired"))),
			Input{}, Degraded, "Certificate expired", "--operator"},
		{"full", settled(set(condition(v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse, "NoSpace", "Delete objects"))),
			Input{}, Degraded, "Delete objects", "quorate top demo"},
		{"backup overdue",
			settled(set(condition(v1alpha1.BackupReady, metav1.ConditionFalse, "BackupOverdue", "nightly: none"))), Input{},
			Degraded, "nightly: none", "get asb"},
		{"restoring", settled(unavailable, set(condition("Restored", metav1.ConditionFalse, "Restoring", ""))), Input{},
			Unavailable, "Wait until the backup is restored", "--for=restored"},
		{"a missing key",
			settled(unavailable, set(condition("Restored", metav1.ConditionFalse, "ServiceAccountKeyMissing", "no key"))),
			Input{}, Unavailable, "cannot be restored yet: no key", "edit asc"},
		{"progressing", settled(set(condition(v1alpha1.Progressing, metav1.ConditionTrue, "Reconciling", "Adding learner"))),
			Input{}, Progressing, "Adding learner", "kubectl quorate wait demo"},
		{
			"changed", settled(func(c *v1alpha1.ApiServerCluster) { c.Generation = 2 }), Input{}, Progressing,
			"Wait until", "wait demo",
		},
		{"paused", settled(lost, set(condition(v1alpha1.Paused, metav1.ConditionTrue, "PausedByAnnotation", ""))), Input{},
			Paused, "paused", "annotate asc demo quorate.dev/paused-until-"},
		{"hibernated", settled(func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Replicas, c.Status.ReadyReplicas = ptr.To[int32](0), 0
			set(condition(v1alpha1.Available, metav1.ConditionFalse, "Hibernated", ""))(c)
		}), Input{}, Hibernated, "hibernates", "scale asc demo"},
		{"deleted", settled(func(c *v1alpha1.ApiServerCluster) { c.DeletionTimestamp = &metav1.Time{Time: now} }), Input{},
			Deleting, "deletes", "--for=deleted"},
		{
			"deletion of a protected cluster", waiting(v1alpha1.ReasonDeletionProtected, ""), Input{}, Deleting,
			"Turn the protection off", `"protected":false`,
		},
		{
			"final backup", waiting(v1alpha1.ReasonWaitingForFinalBackup, "Waiting for final backup b"), Input{}, Deleting,
			"Waiting for final backup b", "--for=deleted",
		},
		{
			"failed final backup", waiting(v1alpha1.ReasonFinalBackupFailed, "delete it to repeat it"), Input{}, Deleting,
			"delete it to repeat it", "edit asc",
		},
		{"deletion that retains data", settled(func(c *v1alpha1.ApiServerCluster) {
			c.DeletionTimestamp, c.Spec.Deletion.Policy = &metav1.Time{Time: now}, v1alpha1.RetainData
		}), Input{}, Deleting, "volumes and keys stay", "--for=deleted"},
		{
			"no operator", &v1alpha1.ApiServerCluster{ObjectMeta: settled().ObjectMeta}, Input{}, Unavailable,
			"operator has not processed", "get pods",
		},
		{"rotating", settled(func(c *v1alpha1.ApiServerCluster) {
			c.Status.Rotations = &v1alpha1.Rotations{Authorities: &v1alpha1.Rotation{}}
		}), Input{},
			Healthy, "new copies of kubeconfigs", "quorate kubeconfig demo"},
		{"full", settled(func(c *v1alpha1.ApiServerCluster) { c.Status.Members = []v1alpha1.MemberStatus{{Name: "demo-0"}} }),
			Input{PodsUnknown: true, Samples: map[string]replica.Sample{"demo-0": {DBInUse: 90, DBQuota: 100}}}, Healthy,
			"90% of its quota", "top demo"},
	} {
		test.in.Cluster, test.in.Now = test.cluster, now
		o := Build(test.in)
		if o.Health != test.health {
			t.Errorf("%s: health %s, want %s", test.name, o.Health, test.health)
		}
		if !strings.Contains(o.Next.Text, test.text) || !strings.Contains(o.Next.Command, test.command) ||
			test.command == "" && o.Next.Command != "" {
			t.Errorf("%s: next step %+v, want %q and %q", test.name, o.Next, test.text, test.command)
		}
	}
}

func TestReplicas(t *testing.T) {
	cluster := settled(func(c *v1alpha1.ApiServerCluster) {
		c.Status.Members = []v1alpha1.MemberStatus{
			{Name: "demo-10", Role: "leader", Ready: true, DBSize: 5}, {
				Name: "demo-2", Role: "voter", UnhealthySince: &metav1.Time{Time: now},
			},
		}
	})
	pod := func(name string, waiting string) corev1.Pod {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{desired.RoleLabel: desired.RoleServer}},
		}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		status := corev1.ContainerStatus{RestartCount: 2}
		if waiting != "" {
			status.State.Waiting = &corev1.ContainerStateWaiting{Reason: waiting}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{status}
		return p
	}
	o := Build(Input{
		Cluster: cluster, Now: now, Pods: []corev1.Pod{pod("demo-abcde", "CrashLoopBackOff"), pod("demo-10", "")},
		Samples: map[string]replica.Sample{
			"demo-10": {Revision: 40, Time: now}, "demo-abcde": {Revision: 42, Time: now, Requests: 10},
		},
		Earlier: map[string]replica.Sample{"demo-abcde": {Time: now.Add(-2 * time.Second)}},
	})
	if len(o.Replicas) != 3 {
		t.Fatalf("got %+v", o.Replicas)
	}
	missing, leader, server := o.Replicas[0], o.Replicas[1], o.Replicas[2]
	if missing.Name != "demo-2" || missing.Status != "NoPod" ||
		missing.Unhealthy != "2026-01-02T03:04:05Z" || missing.Usage != nil {
		t.Errorf("member without a pod: %+v", missing)
	}
	if leader.Role != "leader" || !leader.Ready || leader.Status != "Running" || leader.Restarts != 2 ||
		leader.Usage.Lag != 2 || leader.Usage.Requests != nil {
		t.Errorf("leader: %+v, %+v", leader, leader.Usage)
	}
	if server.Role != "server" || server.Ready || server.Status != "CrashLoopBackOff" || server.Usage.Lag != 0 ||
		*server.Usage.Requests != 5 {
		t.Errorf("server: %+v, %+v", server, server.Usage)
	}
}

func TestCertificates(t *testing.T) {
	authority, err := pki.NewAuthority("demo", 100*time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Leaf{CommonName: "admin", Client: true, Lifetime: time.Hour}, now)
	if err != nil {
		t.Fatal(err)
	}
	secret := func(name string, pair pki.Pair) corev1.Secret {
		return corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{corev1.TLSCertKey: pair.Certificate},
		}
	}
	got := Build(Input{Cluster: settled(), Now: now, Secrets: []corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Name: "demo-service-account"}}, secret("demo-client-ca", authority.Pair),
		secret("demo-admin", pair),
	}}).Certificates
	if len(got) != 2 || got[0].Secret != "demo-admin" || got[0].Authority || !got[1].Authority ||
		!got[0].Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("got %+v", got)
	}
}

func TestEvents(t *testing.T) {
	event := func(object, reason string, age time.Duration) corev1.Event {
		return corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: object}, Reason: reason, Type: corev1.EventTypeWarning,
			EventTime: metav1.NewMicroTime(now.Add(-age)),
		}
	}
	repeated := event("demo", "Repeated", time.Hour)
	repeated.Series = &corev1.EventSeries{Count: 7, LastObservedTime: metav1.NewMicroTime(now)}
	got := Build(Input{
		Cluster: settled(), Now: now, Pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}}},
		Events: []corev1.Event{
			event("demo-0", "Old", time.Hour), event("other", "Other", 0), event("demo", "New", time.Minute), repeated,
		},
	}).Events
	var reasons []string
	for _, e := range got {
		reasons = append(reasons, e.Reason)
	}
	if strings.Join(reasons, " ") != "Repeated New Old" || got[0].Count != 7 || got[1].Count != 1 || !got[1].Warning {
		t.Errorf("got %+v", got)
	}
}
