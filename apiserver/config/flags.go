package config

import (
	"encoding/csv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// Flags binds a flag set to the configuration. Values present in c become the flags' defaults.
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
	c.Compatibility.flags(f)
	c.unimplementedFlags(f)
	if token := f.Lookup("etcd-initial-cluster-token"); token != nil {
		token.Annotations = map[string][]string{classified: {"true"}}
	}
	return f
}

// classified annotates flags, as in kube-apiserver, whose values are not shown.
const classified = "classified"

// Classified tells whether a flag's value is not to be shown.
func Classified(f *pflag.Flag) bool { return len(f.Annotations[classified]) > 0 }

func (c *Config) servingFlags(f *pflag.FlagSet) {
	s := &c.Serving
	stringFlag(f, &s.BindAddress, "bind-address", "IP address on which to listen for the --secure-port.")
	intFlag(f, &s.Port, "secure-port", "Port on which to serve HTTPS.")
	stringFlag(f, &s.AdvertiseAddress, "advertise-address", "IP address published to members of the cluster.")
	stringFlag(f, &s.CertDirectory, "cert-dir", "Directory of apiserver.crt and apiserver.key when no --tls-cert-file is given; a self-signed pair is made there if missing.")
	stringFlag(f, &s.CertFile, "tls-cert-file", "File with the server certificate, PEM, reloaded when it changes.")
	stringFlag(f, &s.KeyFile, "tls-private-key-file", "File with the private key of --tls-cert-file.")
	arrayFlag(f, &s.SNICertKeys, "tls-sni-cert-key", "A further certificate and key, cert,key[:domain,...]; may be repeated.")
	stringFlag(f, &s.TLSMinVersion, "tls-min-version", "Minimum TLS version: VersionTLS12 or VersionTLS13.")
	sliceFlag(f, &s.TLSCipherSuites, "tls-cipher-suites", "Cipher suites of TLS 1.2, by Go's names.")
	boolFlag(f, &s.DisableHTTP2, "disable-http2-serving", "Serve HTTP/1.1 only.")
	intFlag(f, &s.HTTP2MaxStreams, "http2-max-streams-per-connection", "Most HTTP/2 streams of one connection; 0: 100.")
	boolFlag(f, &s.PermitPortSharing, "permit-port-sharing", "Listen with SO_REUSEPORT.")
	boolFlag(f, &s.PermitAddressSharing, "permit-address-sharing", "Listen with SO_REUSEADDR.")
	durationFlag(f, &s.RequestTimeout, "request-timeout", "How long a request that is not a watch, log or stream may take.")
	secondsFlag(f, &s.MinRequestTimeout, "min-request-timeout", "Least length, in seconds, of a watch that asks for none.")
	durationFlag(f, &s.ShutdownDelay, "shutdown-delay-duration", "How long to keep serving after readyz fails.")
	boolFlag(f, &s.ShutdownSendRetryAfter, "shutdown-send-retry-after", "Answer 429 while draining instead of closing the listener.")
	durationFlag(f, &s.ShutdownWatchTerminationGrace, "shutdown-watch-termination-grace-period", "How long watches get to end during shutdown.")
	durationFlag(f, &s.LivezGracePeriod, "livez-grace-period", "How long livez passes while start-up is not complete.")
	f.Float64Var(&s.GoawayChance, "goaway-chance", s.GoawayChance, "Chance, 0 to 0.02, that a request closes its HTTP/2 connection.")
	sliceFlag(f, &s.StrictTransportSecurity, "strict-transport-security-directives", "Directives of the Strict-Transport-Security header.")
	sliceFlag(f, &s.CORSAllowedOrigins, "cors-allowed-origins", "Regular expressions of allowed CORS origins.")
	boolFlag(f, &s.Profiling, "profiling", "Serve /debug/pprof.")
	stringFlag(f, &s.ExternalHostname, "external-hostname", "Host name in URLs this server gives out.")
}

func (c *Config) etcdFlags(f *pflag.FlagSet) {
	e := &c.Etcd
	sliceFlag(f, &e.Servers, "etcd-servers", "URLs of the etcd servers.")
	stringFlag(f, &e.CAFile, "etcd-cafile", "Authority of the etcd servers' certificates.")
	stringFlag(f, &e.CertFile, "etcd-certfile", "Client certificate for etcd.")
	stringFlag(f, &e.KeyFile, "etcd-keyfile", "Key of --etcd-certfile.")
	stringFlag(f, &e.Prefix, "etcd-prefix", "Prefix of all keys in etcd.")
	durationFlag(f, &e.CompactionInterval, "etcd-compaction-interval", "Interval of compaction; 0: never.")
	durationFlag(f, &e.HealthcheckTimeout, "etcd-healthcheck-timeout", "Time-out of the etcd health check; 0: 2s.")
	durationFlag(f, &e.ReadycheckTimeout, "etcd-readycheck-timeout", "Time-out of the etcd readiness check; 0: 2s.")
	durationFlag(f, &e.CountMetricPoll, "etcd-count-metric-poll-period", "Accepted, without a meaning here: stored objects are counted as they change, not by polling.")
	durationFlag(f, &e.DBMetricPoll, "etcd-db-metric-poll-interval",
		"Interval at which the space of an external etcd is measured; 0: never.")
	intFlag(f, &e.SoftQuotaPercent, "etcd-soft-quota-percent",
		"Percentage of etcd's quota that may be in use before objects can no longer be created or grow; 100: until etcd "+
			"refuses all writes. 0: 90 with an embedded member, 100 with an external etcd.")
	stringFlag(f, &e.Backend, "storage-backend", "Kind of storage: etcd3.")
	stringFlag(f, &e.StorageMediaType, "storage-media-type", "Media type of stored built-in objects.")
	durationFlag(f, &e.EventTTL, "event-ttl", "How long events are kept.")
	boolFlag(f, &e.WatchCache, "watch-cache", "Serve reads from the watch cache.")
}

func (c *Config) memberFlags(f *pflag.FlagSet) {
	m := &c.Member
	stringFlag(f, &m.DataDirectory, "etcd-data-dir", "Data directory of the embedded etcd member; setting it runs the member.")
	stringFlag(f, &m.Name, "etcd-name", "Name of the embedded member.")
	sliceFlag(f, &m.ListenPeerURLs, "etcd-listen-peer-urls",
		"URLs on which the member listens for peers. Without any it is the only member of its cluster, and no other can "+
			"join.")
	sliceFlag(f, &m.AdvertisePeerURLs, "etcd-initial-advertise-peer-urls", "Peer URLs announced to the other members; default: the listen URLs.")
	sliceFlag(f, &m.ListenClientURLs, "etcd-listen-client-urls",
		"URLs on which the member listens for clients; none by default. 'quorate etcd' reaches it through a socket in its "+
			"data directory.")
	sliceFlag(f, &m.AdvertiseClientURLs, "etcd-advertise-client-urls", "Client URLs announced to the cluster.")
	stringFlag(f, &m.InitialCluster, "etcd-initial-cluster", "name=peer-url,... of the members when the data directory is empty; default: this member alone.")
	stringFlag(f, &m.InitialClusterState, "etcd-initial-cluster-state", "new or existing.")
	stringFlag(f, &m.InitialClusterToken, "etcd-initial-cluster-token", "Token that tells clusters apart.")
	stringFlag(f, &m.PeerCertFile, "etcd-peer-cert-file", "Certificate towards peers.")
	stringFlag(f, &m.PeerKeyFile, "etcd-peer-key-file", "Key of --etcd-peer-cert-file.")
	stringFlag(f, &m.PeerTrustedCAFile, "etcd-peer-trusted-ca-file", "Authority of the peers' certificates; peers must present one.")
	stringFlag(f, &m.ServerCertFile, "etcd-server-cert-file", "Certificate of the member's client URLs.")
	stringFlag(f, &m.ServerKeyFile, "etcd-server-key-file", "Key of --etcd-server-cert-file.")
	stringFlag(f, &m.ServerTrustedCAFile, "etcd-server-trusted-ca-file", "Authority of etcd clients' certificates; clients must present one.")
	boolFlag(f, &m.AllowInsecureTransport, "etcd-allow-insecure-transport",
		"Allow URLs of the member that are http, or have no authority for the certificates of peers or clients: all who "+
			"reach them can read and write everything.")
	f.Int64Var(&m.QuotaBackendBytes, "etcd-quota-backend-bytes", m.QuotaBackendBytes, "Largest size of the member's database in bytes.")
	f.Uint64Var(&m.SnapshotCount, "etcd-snapshot-count", m.SnapshotCount, "Committed transactions between raft snapshots.")
	durationFlag(f, &m.HeartbeatInterval, "etcd-heartbeat-interval", "Interval of the leader's heartbeats.")
	durationFlag(f, &m.ElectionTimeout, "etcd-election-timeout", "Time without heartbeats after which a member stands for election.")
	boolFlag(f, &m.UnsafeNoFsync, "etcd-unsafe-no-fsync", "Do not fsync; a crash of the machine may lose data. For tests.")
}

func (c *Config) authenticationFlags(f *pflag.FlagSet) {
	a := &c.Authentication
	boolFlag(f, &a.Anonymous, "anonymous-auth", "Let requests without credentials through as system:anonymous.")
	stringFlag(f, &a.ClientCAFile, "client-ca-file", "Authority of client certificates.")
	stringFlag(f, &a.TokenFile, "token-auth-file", "CSV file of tokens: token,user,uid,\"group,...\".")
	stringFlag(f, &a.RequestHeaderCAFile, "requestheader-client-ca-file", "Authority of front proxies.")
	sliceFlag(f, &a.RequestHeaderAllowedNames, "requestheader-allowed-names", "Common names of front proxies; empty: any.")
	sliceFlag(f, &a.RequestHeaderUsername, "requestheader-username-headers", "Headers with the user name.")
	sliceFlag(f, &a.RequestHeaderUID, "requestheader-uid-headers", "Headers with the user's UID.")
	sliceFlag(f, &a.RequestHeaderGroup, "requestheader-group-headers", "Headers with groups.")
	sliceFlag(f, &a.RequestHeaderExtraPrefix, "requestheader-extra-headers-prefix", "Prefixes of headers with extra attributes.")
	arrayFlag(f, &a.ServiceAccountIssuers, "service-account-issuer", "Issuer of service-account tokens; may be repeated, the first signs.")
	arrayFlag(f, &a.ServiceAccountKeyFiles, "service-account-key-file", "Key that verifies service-account tokens; may be repeated.")
	stringFlag(f, &a.ServiceAccountSigningKey, "service-account-signing-key-file", "Key that signs service-account tokens.")
	boolFlag(f, &a.ServiceAccountLookup, "service-account-lookup", "Check that the objects a token is bound to still exist.")
	durationFlag(f, &a.ServiceAccountMaxLifetime, "service-account-max-token-expiration", "Longest life of a token.")
	boolFlag(f, &a.ServiceAccountExtendExpiry, "service-account-extend-token-expiration", "Extend the life of injected tokens.")
	stringFlag(f, &a.ServiceAccountJWKSURI, "service-account-jwks-uri", "URI of the key set in the discovery document.")
	sliceFlag(f, &a.APIAudiences, "api-audiences", "Audiences of this server; default: the issuer.")
	boolFlag(f, &a.BootstrapTokens, "enable-bootstrap-token-auth", "Accept bootstrap tokens.")
	sliceFlag(f, &c.Authorization.Modes, "authorization-mode", "Authorizers in order: AlwaysAllow, AlwaysDeny, RBAC, Node.")
}

func (c *Config) admissionFlags(f *pflag.FlagSet) {
	a := &c.Admission
	sliceFlag(f, &a.Enable, "enable-admission-plugins", "Admission plugins to enable besides the default ones.")
	sliceFlag(f, &a.Disable, "disable-admission-plugins", "Admission plugins to disable.")
	stringFlag(f, &a.ConfigFile, "admission-control-config-file", "Configuration of admission plugins.")
	sliceFlag(f, &a.Control, "admission-control", "All admission plugins that are on; use --enable-admission-plugins and --disable-admission-plugins instead.")
	f.Lookup("admission-control").Deprecated = "Use --enable-admission-plugins or --disable-admission-plugins instead. Will be removed in a future version."
	secondsFlag(f, &a.NotReadyToleration, "default-not-ready-toleration-seconds", "How long pods tolerate nodes that are not ready, if they do not say.")
	secondsFlag(f, &a.UnreachableToleration, "default-unreachable-toleration-seconds", "How long pods tolerate nodes that cannot be reached, if they do not say.")
	boolFlag(f, &a.AllowPrivileged, "allow-privileged", "Allow privileged containers.")
}

func (c *Config) apiFlags(f *pflag.FlagSet) {
	a, l := &c.API, &c.Limits
	intFlag(f, &l.MaxRequestsInFlight, "max-requests-inflight", "Most reading requests at once; 0: no limit.")
	intFlag(f, &l.MaxMutatingRequestsInFlight, "max-mutating-requests-inflight", "Most writing requests at once; 0: no limit.")
	boolFlag(f, &l.PriorityAndFairness, "enable-priority-and-fairness", "Queue fairly; without effect yet, the two limits apply.")
	intFlag(f, &l.DeleteCollectionWorkers, "delete-collection-workers", "Workers of one DeleteCollection.")
	f.Var(newSwitches(&a.RuntimeConfig), "runtime-config", "API groups and versions to switch: api/all=true, apps/v1=false, ...")
	f.Var(cliflag.NewMapStringString(&a.FeatureGates), "feature-gates", "Feature gates: name=true, ...")
	stringFlag(f, &a.ServiceClusterIPRange, "service-cluster-ip-range", "CIDR of Service addresses; one per IP family, separated by a comma.")
	stringFlag(f, &a.ServiceNodePortRange, "service-node-port-range", "Range of node ports.")
	stringFlag(f, &a.KubeletClientCertFile, "kubelet-client-certificate", "Client certificate for kubelets.")
	stringFlag(f, &a.KubeletClientKeyFile, "kubelet-client-key", "Key of --kubelet-client-certificate.")
	stringFlag(f, &a.KubeletCAFile, "kubelet-certificate-authority", "Authority of kubelets' certificates.")
	sliceFlag(f, &a.KubeletAddressTypes, "kubelet-preferred-address-types", "Order of a node's addresses.")
	f.UintVar(&a.KubeletPort, "kubelet-port", a.KubeletPort, "Port of kubelets that do not report theirs.")
	durationFlag(f, &a.KubeletTimeout, "kubelet-timeout", "Accepted; requests to kubelets last as long as their clients wait, as with kube-apiserver.")
	f.Int64Var(&a.MaxConnectionBytes, "max-connection-bytes-per-sec", a.MaxConnectionBytes, "Most bytes per second of each stream to a kubelet or pod; 0: no limit.")
	stringFlag(f, &a.ProxyClientCertFile, "proxy-client-cert-file", "Certificate with which aggregated API servers are called.")
	stringFlag(f, &a.ProxyClientKeyFile, "proxy-client-key-file", "Key of --proxy-client-cert-file.")
	boolFlag(f, &a.AggregatorRouting, "enable-aggregator-routing", "Call aggregated API servers at their endpoints' addresses.")
	stringFlag(f, &a.EndpointReconcilerType, "endpoint-reconciler-type", "Who keeps the kubernetes Service's endpoints: lease, master-count or none.")
	intFlag(f, &a.ServerCount, "apiserver-count", "Number of API servers, for --endpoint-reconciler-type=master-count.")
	intFlag(f, &a.KubernetesNodePort, "kubernetes-service-node-port", "Node port of the kubernetes Service; 0: it has none.")
	stringFlag(f, &a.Version, "version", "--version prints the version; --version=vX.Y.Z-custom sets it.")
	f.Lookup("version").NoOptDefVal = "true"
	sliceFlag(f, &c.Controllers.Enabled, "controllers", "Controllers run in this process, leader-elected: namespace, garbagecollector, serviceaccount, resourcequota, clusterrole-aggregation, or *.")
	stringFlag(f, &c.Logging.Format, "logging-format", "text or json.")
	f.IntVarP(&c.Logging.Verbosity, "v", "v", c.Logging.Verbosity, "Verbosity of the log.")
}

// csvLine needs no error: nothing fails that is written to memory.
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

// Args renders the flags whose values differ from the defaults, as --name=value, sorted by name.
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
		args = append(args, "--"+flag.Name+"="+flag.Value.String())
	})
	return args
}

// sliceArgs renders a list once, as the line of CSV that is read from it, or, where the flag takes a comma as part of its
// value, once per element.
func sliceArgs(flag *pflag.Flag, slice pflag.SliceValue) []string {
	if flag.Value.Type() != "stringArray" {
		return []string{"--" + flag.Name + "=" + csvLine(slice.GetSlice())}
	}
	var args []string
	for _, element := range slice.GetSlice() {
		args = append(args, "--"+flag.Name+"="+element)
	}
	return args
}
