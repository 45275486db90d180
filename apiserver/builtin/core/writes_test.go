package core_test

import (
	"strings"
	"testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/core"
)

const (
	plainPod = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default, generation: 7}
spec: {containers: [{name: main, image: "example.com/web:1", resources: {limits: {cpu: "1", memory: 1Gi}}}]}
`
	plainService = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80}]}
`
	claim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: default}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`
	volume = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, csi: {driver: csi.example.com, volumeHandle: d1}}
`
	controller = `
apiVersion: v1
kind: ReplicationController
metadata: {name: web, namespace: default}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: "example.com/web:1"}]}
`
	plainNode = `{apiVersion: v1, kind: Node, metadata: {name: one}, spec: {podCIDR: 10.1.0.0/24}}`
	namespace = `{apiVersion: v1, kind: Namespace, metadata: {name: team}}`
	configMap = `{apiVersion: v1, kind: ConfigMap, metadata: {name: web, namespace: default}, data: {key: a}}`
	secret    = `{apiVersion: v1, kind: Secret, metadata: {name: web, namespace: default}, data: {key: YQ==}}`
	account   = `{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: default}}`
	quota     = `{apiVersion: v1, kind: ResourceQuota, metadata: {name: q, namespace: default}, spec: {hard: {pods: 3}}}`
	endpoints = `{apiVersion: v1, kind: Endpoints, metadata: {name: web, namespace: default}}`
	limits    = `{apiVersion: v1, kind: LimitRange, metadata: {name: l, namespace: default}}`
	template  = `{apiVersion: v1, kind: PodTemplate, metadata: {name: t, namespace: default}}`
	event     = `
apiVersion: v1
kind: Event
metadata: {name: web.1, namespace: default}
involvedObject: {kind: Pod, namespace: default, name: web}
`
	// immutablePod is the beginning of the error of an update of a pod.
	immutablePod = "spec: Forbidden: pod updates may not change fields other than"
)

func TestPods(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"create sets defaults and replaces the status": {
			Endpoint: "pods", Object: plainPod, With: "status: {phase: Running, podIP: 10.1.0.4}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.restartPolicy": "Always", "spec.dnsPolicy": "ClusterFirst",
				"spec.schedulerName": "default-scheduler", "spec.terminationGracePeriodSeconds": "30",
				"spec.containers[0].resources.requests": `{"cpu":"1","memory":"1Gi"}`,
				"status":                                `{"phase":"Pending","qosClass":"Guaranteed"}`,
			},
		},
		"a gated pod is not scheduled": {
			Endpoint: "pods", Object: plainPod, With: "spec: {schedulingGates: [{name: example.com/wait}]}",
			Want: map[string]string{
				"status.conditions[0].type": "PodScheduled", "status.conditions[0].status": "False",
				"status.conditions[0].reason": "SchedulingGated",
			},
		},
		"containers are validated": {
			Endpoint: "pods", Object: plainPod, With: "spec: {containers: [{name: Main}]}",
			Errors: []string{
				`spec.containers[0].name: Invalid value: "Main": a lowercase RFC 1123 label must consist of lower case ` +
					"alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  " +
					"or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
				"spec.containers[0].image: Required value",
			},
		},
		"deprecated fields cause warnings": {
			Endpoint: "pods", Object: plainPod,
			With: "{metadata: {name: web.1}, spec: {nodeSelector: {beta.kubernetes.io/os: linux}}}",
			Warnings: []string{
				"metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is " +
					"recommended: [must not contain dots]",
				"spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
			},
		},
		"an update keeps the status": {
			Endpoint: "pods", Object: plainPod, Stored: "status: {phase: Running}",
			Update: "{metadata: {labels: {app: web}}, status: {phase: Failed}}",
			Want: map[string]string{
				"metadata.generation": "1", "metadata.labels.app": "web", "status.phase": "Running",
			},
		},
		"a deadline can be set": {
			Endpoint: "pods", Object: plainPod, Update: "spec: {activeDeadlineSeconds: 60}",
			Want: map[string]string{"metadata.generation": "2", "spec.activeDeadlineSeconds": "60"},
		},
		"a status update keeps the spec": {
			Endpoint: "pods/status", Object: plainPod,
			Update: "{spec: {activeDeadlineSeconds: 60}, status: {phase: Running}}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.activeDeadlineSeconds": "", "status.phase": "Running",
				"status.qosClass": "Guaranteed",
			},
		},
		"the quality of service of a pod is immutable": {
			Endpoint: "pods/status", Object: plainPod, Update: "status: {qosClass: BestEffort}",
			Errors: []string{`status.qosClass: Invalid value: "BestEffort": field is immutable`},
		},
		"ephemeral containers can be added": {
			Endpoint: "pods/ephemeralcontainers", Object: plainPod,
			Update: "spec: {activeDeadlineSeconds: 60, ephemeralContainers: [{name: debug, image: example.com/debug}]}",
			Want: map[string]string{
				"metadata.generation": "2", "spec.activeDeadlineSeconds": "", "spec.ephemeralContainers[0].name": "debug",
			},
		},
		"ephemeral containers cannot be removed": {
			Endpoint: "pods/ephemeralcontainers", Object: plainPod,
			Stored: "spec: {ephemeralContainers: [{name: debug, image: example.com/debug}]}",
			Update: "spec: {ephemeralContainers: null}",
			Errors: []string{
				`spec.ephemeralContainers: Forbidden: existing ephemeral containers "debug" may not be removed` + "\n",
			},
		},
		"a resize changes only resources": {
			Endpoint: "pods/resize", Object: plainPod, Stored: "status: {phase: Running}",
			Update: `
spec:
  activeDeadlineSeconds: 60
  containers: [{name: main, image: "example.com/web:1", resources: {
    limits: {cpu: "2", memory: 1Gi}, requests: {cpu: "2", memory: 1Gi}}}]
`,
			Want: map[string]string{
				"metadata.generation": "2", "spec.activeDeadlineSeconds": "", "spec.containers[0].resources.limits.cpu": "2",
				"spec.containers[0].image": "example.com/web:1",
			},
		},
	})
}

// TestPodsAreImmutable updates a field of a pod that only a binding may set.
func TestPodsAreImmutable(t *testing.T) {
	t.Parallel()
	errs := builtintest.Write{
		Endpoint: "pods", Object: plainPod, Update: "spec: {hostname: other}",
	}.Errs(t, definitionsOf(core.Options{}))
	if len(errs) != 1 || !strings.HasPrefix(errs[0], immutablePod) {
		t.Errorf("got the errors %q, want one that starts with %q", errs, immutablePod)
	}
}

func TestServices(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"create sets defaults and drops the status": {
			Endpoint: "services", Object: plainService, With: "status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}",
			Want: map[string]string{
				"spec.type": "ClusterIP", "spec.sessionAffinity": "None", "spec.internalTrafficPolicy": "Cluster",
				"spec.ports": `[{"port":80,"protocol":"TCP","targetPort":80}]`, "status": `{"loadBalancer":{}}`,
			},
		},
		"an external name is required": {
			Endpoint: "services", Object: plainService, With: "spec: {type: ExternalName, ports: null}",
			Errors: []string{"spec.externalName: Required value"},
		},
		"ports need names if there are several": {
			Endpoint: "services", Object: plainService, With: "spec: {ports: [{port: 80, name: http}, {port: 443}]}",
			Errors: []string{"spec.ports[1].name: Required value"},
		},
		"the cluster IP is immutable": {
			Endpoint: "services", Object: plainService, Stored: "spec: {clusterIP: 10.0.0.9, clusterIPs: [10.0.0.9]}",
			Update: "spec: {clusterIP: 10.0.0.8, clusterIPs: [10.0.0.8]}",
			Errors: []string{"spec.clusterIPs[0]: Invalid value: [\"10.0.0.8\"]: may not change once set"},
		},
		"an update keeps the status": {
			Endpoint: "services", Object: plainService,
			Stored: "{spec: {clusterIP: None, clusterIPs: [None]}}",
			Update: "{spec: {selector: {app: other}}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}",
			Want:   map[string]string{"spec.selector.app": "other", "status": `{"loadBalancer":{}}`},
		},
		"a status update keeps the spec": {
			Endpoint: "services/status", Object: plainService, With: "spec: {type: LoadBalancer}",
			Update: "{spec: {selector: {app: other}}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}}",
			Want: map[string]string{
				"spec.selector.app": "web", "status.loadBalancer.ingress[0].ip": "192.0.2.1",
				"status.loadBalancer.ingress[0].ipMode": "VIP",
			},
		},
	})
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"create sets the phase, the finalizer and the label": {
			Endpoint: "namespaces", Object: namespace, With: "status: {phase: Terminating}",
			Want: map[string]string{
				"metadata.labels": `{"kubernetes.io/metadata.name":"team"}`, "spec.finalizers": `["kubernetes"]`,
				"status.phase": "Active",
			},
		},
		"only finalize removes the finalizer": {
			Endpoint: "namespaces", Object: namespace, Update: "{spec: {finalizers: []}, status: {phase: Terminating}}",
			Want: map[string]string{"spec.finalizers": `["kubernetes"]`, "status.phase": "Active"},
		},
		"finalize keeps the status": {
			Endpoint: "namespaces/finalize", Object: namespace,
			Update: "{spec: {finalizers: null}, status: {phase: Terminating}}",
			Want:   map[string]string{"spec.finalizers": "", "status.phase": "Active"},
		},
		"only a deleted namespace is terminating": {
			Endpoint: "namespaces/status", Object: namespace, Update: "status: {phase: Terminating}",
			Errors: []string{
				"status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty",
			},
		},
	})
}

func TestNodes(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"create accepts a status": {
			Endpoint: "nodes", Object: plainNode, With: "status: {capacity: {cpu: 4}}",
			Want: map[string]string{"spec.podCIDRs": `["10.1.0.0/24"]`, "status.capacity": `{"cpu":"4"}`},
		},
		"an update keeps the status": {
			Endpoint: "nodes", Object: plainNode, Update: "{spec: {unschedulable: true}, status: {capacity: {cpu: 4}}}",
			Want: map[string]string{"spec.unschedulable": "true", "status.capacity": ""},
		},
		"the range of pod IPs is immutable": {
			Endpoint: "nodes", Object: plainNode, Update: "spec: {podCIDR: 10.2.0.0/24, podCIDRs: [10.2.0.0/24]}",
			Errors: []string{"spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid"},
		},
		"a status update keeps the spec": {
			Endpoint: "nodes/status", Object: plainNode, Update: "{spec: {unschedulable: true}, status: {capacity: {cpu: 4}}}",
			Want: map[string]string{"spec.unschedulable": "", "status.capacity": `{"cpu":"4"}`},
		},
	})
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"keys of a ConfigMap are validated": {
			Endpoint: "configmaps", Object: configMap, With: "data: {a/b: x}",
			Errors: []string{
				`data[a/b]: Invalid value: "a/b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' ` +
					"(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
			},
		},
		"an immutable ConfigMap cannot be changed": {
			Endpoint: "configmaps", Object: configMap, With: "immutable: true", Update: "data: {key: b}",
			Errors: []string{"data: Forbidden: field is immutable when `immutable` is set"},
		},
		"a Secret is opaque by default": {
			Endpoint: "secrets", Object: secret, With: "stringData: {other: text}",
			Want: map[string]string{"type": "Opaque", "data": `{"key":"YQ==","other":"dGV4dA=="}`, "stringData": ""},
		},
		"the type of a Secret is immutable": {
			Endpoint: "secrets", Object: secret, Update: "type: example.com/other",
			Errors: []string{`type: Invalid value: "example.com/other": field is immutable`},
		},
		"a Secret of a type needs its keys": {
			Endpoint: "secrets", Object: secret, With: "type: kubernetes.io/tls",
			Errors: []string{"data[tls.crt]: Required value", "data[tls.key]: Required value"},
		},
		"a ServiceAccount refers to Secrets by name": {
			Endpoint: "serviceaccounts", Object: account, With: "secrets: [{name: token, namespace: other}]",
			Want: map[string]string{"secrets": `[{"name":"token"}]`},
		},
	})
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"a new claim is pending": {
			Endpoint: "persistentvolumeclaims", Object: claim, With: "status: {phase: Bound}",
			Want: map[string]string{"spec.volumeMode": "Filesystem", "status": `{"phase":"Pending"}`},
		},
		"a claim needs access modes and a size": {
			Endpoint: "persistentvolumeclaims", Object: claim, With: "spec: {accessModes: null, resources: null}",
			Errors: []string{
				"spec.accessModes: Required value: at least 1 access mode is required",
				"spec.resources[storage]: Required value",
			},
		},
		"a new volume is pending": {
			Endpoint: "persistentvolumes", Object: volume, With: "status: {phase: Bound}",
			Want: map[string]string{
				"spec.persistentVolumeReclaimPolicy": "Retain", "spec.volumeMode": "Filesystem", "status.phase": "Pending",
			},
		},
		"a status update of a volume keeps the spec": {
			Endpoint: "persistentvolumes/status", Object: volume,
			Update: "{spec: {persistentVolumeReclaimPolicy: Delete}, status: {phase: Available}}",
			Want:   map[string]string{"spec.persistentVolumeReclaimPolicy": "Retain", "status.phase": "Available"},
		},
		"a status update of a claim keeps the spec": {
			Endpoint: "persistentvolumeclaims/status", Object: claim,
			Update: "{spec: {volumeName: disk}, status: {phase: Bound}}",
			Want:   map[string]string{"spec.volumeName": "", "status.phase": "Bound"},
		},
	})
}

func TestOtherKinds(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitionsOf(core.Options{}), map[string]builtintest.Write{
		"a ReplicationController gets a selector": {
			Endpoint: "replicationcontrollers", Object: controller, With: "status: {replicas: 3}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.replicas": "1", "spec.selector": `{"app":"web"}`, "status.replicas": "0",
			},
		},
		"an update of the scale changes the replicas": {
			Endpoint: "replicationcontrollers/scale", Object: controller, Update: "spec: {replicas: 4}",
			Want: map[string]string{"metadata.generation": "2", "spec.replicas": "4"},
		},
		"a new ResourceQuota has no status": {
			Endpoint: "resourcequotas", Object: quota, With: "status: {used: {pods: 1}}",
			Want: map[string]string{"spec.hard.pods": "3", "status": "{}"},
		},
		"a status update of a ResourceQuota keeps the spec": {
			Endpoint: "resourcequotas/status", Object: quota, Update: "{spec: {hard: {pods: 9}}, status: {used: {pods: 1}}}",
			Want: map[string]string{"spec.hard.pods": "3", "status.used.pods": "1"},
		},
		"ports of Endpoints are validated": {
			Endpoint: "endpoints", Object: endpoints, With: "subsets: [{addresses: [{ip: 10.1.0.4}], ports: [{port: 0}]}]",
			Errors: []string{"subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		},
		"limits are validated": {
			Endpoint: "limitranges", Object: limits,
			With: "spec: {limits: [{type: Container, min: {cpu: 2}, max: {cpu: 1}}]}",
			Errors: []string{
				`spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1`,
				`spec.limits[0].defaultRequest[cpu]: Invalid value: "1": min value 2 is greater than default request value 1`,
				`spec.limits[0].default[cpu]: Invalid value: "2": min value 2 is greater than default value 1`,
			},
		},
		"a PodTemplate is validated like a pod": {
			Endpoint: "podtemplates", Object: template, Errors: []string{"template.spec.containers: Required value"},
		},
		"an event is in the namespace of its object": {
			Endpoint: "events", Object: event, With: "involvedObject: {namespace: other}",
			Errors: []string{`involvedObject.namespace: Invalid value: "other": does not match event.namespace`},
		},
	})
}
