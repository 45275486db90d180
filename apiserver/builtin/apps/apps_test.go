package apps_test

import (
	"testing"

	"quorate.dev/apiserver/builtin/apps"
	"quorate.dev/apiserver/builtin/builtintest"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, apps.Definitions(builtintest.NewBuilder()), []builtintest.Served{
		{
			Resource: "controllerrevisions", Kind: "ControllerRevision", Versions: "v1", Namespaced: true,
			Stored: "controllerrevisions apps/v1", Columns: "Controller, Revision, Age",
		},
		{
			Resource: "daemonsets", Kind: "DaemonSet", Versions: "v1", ShortNames: "ds", Categories: "all", Namespaced: true,
			Stored: "daemonsets apps/v1",
			Columns: "Desired, Current, Ready, Up-to-date, Available, Node Selector, Age, " +
				"(Containers), (Images), (Selector)",
			Subresources: []string{"status"},
		},
		{
			Resource: "deployments", Kind: "Deployment", Versions: "v1", ShortNames: "deploy", Categories: "all",
			Namespaced: true, Stored: "deployments apps/v1",
			Columns:      "Ready, Up-to-date, Available, Age, (Containers), (Images), (Selector)",
			Subresources: []string{"scale autoscaling/v1.Scale", "status"},
		},
		{
			Resource: "replicasets", Kind: "ReplicaSet", Versions: "v1", ShortNames: "rs", Categories: "all",
			Namespaced: true, Stored: "replicasets apps/v1",
			Columns:      "Desired, Current, Ready, Age, (Containers), (Images), (Selector)",
			Subresources: []string{"scale autoscaling/v1.Scale", "status"},
		},
		{
			Resource: "statefulsets", Kind: "StatefulSet", Versions: "v1", ShortNames: "sts", Categories: "all",
			Namespaced: true, Stored: "statefulsets apps/v1", Columns: "Ready, Age, (Containers), (Images)",
			Subresources: []string{"scale autoscaling/v1.Scale", "status"},
		},
	})
}

const (
	// workload is the common part of the kinds that have a template of pods.
	workload = `
metadata: {name: web, namespace: default, labels: {team: a}, generation: 7}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "example.com/web:1"}]}
`
	daemonSet   = "apiVersion: apps/v1\nkind: DaemonSet" + workload
	deployment  = "apiVersion: apps/v1\nkind: Deployment" + workload
	replicaSet  = "apiVersion: apps/v1\nkind: ReplicaSet" + workload
	statefulSet = "apiVersion: apps/v1\nkind: StatefulSet" + workload
	revision    = `
apiVersion: apps/v1
kind: ControllerRevision
metadata: {name: web-1, namespace: default}
revision: 1
data: {spec: {replicas: 1}}
`
	otherSelector = "spec: {selector: {matchLabels: {app: web, tier: front}}, " +
		"template: {metadata: {labels: {tier: front}}}}"
)

// immutableSelector is the error of an update of the selector to otherSelector.
const immutableSelector = `spec.selector: Invalid value: ` +
	`{"matchLabels":{"app":"web","tier":"front"}}: field is immutable`

func TestDeployments(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, apps.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults and drops the status": {
			Endpoint: "deployments", Object: deployment, With: "status: {replicas: 3}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.replicas": "1", "spec.revisionHistoryLimit": "10",
				"spec.progressDeadlineSeconds": "600", "spec.strategy.type": "RollingUpdate",
				"spec.strategy.rollingUpdate.maxSurge": "25%", "spec.strategy.rollingUpdate.maxUnavailable": "25%",
				"spec.template.spec.restartPolicy":                 "Always",
				"spec.template.spec.containers[0].imagePullPolicy": "IfNotPresent", "status": "{}",
			},
		},
		"a name that is no label is unusual": {
			Endpoint: "deployments", Object: deployment, With: "metadata: {name: web.1}",
			Warnings: []string{
				"metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is " +
					"recommended: [must not contain dots]",
			},
		},
		"create validates replicas and the strategy": {
			Endpoint: "deployments", Object: deployment,
			With: "spec: {replicas: -1, strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 0}}}",
			Errors: []string{
				"spec.replicas: Invalid value: -1: must be greater than or equal to 0",
				"spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
			},
		},
		"the selector must match the template": {
			Endpoint: "deployments", Object: deployment, With: "spec: {selector: {matchLabels: {app: other}}}",
			Errors: []string{
				"spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
			},
		},
		"a change of the spec is a new generation": {
			Endpoint: "deployments", Object: deployment, Stored: "status: {replicas: 1}",
			Update: "{metadata: {generation: 40}, spec: {replicas: 3}, status: {replicas: 9}}",
			Want:   map[string]string{"metadata.generation": "2", "spec.replicas": "3", "status.replicas": "1"},
		},
		"a change of the annotations is a new generation": {
			Endpoint: "deployments", Object: deployment, Update: "metadata: {annotations: {note: x}}",
			Want: map[string]string{"metadata.generation": "2", "metadata.annotations": `{"note":"x"}`},
		},
		"a change of the labels is no new generation": {
			Endpoint: "deployments", Object: deployment, Update: "metadata: {labels: {team: b}}",
			Want: map[string]string{"metadata.generation": "1", "metadata.labels.team": "b"},
		},
		"the selector is immutable": {
			Endpoint: "deployments", Object: deployment, Update: otherSelector, Errors: []string{immutableSelector},
		},
		"a status update changes only the status": {
			Endpoint: "deployments/status", Object: deployment,
			Update: "{metadata: {labels: {team: b}, annotations: {note: x}}, spec: {replicas: 3}, status: {replicas: 2}}",
			Want: map[string]string{
				"metadata.generation": "1", "metadata.labels.team": "a", "metadata.annotations": `{"note":"x"}`,
				"spec.replicas": "1", "status.replicas": "2",
			},
		},
		"the status is validated": {
			Endpoint: "deployments/status", Object: deployment, Update: "status: {replicas: 1, readyReplicas: 2}",
			Errors: []string{"status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"},
		},
		"an update of the scale changes the replicas": {
			Endpoint: "deployments/scale", Object: deployment, Update: "spec: {replicas: 5}",
			Want: map[string]string{"metadata.generation": "2", "spec.replicas": "5"},
		},
		"the scale is validated": {
			Endpoint: "deployments/scale", Object: deployment, Update: "spec: {replicas: -5}",
			Errors: []string{"spec.replicas: Invalid value: -5: must be greater than or equal to 0"},
		},
	})
}

func TestStatefulSets(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, apps.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults and drops the status": {
			Endpoint: "statefulsets", Object: statefulSet, With: "status: {replicas: 3}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.replicas": "1", "spec.podManagementPolicy": "OrderedReady",
				"spec.updateStrategy": `{"rollingUpdate":{"maxUnavailable":1,"partition":0},` +
					`"type":"RollingUpdate"}`,
				"spec.persistentVolumeClaimRetentionPolicy": `{"whenDeleted":"Retain","whenScaled":"Retain"}`,
				"status.replicas": "0",
			},
		},
		"a negative history is unusual": {
			Endpoint: "statefulsets", Object: statefulSet, With: "spec: {revisionHistoryLimit: -1}",
			Warnings: []string{
				"spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended",
			},
		},
		"pods are always restarted": {
			Endpoint: "statefulsets", Object: statefulSet, With: "spec: {template: {spec: {restartPolicy: Never}}}",
			Errors: []string{`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`},
		},
		"only some fields are mutable": {
			Endpoint: "statefulsets", Object: statefulSet, Update: "spec: {serviceName: other}",
			Errors: []string{`spec.serviceName: Invalid value: "other": field is immutable`},
		},
		"a change of the template is a new generation": {
			Endpoint: "statefulsets", Object: statefulSet, Stored: "status: {replicas: 1}",
			Update: "{spec: {template: {metadata: {annotations: {note: x}}}}, status: {replicas: 9}}",
			Want:   map[string]string{"metadata.generation": "2", "status.replicas": "1"},
		},
		"a status update keeps the spec": {
			Endpoint: "statefulsets/status", Object: statefulSet,
			Update: "{metadata: {labels: {team: b}}, spec: {replicas: 3}, status: {replicas: 2}}",
			Want: map[string]string{
				"metadata.generation": "1", "metadata.labels.team": "b", "spec.replicas": "1", "status.replicas": "2",
			},
		},
		"an update of the scale changes the replicas": {
			Endpoint: "statefulsets/scale", Object: statefulSet, Update: "spec: {replicas: 0}",
			Want: map[string]string{"metadata.generation": "2", "spec.replicas": "0"},
		},
	})
}

func TestDaemonSets(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, apps.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults, the template's generation and no status": {
			Endpoint: "daemonsets", Object: daemonSet, With: "status: {numberReady: 3}",
			Want: map[string]string{
				"metadata.generation": "1", "metadata.annotations[deprecated.daemonset.template.generation]": "1",
				"spec.updateStrategy":       `{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1},"type":"RollingUpdate"}`,
				"spec.revisionHistoryLimit": "10", "status.numberReady": "0",
			},
		},
		"an empty selector is invalid": {
			Endpoint: "daemonsets", Object: daemonSet, With: "spec: {selector: {matchLabels: null}}",
			Errors: []string{"spec.selector: Invalid value: {}: empty selector is invalid for daemonset"},
		},
		"a change of the template is a new generation of both": {
			Endpoint: "daemonsets", Object: daemonSet,
			Update: "{metadata: {generation: 40}, spec: {template: {spec: {terminationGracePeriodSeconds: 5}}}}",
			Want: map[string]string{
				"metadata.generation": "2", "metadata.annotations[deprecated.daemonset.template.generation]": "2",
			},
		},
		"another change is no new generation of the template": {
			Endpoint: "daemonsets", Object: daemonSet, Update: "spec: {minReadySeconds: 5}",
			Want: map[string]string{
				"metadata.generation": "2", "metadata.annotations[deprecated.daemonset.template.generation]": "1",
			},
		},
		"clients cannot set the generation of the template": {
			Endpoint: "daemonsets", Object: daemonSet,
			Update: "metadata: {annotations: {deprecated.daemonset.template.generation: '9'}}",
			Want:   map[string]string{"metadata.annotations[deprecated.daemonset.template.generation]": "1"},
		},
		"the selector is immutable": {
			Endpoint: "daemonsets", Object: daemonSet, Update: otherSelector, Errors: []string{immutableSelector},
		},
		"a status update keeps the spec": {
			Endpoint: "daemonsets/status", Object: daemonSet,
			Update: "{spec: {minReadySeconds: 5}, status: {numberReady: 2}}",
			Want:   map[string]string{"metadata.generation": "1", "spec.minReadySeconds": "", "status.numberReady": "2"},
		},
		"the status is validated": {
			Endpoint: "daemonsets/status", Object: daemonSet, Update: "status: {numberReady: -1}",
			Errors: []string{"status.numberReady: Invalid value: -1: must be greater than or equal to 0"},
		},
	})
}

func TestReplicaSets(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, apps.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults and drops the status": {
			Endpoint: "replicasets", Object: replicaSet, With: "status: {replicas: 3}",
			Want: map[string]string{"metadata.generation": "1", "spec.replicas": "1", "status.replicas": "0"},
		},
		"the selector is immutable": {
			Endpoint: "replicasets", Object: replicaSet, Update: otherSelector, Errors: []string{immutableSelector},
		},
		"a change of the spec is a new generation": {
			Endpoint: "replicasets", Object: replicaSet, Update: "{spec: {replicas: 3}, status: {replicas: 9}}",
			Want: map[string]string{"metadata.generation": "2", "spec.replicas": "3", "status.replicas": "0"},
		},
		"a status update keeps the spec": {
			Endpoint: "replicasets/status", Object: replicaSet, Update: "{spec: {replicas: 3}, status: {replicas: 2}}",
			Want: map[string]string{"metadata.generation": "1", "spec.replicas": "1", "status.replicas": "2"},
		},
		"an update of the scale changes the replicas": {
			Endpoint: "replicasets/scale", Object: replicaSet, Update: "spec: {replicas: 0}",
			Want: map[string]string{"metadata.generation": "2", "spec.replicas": "0"},
		},
	})
}

func TestControllerRevisions(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, apps.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create needs data and a revision": {
			Endpoint: "controllerrevisions", Object: revision, With: "{revision: -1, data: null}",
			Errors: []string{
				"revision: Invalid value: -1: must be greater than or equal to 0",
				"data: Required value: data is mandatory",
			},
		},
		"the revision can change": {
			Endpoint: "controllerrevisions", Object: revision, Update: "revision: 2", Want: map[string]string{"revision": "2"},
		},
		"the data is immutable": {
			Endpoint: "controllerrevisions", Object: revision, Update: "data: {spec: {replicas: 2}}",
			Errors: []string{"data: Invalid value: {\"spec\":{\"replicas\":2}}: field is immutable"},
		},
	})
}
