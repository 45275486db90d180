package config

import (
	"encoding/csv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// Flags returns a flag set that is bound to c. The current values are the defaults of the flags.
func (c *Config) Flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("apiserver", pflag.ContinueOnError)
	f.SortFlags = true
	f.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	c.servingFlags(f)
	c.etcdFlags(f)
	c.memberFlags(f)
	c.authenticationFlags(f)
	c.admissionFlags(f)
	c.apiFlags(f)
	c.extensionFlags(f)
	c.Audit.flags(f)
	c.Compatibility.flags(f)
	c.Peers.flags(f)
	c.Leadership.flags(f)
	c.Metrics.flags(f)
	c.Tracing.flags(f)
	c.unimplementedFlags(f)
	if token := f.Lookup("etcd-initial-cluster-token"); token != nil {
		token.Annotations = map[string][]string{classified: {"true"}}
	}
	return f
}

// classified is the annotation of flags whose values must not be shown, as in kube-apiserver.
const classified = "classified"

// Classified reports whether the value of a flag must not be shown.
func Classified(f *pflag.Flag) bool { return len(f.Annotations[classified]) > 0 }

func (c *Config) servingFlags(f *pflag.FlagSet) {
	s := &c.Serving
	stringFlag(f, &s.BindAddress, "bind-address", "IP address on which to listen for the --secure-port.")
	intFlag(f, &s.Port, "secure-port", "Port on which to serve HTTPS.")
	stringFlag(f, &s.AdvertiseAddress, "advertise-address", "IP address published to members of the cluster.")
	stringFlag(f, &s.CertDirectory, "cert-dir", "Directory of apiserver.crt and apiserver.key when no --tls-cert-file "+
		"is given; a self-signed pair is created if they are missing.")
	stringFlag(f, &s.CertFile, "tls-cert-file", "File with the server certificate in PEM; it is reloaded when it changes.")
	stringFlag(f, &s.KeyFile, "tls-private-key-file", "File with the private key of --tls-cert-file.")
	arrayFlag(f, &s.SNICertKeys, "tls-sni-cert-key",
		"Additional certificate and key, as cert,key[:domain,...]; may be repeated.")
	stringFlag(f, &s.TLSMinVersion, "tls-min-version", "Minimum TLS version: VersionTLS12 or VersionTLS13.")
	sliceFlag(f, &s.TLSCipherSuites, "tls-cipher-suites", "Cipher suites of TLS 1.2, with Go's names.")
	f.Int32SliceVar(&s.TLSCurvePreferences, "tls-curve-preferences", s.TLSCurvePreferences,
		"Allowed key exchanges of TLS, as numbers of Go's crypto/tls.CurveID; empty: Go's defaults.")
	boolFlag(f, &s.DisableHTTP2, "disable-http2-serving", "Serve only HTTP/1.1.")
	intFlag(f, &s.HTTP2MaxStreams, "http2-max-streams-per-connection",
		"Maximum number of concurrent HTTP/2 streams per connection; 0: 100.")
	boolFlag(f, &s.PermitPortSharing, "permit-port-sharing", "Listen with SO_REUSEPORT.")
	boolFlag(f, &s.PermitAddressSharing, "permit-address-sharing", "Listen with SO_REUSEADDR.")
	durationFlag(f, &s.RequestTimeout, "request-timeout", "Timeout of requests that are not watches, logs or streams.")
	secondsFlag(f, &s.MinRequestTimeout, "min-request-timeout",
		"Minimum duration, in seconds, of a watch without timeoutSeconds.")
	durationFlag(f, &s.ShutdownDelay, "shutdown-delay-duration", "How long to keep serving after readyz fails.")
	boolFlag(f, &s.ShutdownSendRetryAfter, "shutdown-send-retry-after",
		"Respond with 429 while draining instead of closing the listener.")
	durationFlag(f, &s.ShutdownWatchTerminationGrace, "shutdown-watch-termination-grace-period",
		"Period over which watches are ended during shutdown; 0: all watches end immediately.")
	durationFlag(f, &s.LivezGracePeriod, "livez-grace-period", "How long livez passes before start-up is complete.")
	f.Float64Var(&s.GoawayChance, "goaway-chance", s.GoawayChance,
		"Probability, 0 to 0.02, that a request closes its HTTP/2 connection.")
	sliceFlag(f, &s.StrictTransportSecurity, "strict-transport-security-directives",
		"Directives of the Strict-Transport-Security header.")
	sliceFlag(f, &s.CORSAllowedOrigins, "cors-allowed-origins", "Regular expressions of allowed CORS origins.")
	boolFlag(f, &s.Profiling, "profiling", "Serve /debug/pprof.")
	boolFlag(f, &s.ContentionProfiling, "contention-profiling",
		"Record blocking events for /debug/pprof/block. Needs --profiling.")
	stringFlag(f, &s.DebugSocketPath, "debug-socket-path",
		"Unix socket that serves /debug/pprof and /debug/flags without authentication and authorization.")
	boolFlag(f, &s.LogsHandler, "enable-logs-handler", "Serve the files of /var/log at /logs.")
	stringFlag(f, &s.ExternalHostname, "external-hostname", "Host name in URLs that this server publishes.")
}

func (c *Config) etcdFlags(f *pflag.FlagSet) {
	e := &c.Etcd
	sliceFlag(f, &e.Servers, "etcd-servers", "URLs of the etcd servers.")
	sliceFlag(f, &e.ServersOverrides, "etcd-servers-overrides", "Built-in resources that are stored in another etcd, as "+
		"group/resource#servers, where servers are URLs, semicolon separated: /events#http://etcd4:2379;http://etcd5:2379.")
	stringFlag(f, &e.CAFile, "etcd-cafile", "Certificate authority of the etcd servers.")
	stringFlag(f, &e.CertFile, "etcd-certfile", "Client certificate for etcd.")
	stringFlag(f, &e.KeyFile, "etcd-keyfile", "Key of --etcd-certfile.")
	stringFlag(f, &e.Prefix, "etcd-prefix", "Prefix of all keys in etcd.")
	durationFlag(f, &e.CompactionInterval, "etcd-compaction-interval", "Interval of compaction; 0: never.")
	durationFlag(f, &e.HealthcheckTimeout, "etcd-healthcheck-timeout", "Timeout of the etcd health check; 0: 2s.")
	durationFlag(f, &e.ReadycheckTimeout, "etcd-readycheck-timeout", "Timeout of the etcd readiness check; 0: 2s.")
	durationFlag(f, &e.CountMetricPoll, "etcd-count-metric-poll-period",
		"Accepted but without effect, because stored objects are counted when they change, not by polling.")
	durationFlag(f, &e.DBMetricPoll, "etcd-db-metric-poll-interval",
		"Interval at which the database size of an external etcd is measured; 0: never.")
	intFlag(f, &e.SoftQuotaPercent, "etcd-soft-quota-percent",
		"Percentage of etcd's quota that may be in use before the server rejects writes that create or grow objects; "+
			"100: never. 0: 90 with an embedded member, 100 with an external etcd.")
	stringFlag(f, &e.Backend, "storage-backend", "Storage backend: etcd3.")
	stringFlag(f, &e.StorageMediaType, "storage-media-type", "Media type in which built-in objects are stored: "+
		"application/json, application/yaml or application/vnd.kubernetes.protobuf.")
	durationFlag(f, &e.EventTTL, "event-ttl", "How long events are kept.")
	intFlag(f, &e.LeaseReuseSeconds, "lease-reuse-duration-seconds",
		"Maximum time in seconds over which objects with the same TTL share an etcd lease; 0: each gets its own.")
	stringFlag(f, &e.EncryptionConfig, "encryption-provider-config",
		"File with the EncryptionConfiguration: which resources are encrypted in etcd, and with which keys or KMS plugins.")
	boolFlag(f, &e.ReloadEncryptionConfig, "encryption-provider-config-automatic-reload",
		"Load the file of --encryption-provider-config again when it changes. All KMS plugins then share one health check.")
	boolFlag(f, &e.WatchCache, "watch-cache",
		"Serve reads from the watch cache. Otherwise each read and watch is a request to etcd.")
	sliceFlag(f, &e.WatchCacheSizes, "watch-cache-sizes",
		"Resources, as resource[.group]#size. Size 0 disables the watch cache for the resource; other sizes are without "+
			"effect, as in kube-apiserver.")
	durationFlag(f, &e.InitializationTimeout, "storage-initialization-timeout",
		"How long the check poststarthook/storage-readiness waits for the watch caches of all resources.")
}

func (c *Config) memberFlags(f *pflag.FlagSet) {
	m := &c.Member
	stringFlag(f, &m.DataDirectory, "etcd-data-dir",
		"Data directory of the embedded etcd member. If set, the server runs a member.")
	stringFlag(f, &m.Name, "etcd-name", "Name of the embedded member.")
	sliceFlag(f, &m.ListenPeerURLs, "etcd-listen-peer-urls",
		"URLs on which the member listens for peers. Without any, it is the only member of its cluster, and no other member "+
			"can join.")
	sliceFlag(f, &m.AdvertisePeerURLs, "etcd-initial-advertise-peer-urls",
		"Peer URLs announced to the other members; default: the listen URLs.")
	sliceFlag(f, &m.ListenClientURLs, "etcd-listen-client-urls",
		"URLs on which the member listens for clients; none by default. 'quorate etcd' reaches it through a socket in its "+
			"data directory.")
	sliceFlag(f, &m.AdvertiseClientURLs, "etcd-advertise-client-urls",
		"Client URLs announced to the members of the cluster.")
	stringFlag(f, &m.InitialCluster, "etcd-initial-cluster",
		"Members of the cluster as name=peer-url,..., used if the data directory is empty; default: only this member.")
	stringFlag(f, &m.InitialClusterState, "etcd-initial-cluster-state", "new: bootstrap a cluster; existing: join one.")
	stringFlag(f, &m.InitialClusterToken, "etcd-initial-cluster-token",
		"Token that distinguishes clusters with the same peer URLs.")
	stringFlag(f, &m.PeerCertFile, "etcd-peer-cert-file", "Certificate of the member for connections with peers.")
	stringFlag(f, &m.PeerKeyFile, "etcd-peer-key-file", "Key of --etcd-peer-cert-file.")
	stringFlag(f, &m.PeerTrustedCAFile, "etcd-peer-trusted-ca-file",
		"Certificate authority of peers, which must present a certificate.")
	stringFlag(f, &m.ServerCertFile, "etcd-server-cert-file", "Certificate of the member's client URLs.")
	stringFlag(f, &m.ServerKeyFile, "etcd-server-key-file", "Key of --etcd-server-cert-file.")
	stringFlag(f, &m.ServerTrustedCAFile, "etcd-server-trusted-ca-file",
		"Certificate authority of etcd clients, which must present a certificate.")
	boolFlag(f, &m.AllowInsecureTransport, "etcd-allow-insecure-transport",
		"Allow http URLs of the member, and https URLs without a certificate authority for peers or clients. Anyone who "+
			"can reach them can read and write all data.")
	f.Int64Var(&m.QuotaBackendBytes, "etcd-quota-backend-bytes", m.QuotaBackendBytes,
		"Maximum size of the member's database in bytes.")
	f.Uint64Var(&m.SnapshotCount, "etcd-snapshot-count", m.SnapshotCount,
		"Number of committed transactions between raft snapshots.")
	durationFlag(f, &m.HeartbeatInterval, "etcd-heartbeat-interval", "Interval of the leader's heartbeats.")
	durationFlag(f, &m.ElectionTimeout, "etcd-election-timeout",
		"Time without heartbeats after which a member starts an election.")
	boolFlag(f, &m.UnsafeNoFsync, "etcd-unsafe-no-fsync",
		"Do not call fsync; a crash of the machine may lose data. For tests only.")
}

func (c *Config) authenticationFlags(f *pflag.FlagSet) {
	a := &c.Authentication
	boolFlag(f, &a.Anonymous, "anonymous-auth", "Accept requests without credentials as user system:anonymous.")
	stringFlag(f, &a.ClientCAFile, "client-ca-file", "Certificate authority of clients.")
	stringFlag(f, &a.TokenFile, "token-auth-file", "CSV file of tokens: token,user,uid,\"group,...\".")
	stringFlag(f, &a.RequestHeaderCAFile, "requestheader-client-ca-file", "Certificate authority of front proxies.")
	sliceFlag(f, &a.RequestHeaderAllowedNames, "requestheader-allowed-names", "Common names of front proxies; empty: any.")
	sliceFlag(f, &a.RequestHeaderUsername, "requestheader-username-headers", "Headers with the user name.")
	sliceFlag(f, &a.RequestHeaderUID, "requestheader-uid-headers", "Headers with the user's UID.")
	sliceFlag(f, &a.RequestHeaderGroup, "requestheader-group-headers", "Headers with groups.")
	sliceFlag(f, &a.RequestHeaderExtraPrefix, "requestheader-extra-headers-prefix",
		"Prefixes of headers with extra attributes.")
	arrayFlag(f, &a.ServiceAccountIssuers, "service-account-issuer",
		"Issuer of service-account tokens; may be repeated. The first one issues new tokens.")
	arrayFlag(f, &a.ServiceAccountKeyFiles, "service-account-key-file",
		"Key that verifies service-account tokens; may be repeated.")
	stringFlag(f, &a.ServiceAccountSigningKey, "service-account-signing-key-file",
		"Key that signs service-account tokens.")
	boolFlag(f, &a.ServiceAccountLookup, "service-account-lookup",
		"Check that the objects to which a token is bound still exist.")
	durationFlag(f, &a.ServiceAccountMaxLifetime, "service-account-max-token-expiration",
		"Maximum lifetime of an issued token.")
	boolFlag(f, &a.ServiceAccountExtendExpiry, "service-account-extend-token-expiration",
		"Extend the lifetime of tokens injected into pods.")
	stringFlag(f, &a.ServiceAccountJWKSURI, "service-account-jwks-uri",
		"URI of the JSON web key set in the discovery document.")
	sliceFlag(f, &a.APIAudiences, "api-audiences", "Audiences of this server; default: the issuer.")
	boolFlag(f, &a.BootstrapTokens, "enable-bootstrap-token-auth", "Accept bootstrap tokens.")
	stringFlag(f, &a.ServiceAccountSigningEndpoint, "service-account-signing-endpoint",
		"Socket of an external signer of service-account tokens; @name is an abstract socket.")
	stringFlag(f, &a.ConfigFile, "authentication-config",
		"File with an AuthenticationConfiguration: issuers of JSON web tokens and anonymous requests. It is reloaded when "+
			"it changes.")
	stringFlag(f, &a.TokenWebhook.ConfigFile, "authentication-token-webhook-config-file",
		"Kubeconfig of the webhook that reviews bearer tokens.")
	stringFlag(f, &a.TokenWebhook.Version, "authentication-token-webhook-version",
		"Version of the TokenReview for the webhook: v1 or v1beta1.")
	durationFlag(f, &a.TokenWebhook.CacheTTL, "authentication-token-webhook-cache-ttl",
		"How long responses of the token webhook are cached.")
	c.oidcFlags(f)
	c.authorizationFlags(f)
	c.trackFlag(f, "anonymous-auth")
}

func (c *Config) oidcFlags(f *pflag.FlagSet) {
	o := &c.Authentication.OIDC
	stringFlag(f, &o.IssuerURL, "oidc-issuer-url", "URL of the OpenID issuer; https only.")
	stringFlag(f, &o.ClientID, "oidc-client-id", "Audience that tokens of the OpenID issuer must have.")
	stringFlag(f, &o.CAFile, "oidc-ca-file",
		"Certificate authority of the OpenID issuer; default: the system's certificate authorities.")
	stringFlag(f, &o.UsernameClaim, "oidc-username-claim", "Claim with the user name.")
	stringFlag(f, &o.UsernamePrefix, "oidc-username-prefix",
		"Prefix of user names; default: the issuer's URL and #, unless the claim is email. -: none.")
	stringFlag(f, &o.GroupsClaim, "oidc-groups-claim", "Claim with the groups, a string or a list of strings.")
	stringFlag(f, &o.GroupsPrefix, "oidc-groups-prefix", "Prefix of groups.")
	sliceFlag(f, &o.SigningAlgs, "oidc-signing-algs",
		"Accepted signing algorithms: RS256, RS384, RS512, ES256, ES384, ES512, PS256, PS384, PS512.")
	f.Var(cliflag.NewMapStringStringNoSplit(&o.RequiredClaims), requiredClaimFlag,
		"Claim that tokens must have, as name=value; may be repeated.")
	for _, name := range oidcFlagNames {
		c.trackFlag(f, name)
	}
}

func (c *Config) authorizationFlags(f *pflag.FlagSet) {
	a := &c.Authorization
	sliceFlag(f, &a.Modes, "authorization-mode",
		"Authorization modes in order: AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node.")
	stringFlag(f, &a.ConfigFile, "authorization-config",
		"File with an AuthorizationConfiguration, instead of the modes. It is reloaded when it changes.")
	stringFlag(f, &a.PolicyFile, "authorization-policy-file", "File with the policy of ABAC, one JSON object per line.")
	stringFlag(f, &a.Webhook.ConfigFile, "authorization-webhook-config-file", "Kubeconfig of the webhook of mode Webhook.")
	stringFlag(f, &a.Webhook.Version, "authorization-webhook-version",
		"Version of the SubjectAccessReview for the webhook: v1 or v1beta1.")
	durationFlag(f, &a.Webhook.AuthorizedTTL, "authorization-webhook-cache-authorized-ttl",
		"How long the webhook's responses that allow are cached; 0: not at all.")
	durationFlag(f, &a.Webhook.UnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl",
		"How long the webhook's other responses are cached; 0: not at all.")
	for _, name := range modeFlagNames {
		c.trackFlag(f, name)
	}
}

func (c *Config) admissionFlags(f *pflag.FlagSet) {
	a := &c.Admission
	sliceFlag(f, &a.Enable, "enable-admission-plugins", "Admission plugins to enable in addition to the default ones.")
	sliceFlag(f, &a.Disable, "disable-admission-plugins", "Admission plugins to disable.")
	stringFlag(f, &a.ConfigFile, "admission-control-config-file", "File with the configuration of admission plugins.")
	sliceFlag(f, &a.Control, "admission-control", "All enabled admission plugins.")
	f.Lookup("admission-control").Deprecated = "Use --enable-admission-plugins or --disable-admission-plugins instead. " +
		"Will be removed in a future version."
	secondsFlag(f, &a.NotReadyToleration, "default-not-ready-toleration-seconds",
		"How long, in seconds, pods without this toleration tolerate nodes that are not ready.")
	secondsFlag(f, &a.UnreachableToleration, "default-unreachable-toleration-seconds",
		"How long, in seconds, pods without this toleration tolerate unreachable nodes.")
	boolFlag(f, &a.AllowPrivileged, "allow-privileged", "Allow privileged containers.")
}

func (c *Config) apiFlags(f *pflag.FlagSet) {
	a, l := &c.API, &c.Limits
	intFlag(f, &l.MaxRequestsInFlight, "max-requests-inflight",
		"Maximum number of non-mutating requests in flight; 0: no limit.")
	intFlag(f, &l.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight",
		"Maximum number of mutating requests in flight; 0: no limit.")
	boolFlag(f, &l.PriorityAndFairness, "enable-priority-and-fairness", "Queue and limit requests by FlowSchemas and "+
		"PriorityLevelConfigurations, with the sum of both limits of requests in flight as seats; false: the limits apply "+
		"separately.")
	intFlag(f, &l.DeleteCollectionWorkers, "delete-collection-workers", "Number of workers per DeleteCollection request.")
	f.Var(newSwitches(&a.RuntimeConfig), "runtime-config",
		"API groups and versions to enable or disable: api/all=true,apps/v1=false,...")
	f.Var(cliflag.NewMapStringString(&a.FeatureGates), "feature-gates", "Feature gates: name=true,...")
	stringFlag(f, &a.ServiceClusterIPRange, "service-cluster-ip-range",
		"CIDR of Service IPs; one per IP family, separated by a comma.")
	stringFlag(f, &a.ServiceNodePortRange, "service-node-port-range", "Range of node ports.")
	stringFlag(f, &a.KubeletClientCertFile, "kubelet-client-certificate", "Client certificate for kubelets.")
	stringFlag(f, &a.KubeletClientKeyFile, "kubelet-client-key", "Key of --kubelet-client-certificate.")
	stringFlag(f, &a.KubeletCAFile, "kubelet-certificate-authority", "Certificate authority of kubelets.")
	sliceFlag(f, &a.KubeletAddressTypes, "kubelet-preferred-address-types",
		"Types of node addresses in order of preference.")
	f.UintVar(&a.KubeletPort, "kubelet-port", a.KubeletPort, "Port of kubelets whose nodes do not report one.")
	durationFlag(f, &a.KubeletTimeout, "kubelet-timeout",
		"Accepted but without effect, as in kube-apiserver: requests to kubelets last as long as their clients wait.")
	f.Int64Var(&a.MaxConnectionBytes, "max-connection-bytes-per-sec", a.MaxConnectionBytes,
		"Maximum bytes per second of each stream to a kubelet or pod; 0: no limit.")
	stringFlag(f, &a.EgressSelectorFile, "egress-selector-config-file",
		"File with an EgressSelectorConfiguration: the proxies for connections to etcd, the control plane and the cluster.")
	stringFlag(f, &a.ProxyClientCertFile, "proxy-client-cert-file", "Client certificate for aggregated API servers.")
	stringFlag(f, &a.ProxyClientKeyFile, "proxy-client-key-file", "Key of --proxy-client-cert-file.")
	boolFlag(f, &a.AggregatorRouting, "enable-aggregator-routing",
		"Call aggregated API servers at the addresses of their endpoints.")
	boolFlag(f, &a.RejectForwardingRedirects, "aggregator-reject-forwarding-redirect",
		"Respond with an error when an aggregated API server redirects a request.")
	stringFlag(f, &a.EndpointReconcilerType, "endpoint-reconciler-type",
		"Reconciler of the endpoints of the kubernetes Service: lease, master-count or none.")
	intFlag(f, &a.ServerCount, "apiserver-count", "Number of API servers, for --endpoint-reconciler-type=master-count.")
	intFlag(f, &a.KubernetesNodePort, "kubernetes-service-node-port", "Node port of the kubernetes Service; 0: none.")
	boolFlag(f, &a.GarbageCollector, "enable-garbage-collector",
		"A garbage collector runs in the cluster, so that deletions may wait for it. Must be the same in "+
			"kube-controller-manager.")
	f.Var((*versionValue)(&a.Version), "version",
		"--version and --version=raw print the version and exit; --version=vX.Y.Z-custom sets the reported version.")
	f.Lookup("version").NoOptDefVal = "true"
	sliceFlag(f, &c.Controllers.Enabled, "controllers", "Controllers that run in this process with leader election: "+
		"namespace, garbagecollector, serviceaccount, resourcequota, clusterrole-aggregation, "+
		"validatingadmissionpolicy-status, or *.")
	stringFlag(f, &c.Logging.Format, "logging-format", "Format of the log: text or json.")
	f.IntVarP(&c.Logging.Verbosity, "v", "v", c.Logging.Verbosity, "Verbosity of the log.")
	f.Var((*vmoduleValue)(&c.Logging.VModule), "vmodule",
		"Verbosity by source file, as pattern=N,...; only with --logging-format=text.")
	durationFlag(f, &c.Logging.FlushFrequency, "log-flush-frequency",
		"Interval at which buffered lines are written; see --log-text-info-buffer-size.")
	c.Logging.formatFlags(f)
}

// formatFlags defines the flags of Options.
func (l *Logging) formatFlags(f *pflag.FlagSet) {
	for _, format := range []struct {
		name    string
		options *logsapi.OutputRoutingOptions
	}{{"text", &l.Options.Text.OutputRoutingOptions}, {"json", &l.Options.JSON.OutputRoutingOptions}} {
		boolFlag(f, &format.options.SplitStream, "log-"+format.name+"-split-stream", "With --logging-format="+format.name+
			": write errors to stderr and other lines to stdout, instead of all lines to stderr. Alpha: requires the "+
			"feature gate LoggingAlphaOptions.")
		f.Var(&format.options.InfoBufferSize, "log-"+format.name+"-info-buffer-size", "Bytes of lines to buffer before "+
			"stdout, with --log-"+format.name+"-split-stream; 0: none. Alpha: requires the feature gate "+
			"LoggingAlphaOptions.")
	}
}

// csvLine returns the elements as one line of CSV. It ignores errors, because writing to memory cannot fail.
func csvLine(elements []string) string {
	var line strings.Builder
	writer := csv.NewWriter(&line)
	_ = writer.Write(elements)
	writer.Flush()
	return strings.TrimSuffix(line.String(), "\n")
}

func stringFlag(f *pflag.FlagSet, p *string, name, usage string) { f.StringVar(p, name, *p, usage) }
func boolFlag(f *pflag.FlagSet, p *bool, name, usage string)     { f.BoolVar(p, name, *p, usage) }
func intFlag(f *pflag.FlagSet, p *int, name, usage string)       { f.IntVar(p, name, *p, usage) }
func sliceFlag(f *pflag.FlagSet, p *[]string, name, usage string) {
	f.StringSliceVar(p, name, *p, usage)
}
func arrayFlag(f *pflag.FlagSet, p *[]string, name, usage string) {
	f.StringArrayVar(p, name, *p, usage)
}
func durationFlag(f *pflag.FlagSet, p *time.Duration, name, usage string) {
	f.DurationVar(p, name, *p, usage)
}
func secondsFlag(f *pflag.FlagSet, p *time.Duration, name, usage string) {
	f.Var((*secondsValue)(p), name, usage)
}

// Args returns the flags whose values differ from the defaults, as --name=value, sorted by name.
func (c *Config) Args() []string {
	defaults := Default().Flags()
	var args []string
	c.Flags().VisitAll(func(flag *pflag.Flag) {
		standard := defaults.Lookup(flag.Name)
		if standard == nil || standard.Value.String() == flag.Value.String() {
			return
		}
		if slice, ok := flag.Value.(pflag.SliceValue); ok {
			args = append(args, sliceArgs(flag, slice)...)
			return
		}
		if flag.Name == requiredClaimFlag {
			args = append(args, c.requiredClaimArgs()...)
			return
		}
		args = append(args, "--"+flag.Name+"="+flag.Value.String())
	})
	return args
}

// sliceArgs returns the arguments for a list: one argument in CSV or, for flags whose values may contain commas, one
// argument for each element.
func sliceArgs(flag *pflag.Flag, slice pflag.SliceValue) []string {
	if flag.Value.Type() == "stringSlice" || flag.Value.Type() == "int32Slice" {
		return []string{"--" + flag.Name + "=" + csvLine(slice.GetSlice())}
	}
	var args []string
	for _, element := range slice.GetSlice() {
		args = append(args, "--"+flag.Name+"="+element)
	}
	return args
}
