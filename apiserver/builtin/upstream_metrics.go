package builtin

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // registers the metrics of client-go's clients
	_ "k8s.io/component-base/metrics/prometheus/workqueue"  // registers the metrics of client-go's queues

	"quorate.dev/apiserver/metrics"
)

// MeasureUpstream registers the process-wide metrics of upstream's packages: the Go runtime and the process, audit,
// admission webhooks and policies, authorization and conversion webhooks, the graph of the Node authorizer, delegated
// authentication and authorization, encryption, OIDC issuers, service-account tokens, pod security, CEL, declarative
// and ratcheting validation, WebSocket streams, clients and work queues of client-go. It must be called after
// Configure, because the feature gates decide whether upstream's histograms have native buckets.
func MeasureUpstream(registerer prometheus.Registerer) {
	validation.RegisterMetrics()
	registerer.MustRegister(metrics.FromUpstream(
		process{legacyregistry.DefaultGatherer},
		"go_", "process_",
		"apiextensions_apiserver_validation_ratcheting_",
		"apiserver_admission_match_condition_",
		"apiserver_admission_webhook_",
		"apiserver_audit_",
		"apiserver_authentication_config_controller_",
		"apiserver_authentication_jwt_authenticator_",
		"apiserver_authorization_config_controller_",
		"apiserver_authorization_match_condition_",
		"apiserver_authorization_webhook_",
		"apiserver_cel_",
		"apiserver_conversion_webhook_",
		"apiserver_crd_conversion_webhook_",
		"apiserver_delegated_authn_",
		"apiserver_delegated_authz_",
		"apiserver_egress_dialer_",
		"apiserver_encryption_config_controller_",
		"apiserver_envelope_encryption_",
		"apiserver_externaljwt_",
		"apiserver_flowcontrol_",
		"apiserver_manifest_admission_config_controller_",
		"apiserver_mutating_admission_policy_",
		"apiserver_storage_data_key_generation_",
		"apiserver_storage_envelope_transformation_",
		"apiserver_storage_transformation_",
		"apiserver_validating_admission_policy_",
		"apiserver_webhooks_",
		"apiserver_stream_",
		"apiserver_validation_",
		"konnectivity_network_proxy_client_",
		"node_authorizer_",
		"pod_security_",
		"rest_client_",
		"serviceaccount_",
		"workqueue_",
	))
}

type process struct{ prometheus.Gatherer }

// Reset resets all of upstream's metrics.
func (process) Reset() { legacyregistry.Reset() }
