package main

// operator is the name of the operator's Deployment and roles.
const operator = "quorate-operator"

// namespace is the operator's namespace in the manifests. Templates replace it by the namespace of the Helm release.
const namespace = "quorate-system"

// eachNamespace is a placeholder for the namespace of a Role, until a template replaces it by the dot.
const eachNamespace = "each-namespace"

// conditions are the Helm expressions under which objects are rendered, by kind and name. Other objects are always
// rendered.
var conditions = map[string]string{
	"NetworkPolicy " + operator:                                     ".Values.networkPolicy.enabled",
	"PodDisruptionBudget " + operator:                               ".Values.disruptionBudget.enabled",
	"ValidatingAdmissionPolicy quorate-deletion-protection":         ".Values.deletionProtection.enabled",
	"ValidatingAdmissionPolicyBinding quorate-deletion-protection":  ".Values.deletionProtection.enabled",
	"ClusterRole quorate-edit":                                      ".Values.userRoles.enabled",
	"ClusterRole quorate-view":                                      ".Values.userRoles.enabled",
	"CustomResourceDefinition apiserverclusters.quorate.dev":        ".Values.crds.enabled",
	"CustomResourceDefinition apiserverbackups.quorate.dev":         ".Values.crds.enabled",
	"CustomResourceDefinition apiserverbackupschedules.quorate.dev": ".Values.crds.enabled",
	"CustomResourceDefinition apiserverkubeconfigs.quorate.dev":     ".Values.crds.enabled",
}

// substitution replaces a text that occurs exactly once in each object of a kind by a Helm expression.
type substitution struct{ old, expression string }

var substitutions = map[string][]substitution{
	"CustomResourceDefinition": {
		{"\nmetadata:\n  annotations:\n", "\nmetadata:\n  annotations:\n    helm.sh/resource-policy: keep\n"},
	},
	"ServiceAccount": {
		{
			"kind: ServiceAccount\n", "kind: ServiceAccount\n{{- with .Values.image.pullSecrets }}\nimagePullSecrets:\n{{- " +
				"toYaml . | nindent 0 }}\n{{- end }}\n",
		},
	},
	"ServiceMonitor": {
		{"    app.kubernetes.io/name: " + operator + "\n  name:", "    app.kubernetes.io/name: " + operator + `
    {{- with .Values.monitoring.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  name:`},
	},
	"Role":        {},
	"RoleBinding": {},
	"Deployment": {
		{"  replicas: 2\n", "  replicas: {{ .Values.replicas }}\n"},
		{"        image: quorate:latest\n", "        image: {{ include \"quorate.image\" . }}\n"},
		{"          value: quorate:latest\n", "          value: {{ include \"quorate.image\" . }}\n"},
		{"        imagePullPolicy: IfNotPresent\n", "        imagePullPolicy: {{ .Values.image.pullPolicy }}\n"},
		{"        - --logging-format=json\n", `        - --logging-format=json
        {{- with .Values.namespaces }}
        - --namespaces={{ join "," . }}
        {{- end }}
        {{- range .Values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
`},
		{`        resources:
          limits:
            memory: 512Mi
          requests:
            cpu: 50m
            memory: 128Mi
`, "        resources:\n          {{- toYaml .Values.resources | nindent 10 }}\n"},
		{"      serviceAccountName: " + operator + "\n", "      serviceAccountName: " + operator + `
      {{- with .Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with .Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
`},
		{"  template:\n    metadata:\n", `  template:
    metadata:
      {{- with .Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
`},
	},
}
