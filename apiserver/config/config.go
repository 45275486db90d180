// Package config is the configuration of one API server replica: kube-apiserver's flags with their names, meanings and
// defaults, and the flags of the embedded etcd member. The operator renders flags with Args from the same struct into
// which the server parses them, so that both agree.
//
// Most lines of the package list flags. test/compatibility compares their values and defaults with kube-apiserver's.
package config

import (
	"cmp"
	"slices"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
)

// Config is the configuration of one replica. The zero value is not valid; use Default.
type Config struct {
	Serving        Serving
	Etcd           Etcd
	Member         Member
	Authentication Authentication
	Authorization  Authorization
	Admission      Admission
	Audit          Audit
	Limits         Limits
	API            API
	Compatibility  Compatibility
	Controllers    Controllers
	Peers          Peers
	Leadership     Leadership
	Extension      Extension
	Logging        Logging
	Metrics        Metrics
	Tracing        Tracing

	// set has the names of the flags that are set, for the flags that trackFlag tracks.
	set map[string]bool
	// unimplemented has the flags that have no effect, by name.
	unimplemented map[string]*unimplementedValue
}

// Serving configures the HTTPS server.
type Serving struct {
	BindAddress                   string   // IP address
	Port                          int      // 1 to 65535
	AdvertiseAddress              string   // IP address published to clients; default: BindAddress or the host's
	CertDirectory                 string   // without CertFile: directory of apiserver.crt and .key, created if missing
	CertFile                      string   // PEM file, reloaded when it changes
	KeyFile                       string   // PEM file
	SNICertKeys                   []string // "cert,key" or "cert,key:domain,..."
	TLSMinVersion                 string   // "VersionTLS12" or "VersionTLS13"
	TLSCipherSuites               []string // cipher suites with Go's names
	TLSCurvePreferences           []int32  // crypto/tls.CurveIDs; empty: Go's defaults
	DisableHTTP2                  bool
	HTTP2MaxStreams               int
	PermitPortSharing             bool
	PermitAddressSharing          bool
	RequestTimeout                time.Duration // timeout of requests that are not long-running
	MinRequestTimeout             time.Duration // minimum timeout of a watch without timeoutSeconds, in whole seconds
	ShutdownDelay                 time.Duration // time between the failure of /readyz and the rejection of requests
	ShutdownSendRetryAfter        bool
	ShutdownWatchTerminationGrace time.Duration
	LivezGracePeriod              time.Duration
	GoawayChance                  float64 // probability from 0 to 0.02
	StrictTransportSecurity       []string
	CORSAllowedOrigins            []string
	Profiling                     bool
	ContentionProfiling           bool   // record blocking events, if Profiling is set
	DebugSocketPath               string // path of a Unix socket that serves profiles without authentication
	LogsHandler                   bool   // serve the files in /var/log
	ExternalHostname              string
}

// Etcd configures storage.
type Etcd struct {
	Servers            []string // URLs of an external etcd, or of other members than the embedded one
	ServersOverrides   []string // entries "group/resource#url;url"; see Overrides
	CAFile             string
	CertFile           string
	KeyFile            string
	Prefix             string        // prefix of all keys, by default "/registry"
	CompactionInterval time.Duration // 0: never
	HealthcheckTimeout time.Duration // 0: 2s, as in kube-apiserver
	ReadycheckTimeout  time.Duration // 0: 2s, as in kube-apiserver
	CountMetricPoll    time.Duration
	DBMetricPoll       time.Duration
	Backend            string // "etcd3"; empty means the same
	StorageMediaType   string // media type of built-in objects
	EventTTL           time.Duration
	LeaseReuseSeconds  int // maximum time for which objects share a lease; 0: objects share no lease
	WatchCache         bool
	WatchCacheSizes    []string // entries "resource.group#size"; see Uncached
	// InitializationTimeout bounds the time for which the check poststarthook/storage-readiness waits for the watch
	// caches.
	InitializationTimeout time.Duration
	SoftQuotaPercent      int // percentage of etcd's quota; 0: see SoftQuota

	EncryptionConfig       string // file with an EncryptionConfiguration; empty: values are not encrypted
	ReloadEncryptionConfig bool   // reload EncryptionConfig when the file changes
}

// defaultSoftQuota is the default soft quota of a server with an embedded member, in percent of etcd's quota.
const defaultSoftQuota = 90

// defaultCheckTimeout is the default timeout of etcd's health and readiness checks.
const defaultCheckTimeout = 2 * time.Second

// CheckTimeouts returns the timeouts of etcd's health and readiness checks.
func (e *Etcd) CheckTimeouts() (health, readiness time.Duration) {
	return cmp.Or(e.HealthcheckTimeout, defaultCheckTimeout), cmp.Or(e.ReadycheckTimeout, defaultCheckTimeout)
}

// enforcedPoll is the interval at which the size of an external etcd's database is measured if a soft quota depends on
// it.
const enforcedPoll = 5 * time.Second

// SpacePollInterval returns the interval at which the size of an external etcd's database is measured; 0 means never.
func (c *Config) SpacePollInterval() time.Duration {
	if c.SoftQuota(false) < 100 {
		return enforcedPoll
	}
	return c.Etcd.DBMetricPoll
}

// SoftQuota returns the percentage of etcd's quota that may be used before the server rejects writes that grow the
// database. embedded is set for a server with an embedded member. 100, the default for an external etcd, means that
// writes are never rejected.
func (c *Config) SoftQuota(embedded bool) int {
	switch {
	case c.Etcd.SoftQuotaPercent != 0:
		return c.Etcd.SoftQuotaPercent
	case embedded:
		return defaultSoftQuota
	}
	return 100
}

// Member configures the embedded etcd member. The server runs a member if DataDirectory is set.
type Member struct {
	DataDirectory       string
	Name                string
	ListenPeerURLs      []string // empty: the cluster has no other members
	AdvertisePeerURLs   []string
	ListenClientURLs    []string // empty: only in-process clients and the local socket can connect
	AdvertiseClientURLs []string
	InitialCluster      string // "name=peerURL,..."; used only if the data directory is empty
	InitialClusterState string // "new" or "existing"
	InitialClusterToken string
	PeerCertFile        string
	PeerKeyFile         string
	PeerTrustedCAFile   string
	ServerCertFile      string // certificate of the client URLs
	ServerKeyFile       string
	ServerTrustedCAFile string // authority of the certificates that clients must present
	QuotaBackendBytes   int64
	SnapshotCount       uint64
	HeartbeatInterval   time.Duration
	ElectionTimeout     time.Duration
	UnsafeNoFsync       bool
	// AllowInsecureTransport allows URLs with which clients or peers can connect without a certificate.
	AllowInsecureTransport bool
	// Record is a record of the member's data that is kept outside its data directory. No flag sets it.
	Record MemberRecord
}

// Authentication configures the authentication methods.
type Authentication struct {
	Anonymous                  bool // accept requests without credentials as system:anonymous
	ClientCAFile               string
	TokenFile                  string // CSV file with the columns token,user,uid,"group,..."
	RequestHeaderCAFile        string
	RequestHeaderAllowedNames  []string
	RequestHeaderUsername      []string
	RequestHeaderUID           []string
	RequestHeaderGroup         []string
	RequestHeaderExtraPrefix   []string
	ServiceAccountIssuers      []string // the first issuer issues new tokens
	ServiceAccountKeyFiles     []string // files with public or private keys that verify tokens
	ServiceAccountSigningKey   string   // file with the key that signs tokens
	ServiceAccountLookup       bool
	ServiceAccountMaxLifetime  time.Duration
	ServiceAccountExtendExpiry bool
	ServiceAccountJWKSURI      string
	// ServiceAccountSigningEndpoint is the socket of an external signer, which replaces the keys.
	ServiceAccountSigningEndpoint string
	APIAudiences                  []string
	BootstrapTokens               bool
	ConfigFile                    string // file with an AuthenticationConfiguration, reloaded when it changes
	OIDC                          OIDC
	TokenWebhook                  TokenWebhook
}

// OIDC configures one OpenID issuer. An AuthenticationConfiguration can have several.
type OIDC struct {
	IssuerURL      string
	ClientID       string
	CAFile         string
	UsernameClaim  string
	UsernamePrefix string // "-": no prefix; empty: the issuer's URL and "#", unless UsernameClaim is email
	GroupsClaim    string
	GroupsPrefix   string
	SigningAlgs    []string
	RequiredClaims map[string]string
}

// TokenWebhook configures a webhook that authenticates bearer tokens.
type TokenWebhook struct {
	ConfigFile string // file with a kubeconfig; empty: no webhook
	Version    string // version of the TokenReview: "v1" or "v1beta1"
	CacheTTL   time.Duration
}

// Audiences returns the audiences of this server: APIAudiences or, if that is empty, the issuers of service-account
// tokens.
func (a *Authentication) Audiences() []string {
	if len(a.APIAudiences) > 0 {
		return slices.Clone(a.APIAudiences)
	}
	return slices.Clone(a.ServiceAccountIssuers)
}

// Authorization configures the authorization modes.
type Authorization struct {
	Modes      []string // AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node
	ConfigFile string   // file with an AuthorizationConfiguration, which replaces Modes; reloaded when it changes
	PolicyFile string   // file with the policy of the mode ABAC
	Webhook    AuthorizationWebhook
}

// AuthorizationWebhook configures the authorization mode Webhook.
type AuthorizationWebhook struct {
	ConfigFile      string // file with a kubeconfig
	Version         string // version of the SubjectAccessReview: "v1" or "v1beta1"
	AuthorizedTTL   time.Duration
	UnauthorizedTTL time.Duration
}

// Admission configures the admission plugins.
type Admission struct {
	Enable                []string
	Disable               []string
	Control               []string // deprecated: the list of all enabled plugins
	ConfigFile            string
	AllowPrivileged       bool
	NotReadyToleration    time.Duration // default toleration added to pods without such a toleration, in whole seconds
	UnreachableToleration time.Duration
}

// Limits bounds the number of concurrent requests and deletions.
type Limits struct {
	MaxRequestsInFlight         int
	MaxMutatingRequestsInFlight int
	PriorityAndFairness         bool
	DeleteCollectionWorkers     int
}

// API configures the served APIs.
type API struct {
	RuntimeConfig         map[string]string
	FeatureGates          map[string]string
	ServiceClusterIPRange string // CIDR[,CIDR]
	ServiceNodePortRange  string
	KubeletClientCertFile string
	KubeletClientKeyFile  string
	KubeletCAFile         string
	KubeletAddressTypes   []string
	KubeletPort           uint          // port of kubelets that do not report their port
	KubeletTimeout        time.Duration // without effect, as in kube-apiserver
	MaxConnectionBytes    int64         // maximum bytes per second of each stream to a kubelet or pod; 0: no limit
	EgressSelectorFile    string        // file with an EgressSelectorConfiguration
	ProxyClientCertFile   string
	ProxyClientKeyFile    string
	AggregatorRouting     bool
	// RejectForwardingRedirects responds with an error if an extension API server redirects a request.
	RejectForwardingRedirects bool
	// EndpointReconcilerType is the reconciler of the endpoints of the Service kubernetes: "lease", "master-count" or
	// "none".
	EndpointReconcilerType string
	ServerCount            int // number of replicas, for "master-count"
	KubernetesNodePort     int // node port of Service kubernetes; 0: none
	// GarbageCollector is set if a garbage collector runs in the cluster, so that deletions may add finalizers for it.
	GarbageCollector bool
	Version          string // printed by --version=v1.2.3-custom; empty: the built-in version
}

// Controllers configures the controllers that run in the server, with leader election.
type Controllers struct {
	// Enabled has names of controllers, such as "namespace" and "garbagecollector"; "*" means all. The default is none,
	// because kube-controller-manager runs these controllers.
	Enabled []string
}

// Logging configures the log.
type Logging struct {
	Format         string // "text" or "json"
	Verbosity      int
	VModule        string        // "file=verbosity,...": files with another verbosity
	FlushFrequency time.Duration // interval of writing buffered lines
	// Options split the log into two streams. They need the feature gate LoggingAlphaOptions.
	Options logsapi.FormatOptions
}

// Routing returns the options of the log's format.
func (l *Logging) Routing() logsapi.OutputRoutingOptions {
	if l.Format == "json" {
		return l.Options.JSON.OutputRoutingOptions
	}
	return l.Options.Text.OutputRoutingOptions
}

// Default returns the configuration with kube-apiserver's defaults, and etcd's defaults for the member.
func Default() *Config {
	return &Config{
		Serving: Serving{
			BindAddress: "0.0.0.0", Port: 6443, CertDirectory: "/var/run/kubernetes", HTTP2MaxStreams: 0,
			RequestTimeout: time.Minute, MinRequestTimeout: 30 * time.Minute, Profiling: true,
		},
		Etcd: Etcd{
			Prefix: "/registry", CompactionInterval: 5 * time.Minute, HealthcheckTimeout: defaultCheckTimeout,
			ReadycheckTimeout: defaultCheckTimeout, CountMetricPoll: time.Minute, DBMetricPoll: 30 * time.Second,
			StorageMediaType: "application/vnd.kubernetes.protobuf", EventTTL: time.Hour,
			LeaseReuseSeconds: 60, WatchCache: true, InitializationTimeout: time.Minute,
		},
		Member: Member{
			Name: "default", InitialClusterState: "new", InitialClusterToken: "quorate", QuotaBackendBytes: 2 << 30,
			SnapshotCount:     5000,
			HeartbeatInterval: 100 * time.Millisecond, ElectionTimeout: time.Second,
		},
		Authentication: Authentication{
			Anonymous: true, ServiceAccountLookup: true, ServiceAccountExtendExpiry: true,
			OIDC:         OIDC{UsernameClaim: "sub", SigningAlgs: []string{"RS256"}},
			TokenWebhook: TokenWebhook{Version: "v1beta1", CacheTTL: 2 * time.Minute},
		},
		Authorization: Authorization{
			Modes: []string{"AlwaysAllow"},
			Webhook: AuthorizationWebhook{
				Version: "v1beta1", AuthorizedTTL: 5 * time.Minute, UnauthorizedTTL: 30 * time.Second,
			},
		},
		Admission: Admission{NotReadyToleration: 5 * time.Minute, UnreachableToleration: 5 * time.Minute},
		Audit:     defaultAudit(),
		Limits: Limits{
			MaxRequestsInFlight: 400, MaxMutatingRequestsInFlight: 200, PriorityAndFairness: true, DeleteCollectionWorkers: 1,
		},
		API: API{
			KubeletAddressTypes:       []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"},
			RejectForwardingRedirects: true,
			KubeletPort:               10250, KubeletTimeout: 5 * time.Second,
			ServiceNodePortRange: "30000-32767", EndpointReconcilerType: "lease", ServerCount: 1,
			GarbageCollector: true,
		},
		Leadership: Leadership{
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		},
		Extension: defaultExtension(),
		Logging: Logging{
			Format: "text", FlushFrequency: 5 * time.Second, Options: logsapi.NewLoggingConfiguration().Options,
		},
	}
}
