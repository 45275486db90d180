package controlplane

import (
	"context"
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	image    = "image:1"
	newImage = `{spec: {template: {spec: {containers: [{name: c, image: "image:2"}]}}}}`
)

func deploymentOf(name string, replicas int) string {
	return fmt.Sprintf(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: %s}, spec: {replicas: %d, selector: {matchLabels: {app: %s}},
		template: %s}}`, name, replicas, name, template(name))
}

// deployment is created, scaled, rolled out, rolled back, and deleted in the foreground.
func deployment(s *stepTest) {
	s.begin()
	s.create(deploymentOf("web", 2))
	s.awaitPods("web", 2, image)
	s.awaitCondition("Deployment.apps", "web", "Available", "True")
	s.patch("Deployment.apps", "web", `{spec: {replicas: 4}}`, "scale")
	s.awaitPods("web", 4, image)
	s.patch("Deployment.apps", "web", `{spec: {replicas: 1}}`, "scale")
	s.awaitPods("web", 1, image)
	s.patch("Deployment.apps", "web", `{spec: {replicas: 3}}`)
	s.patch("Deployment.apps", "web", newImage)
	s.awaitPods("web", 3, "image:2")
	s.awaitField("Deployment.apps", "web", "metadata.annotations", map[string]any{
		"deployment.kubernetes.io/revision": "2",
	})
	s.awaitField("Deployment.apps", "web", "status.updatedReplicas", 3)
	s.await("events of the rollout", func(ctx context.Context) error {
		events, err := s.typed.CoreV1().Events(s.namespace).List(ctx, meta.ListOptions{
			FieldSelector: "involvedObject.name=web,reason=ScalingReplicaSet",
		})
		if err == nil && len(events.Items) < 3 {
			err = fmt.Errorf("there are %d", len(events.Items))
		}
		return err
	})
	s.delete("Deployment.apps", "web", meta.DeletePropagationForeground)
	s.awaitGone("Deployment.apps", "web")
	sets, err := s.typed.AppsV1().ReplicaSets(s.namespace).List(s.Context(), meta.ListOptions{})
	if err != nil || len(sets.Items) != 0 {
		s.Errorf("the deployment went before its %d replica sets: %v", len(sets.Items), err)
	}
	s.awaitPods("web", 0, image)
}

// statefulSet has a volume for each pod, creates and replaces pods in order, and orphans them.
func statefulSet(s *stepTest) {
	s.begin()
	for i := range 2 {
		s.create(fmt.Sprintf(`{apiVersion: v1, kind: PersistentVolume, metadata: {name: volume-%d}, spec: {capacity: {storage: 1Gi},
			accessModes: [ReadWriteOnce], storageClassName: manual, hostPath: {path: /tmp/volume-%d}}}`, i, i))
	}
	s.create(`{apiVersion: v1, kind: Service, metadata: {name: db}, spec: {clusterIP: None, selector: {app: db}, ports: [{port: 80}]}}`)
	s.create(`{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db}, spec: {replicas: 2, serviceName: db, selector: {matchLabels: {app: db}},
		template: ` + template("db") + `, volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: manual,
		accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}`)
	s.awaitPods("db", 2, image)
	for _, name := range []string{"data-db-0", "data-db-1"} {
		s.awaitField("PersistentVolumeClaim", name, "status.phase", "Bound")
	}
	s.patch("StatefulSet.apps", "db", newImage)
	s.awaitPods("db", 2, "image:2")
	s.awaitField("StatefulSet.apps", "db", "status.updatedReplicas", 2)

	s.delete("StatefulSet.apps", "db", meta.DeletePropagationOrphan)
	s.awaitGone("StatefulSet.apps", "db")
	for _, pod := range s.awaitPods("db", 2, "image:2") {
		if len(pod.OwnerReferences) != 0 {
			s.Errorf("the orphan %s has owners %v", pod.Name, pod.OwnerReferences)
		}
	}
	s.delete("PersistentVolumeClaim", "data-db-0", meta.DeletePropagationBackground)
	s.awaitField("PersistentVolumeClaim", "data-db-0", "status.phase", "Bound") // a pod uses it
	s.delete("Pod", "db-0", meta.DeletePropagationBackground)
	s.awaitGone("Pod", "db-0")
	s.awaitGone("PersistentVolumeClaim", "data-db-0")
	s.await("a released volume", func(ctx context.Context) error {
		volumes, err := s.typed.CoreV1().PersistentVolumes().List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		for _, volume := range volumes.Items {
			if volume.Status.Phase == core.VolumeReleased {
				return nil
			}
		}
		return fmt.Errorf("volumes %+v", volumes.Items)
	})
}

// daemonSet has a pod on each node.
func daemonSet(s *stepTest) {
	s.begin()
	s.create(
		`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: agent}, spec: {selector: {matchLabels: {app: agent}}, template: ` + template("agent") + `}}`,
	)
	pods := s.awaitPods("agent", 2, image)
	if pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		s.Errorf("both pods are on %s", pods[0].Spec.NodeName)
	}
	s.patch("DaemonSet.apps", "agent", newImage)
	s.awaitPods("agent", 2, "image:2")
	s.awaitField("DaemonSet.apps", "agent", "status.numberReady", 2)
	s.delete("DaemonSet.apps", "agent", meta.DeletePropagationBackground)
	s.awaitPods("agent", 0, image)
}

// job completes, and is deleted after its TTL.
func job(s *stepTest) {
	s.begin()
	job := func(name, more string) string {
		return `{apiVersion: batch/v1, kind: Job, metadata: {name: ` + name +
			`}, spec: {completions: 3, parallelism: 2` + more +
			`, template: ` + template(name, "restartPolicy: Never") + `}}`
	}
	s.create(job("work", ""))
	s.create(job("indexed", ", completionMode: Indexed"))
	s.create(job("fleeting", ", ttlSecondsAfterFinished: 0"))
	for _, name := range []string{"work", "indexed"} {
		s.awaitCondition("Job.batch", name, "Complete", "True")
		s.awaitField("Job.batch", name, "status.succeeded", 3)
	}
	s.awaitField("Job.batch", "indexed", "status.completedIndexes", "0-2")
	s.awaitGone("Job.batch", "fleeting")
	s.delete("Job.batch", "work", meta.DeletePropagationBackground)
	s.awaitPods("work", 0, image)
}

// cronJob creates jobs that complete.
func cronJob(s *stepTest) {
	s.begin()
	s.create(`{apiVersion: batch/v1, kind: CronJob, metadata: {name: often}, spec: {schedule: "@every 1s", successfulJobsHistoryLimit: 1,
		jobTemplate: {spec: {template: ` + template("often", "restartPolicy: OnFailure") + `}}}}`)
	s.await("a job that succeeded", func(ctx context.Context) error {
		found, err := s.typed.BatchV1().CronJobs(s.namespace).Get(ctx, "often", meta.GetOptions{})
		if err == nil && found.Status.LastSuccessfulTime == nil {
			err = fmt.Errorf("status %+v", found.Status)
		}
		return err
	})
	s.delete("CronJob.batch", "often", meta.DeletePropagationForeground)
	s.awaitGone("CronJob.batch", "often")
	s.awaitPods("often", 0, image)
}

func replicationController(s *stepTest) {
	s.begin()
	s.create(
		`{apiVersion: v1, kind: ReplicationController, metadata: {name: old}, spec: {replicas: 2, selector: {app: old}, template: ` + template("old") + `}}`,
	)
	pods := s.awaitPods("old", 2, image)
	s.delete("Pod", pods[0].Name, meta.DeletePropagationBackground)
	s.awaitGone("Pod", pods[0].Name)
	s.awaitPods("old", 2, image)
	s.patch("ReplicationController", "old", `{spec: {replicas: 0}}`, "scale")
	s.awaitPods("old", 0, image)
}

// garbage collects dependents of deleted owners, of a custom kind too.
func garbage(s *stepTest) {
	s.begin()
	owner := func(name, uid string) string {
		return fmt.Sprintf(
			`ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: %s, uid: %s, blockOwnerDeletion: true}]`, name, uid,
		)
	}
	s.create(`{apiVersion: v1, kind: ConfigMap, metadata: {name: lost, ` +
		owner("never", "11111111-2222-3333-4444-555555555555") + `}}`)
	s.awaitGone("ConfigMap", "lost")

	s.create(`{apiVersion: v1, kind: ConfigMap, metadata: {name: root}}`)
	root, err := s.of("ConfigMap").Get(s.Context(), "root", meta.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.create(`{apiVersion: v1, kind: Secret, metadata: {name: leaf, finalizers: [example.com/slow], ` +
		owner("root", string(root.GetUID())) + `}}`)
	s.delete("ConfigMap", "root", meta.DeletePropagationForeground)
	s.await("the leaf to be deleted", func(ctx context.Context) error {
		leaf, err := s.of("Secret").Get(ctx, "leaf", meta.GetOptions{})
		if err == nil && leaf.GetDeletionTimestamp() == nil {
			err = fmt.Errorf("it is not: %v", leaf.Object["metadata"])
		}
		return err
	})
	if _, err := s.of("ConfigMap").Get(s.Context(), "root", meta.GetOptions{}); err != nil {
		s.Errorf("the root went before its leaf: %v", err)
	}
	s.patch("Secret", "leaf", `{metadata: {finalizers: null}}`)
	s.awaitGone("ConfigMap", "root")
}

// unschedulable is a pod that fits on no node until one is added.
func unschedulable(s *stepTest) {
	s.begin()
	s.create(`{apiVersion: v1, kind: Pod, metadata: {name: picky, labels: {app: picky}}, spec: {nodeSelector: {disk: fast}, containers: [{name: c, image: "image:1"}]}}`)
	s.awaitCondition("Pod", "picky", "PodScheduled", "False")
	s.patch("Node", "node-b", `{metadata: {labels: {disk: fast}}}`)
	if pod := s.awaitPods("picky", 1, image)[0]; pod.Spec.NodeName != "node-b" {
		s.Errorf("the pod is on %s", pod.Spec.NodeName)
	}
}

// taint evicts pods without a toleration from a node.
func taint(s *stepTest) {
	// The taint keeps the pods of other steps away from the node.
	s.startNode(s.T, "node-of-taint", core.Taint{Key: "clouds", Effect: core.TaintEffectNoSchedule})
	s.begin()
	for _, pod := range []string{"strong", "weak"} {
		tolerations := "[{key: storm, effect: NoExecute, operator: Exists}]"
		if pod == "weak" {
			tolerations = "[]"
		}
		s.create(strings.NewReplacer("POD", pod, "THESE",
			tolerations).Replace(`{apiVersion: v1, kind: Pod, metadata: {name: POD, labels: {app: POD}},
			spec: {tolerations: THESE, nodeName: node-of-taint, containers: [{name: c, image: "image:1"}]}}`))
		s.awaitPods(pod, 1, image)
	}
	s.patch("Node", "node-of-taint", `{spec: {taints: [{key: storm, effect: NoExecute}]}}`)
	s.awaitGone("Pod", "weak")
	s.awaitPods("strong", 1, image)
}
