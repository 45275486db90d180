package main

import (
	"context"
	"net/http"
	"os"
	"path/filepath"

	"quorate.dev/test/measure/samples"
)

// auditPolicy selects the audit level by the namespace, so that one server shows the cost of both levels.
const auditPolicy = `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[
	{"level":"Metadata","namespaces":["` + namespace + `"]},
	{"level":"None"}
]}`

const auditedObject = "/configmaps/audited"

// audits returns the reads from servers with auditPolicy and a log file in blocking mode. Each row is compared with the
// row of the same read in reads, from servers without a policy.
func audits() []work {
	const audited, notAudited = "/api/v1/namespaces/" + namespace, "/api/v1/namespaces/" + manyNamespace
	return []work{
		{
			name: "GET a configmap, audit level None", promise: 1.0 / 4, parallel: 16,
			request: read(notAudited+auditedObject, asJSON),
		},
		{
			name: "GET a configmap, audit level Metadata", promise: 1.0 / 4, parallel: 16,
			request: read(audited+auditedObject, asJSON),
		},
	}
}

// auditFlags writes the policy and returns the flags of a server that audits.
func auditFlags(directory string) ([]string, error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	policy := filepath.Join(directory, "audit-policy.json")
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(directory, "audit.log")},
		os.WriteFile(policy, []byte(auditPolicy), 0o600)
}

// auditSteps returns the steps for servers that audit.
func (p plan) auditSteps() []step {
	steps := []step{
		func(ctx context.Context, s *subject) error { return s.settle(ctx) },
		func(ctx context.Context, s *subject) error { return s.warmUp(ctx) },
		func(ctx context.Context, s *subject) error {
			object := configMap("audited", 0)
			for _, path := range []string{configMaps, many} {
				if _, _, err := s.client.do(ctx, request{http.MethodPost, path, asJSON, asJSON, samples.JSON(object)}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	return append(steps, p.measuring(filter(audits(), p))...)
}
