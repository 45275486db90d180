package management

// OperatorNamespace is the namespace of the operator's ServiceAccount.
const OperatorNamespace = "quorate-system"

// OperatorUser is the user name of the operator's ServiceAccount. The operator of a sandbox runs outside of the
// cluster. Instead of a token of the ServiceAccount, it has a client certificate with the same user name and groups,
// and therefore the same permissions.
const OperatorUser = "system:serviceaccount:" + OperatorNamespace + ":quorate-operator"

var operatorGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + OperatorNamespace}

// AuditLog is the path, relative to the directory of the Plane, of the audit log with the requests of service accounts.
// Tests compare the requests with the permissions in the manifests.
const AuditLog = "audit.log"

const auditPolicyFile = "audit-policy.yaml"

const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: [system:serviceaccounts]
- level: None
`
