package compatibility

import "strings"

// kind describes an API through which an object named NAME is created.
type kind struct {
	name       string
	collection string // path in the API
	prefix     string // prefix of the keys in etcd
	body       string
}

func (k kind) path(name string) string { return k.collection + "/" + name }

func (k kind) key(name string) string { return k.prefix + "/" + name }

func (k kind) named(name string) string { return strings.ReplaceAll(k.body, "NAME", name) }

// namespaced returns a kind whose objects are in the namespace of the test.
func namespaced(name, groupVersion, plural, keys, body string) kind {
	return kind{
		name: name, collection: groupVersion + "/namespaces/" + namespace + "/" + plural,
		prefix: "/registry/" + keys + "/" + namespace, body: body,
	}
}

func global(name, groupVersion, plural, keys, body string) kind {
	return kind{name: name, collection: groupVersion + "/" + plural, prefix: "/registry/" + keys, body: body}
}

const podTemplate = `{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx:1.29",
	"ports":[{"containerPort":80}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}}}]}}`

func kinds() []kind {
	return append([]kind{
		namespaced("configmap", "/api/v1", "configmaps", "configmaps",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME","annotations":{"a":"b"}},"data":{"key":"value"},"binaryData":{"b":"AAEC"}}`),
		namespaced("secret", "/api/v1", "secrets", "secrets",
			`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"NAME"},"type":"Opaque","stringData":{"password":"correct horse"}}`),
		namespaced("pod", "/api/v1", "pods", "pods",
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx",
			"env":[{"name":"A","value":"1"}],"readinessProbe":{"httpGet":{"path":"/","port":80}}}],"volumes":[{"name":"v","emptyDir":{}}]}}`),
		namespaced("headless service", "/api/v1", "services", "services/specs",
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"NAME"},"spec":{"clusterIP":"None","selector":{"app":"web"},"ports":[{"port":80}]}}`),
		namespaced("event", "/api/v1", "events", "events",
			`{"apiVersion":"v1","kind":"Event","metadata":{"name":"NAME"},"involvedObject":{"kind":"Pod","name":"web","namespace":"compatibility"},
			"reason":"Started","message":"started","type":"Normal","count":1,"firstTimestamp":"2026-01-02T03:04:05Z","lastTimestamp":"2026-01-02T03:04:05Z"}`),
	}, groupKinds()...)
}

func groupKinds() []kind {
	return []kind{
		namespaced("deployment", "/apis/apps/v1", "deployments", "deployments",
			`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"NAME"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},"template":`+podTemplate+`}}`),
		namespaced("job", "/apis/batch/v1", "jobs", "jobs",
			`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"NAME"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"busybox"}]}}}}`),
		namespaced("lease", "/apis/coordination.k8s.io/v1", "leases", "leases",
			`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"NAME"},"spec":{"holderIdentity":"me","leaseDurationSeconds":15,"renewTime":"2026-01-02T03:04:05.000006Z"}}`),
		namespaced("role", "/apis/rbac.authorization.k8s.io/v1", "roles", "roles",
			`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"NAME"},"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]}]}`),
		namespaced("horizontal pod autoscaler", "/apis/autoscaling/v2", "horizontalpodautoscalers",
			"horizontalpodautoscalers",
			`{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"NAME"},"spec":{"maxReplicas":5,
			"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"},
			"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":70}}}]}}`),
		namespaced("ingress", "/apis/networking.k8s.io/v1", "ingresses", "ingress",
			`{"apiVersion":"networking.k8s.io/v1","kind":"Ingress","metadata":{"name":"NAME"},"spec":{"rules":[{"host":"example.com","http":{"paths":[
			{"path":"/","pathType":"Prefix","backend":{"service":{"name":"web","port":{"number":80}}}}]}}]}}`),
		namespaced("pod disruption budget", "/apis/policy/v1", "poddisruptionbudgets", "poddisruptionbudgets",
			`{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"NAME"},"spec":{"maxUnavailable":"25%","selector":{"matchLabels":{"app":"web"}}}}`),
		global("storage class", "/apis/storage.k8s.io/v1", "storageclasses", "storageclasses",
			`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"NAME"},"provisioner":"example.com/disk","parameters":{"type":"fast"}}`),
		global("webhook configuration", "/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations",
			"validatingwebhookconfigurations",
			`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"NAME"},"webhooks":[{"name":"check.example.com",
			"sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/check"},"failurePolicy":"Ignore",
			"rules":[{"apiGroups":["example.com"],"apiVersions":["v1"],"operations":["CREATE"],"resources":["nothing"]}]}]}`),
	}
}

const definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// definition is a CustomResourceDefinition with defaulting, pruning, a CEL rule, a printer column and the status
// subresource.
func definition(plural, kindName string) string {
	return strings.NewReplacer("PLURAL", plural, "KIND", kindName).Replace(
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"PLURAL.example.com"},"spec":{
		"group":"example.com","scope":"Namespaced","names":{"plural":"PLURAL","kind":"KIND"},"versions":[{"name":"v1","served":true,"storage":true,
		"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"Size","type":"integer","jsonPath":".spec.size"}],
		"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"spec":{"type":"object","x-kubernetes-validations":[{"rule":"self.size < 100"}],
				"properties":{"size":{"type":"integer","default":3},"color":{"type":"string"},"note":{"type":"string"}}},
			"status":{"type":"object","properties":{"ready":{"type":"boolean"}}}}}}}]}}`)
}

func custom(plural, kindName string) kind {
	return namespaced("custom resource "+kindName, "/apis/example.com/v1", plural, "example.com/"+plural,
		`{"apiVersion":"example.com/v1","kind":"`+kindName+
			`","metadata":{"name":"NAME"},"spec":{"note":"<&>","color":"red","pruned":true}}`)
}
