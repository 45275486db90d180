// Package config is the configuration of one API server replica: kube-apiserver's flags with their names, meanings and
// defaults, and the flags of the embedded etcd member. The operator renders flags with Args from the same struct that
// the server parses, so that both agree.
//
// Most of its lines list flags. test/compatibility compares their values and defaults with kube-apiserver's.
package config

import (
	"cmp"
	"slices"
	"time"
)

// Config is the configuration of one replica. The zero value is not useful; start from Default.
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

	// set has the names of the flags that were set, of those for which validation needs to know.
	set map[string]bool
	// unimplemented holds the flags that have no effect yet, by name.
	unimplemented map[string]*unimplementedValue
}

// Serving configures the HTTPS server.
type Serving struct {
	BindAddress                   string   // IP
	Port                          int      // 1 to 65535
	AdvertiseAddress              string   // IP published to clients; default: BindAddress or the host's address
	CertDirectory                 string   // of apiserver.crt and apiserver.key if CertFile is empty; they are created if missing
	CertFile                      string   // PEM, reloaded when it changes
	KeyFile                       string   // PEM
	SNICertKeys                   []string // "cert,key" or "cert,key:domain,..."
	TLSMinVersion                 string   // "VersionTLS12" or "VersionTLS13"
	TLSCipherSuites               []string // Go's names
	TLSCurvePreferences           []int32  // crypto/tls CurveIDs; empty: Go's defaults
	DisableHTTP2                  bool
	HTTP2MaxStreams               int
	PermitPortSharing             bool
	PermitAddressSharing          bool
	RequestTimeout                time.Duration // of requests that are not long-running
	MinRequestTimeout             time.Duration // minimum duration of a watch without timeoutSeconds, in whole seconds
	ShutdownDelay                 time.Duration // between failing readyz and refusing connections
	ShutdownSendRetryAfter        bool
	ShutdownWatchTerminationGrace time.Duration
	LivezGracePeriod              time.Duration
	GoawayChance                  float64 // 0 to 0.02
	StrictTransportSecurity       []string
	CORSAllowedOrigins            []string
	Profiling                     bool
	ContentionProfiling           bool   // record blocking events, if Profiling
	DebugSocketPath               string // of a Unix socket that serves profiles without authentication
	LogsHandler                   bool   // serve the files of /var/log
	ExternalHostname              string
}

// Etcd configures storage.
type Etcd struct {
	Servers            []string // URLs of an external etcd, or of other members than the embedded one
	ServersOverrides   []string // "group/resource#url;url": see Overrides
	CAFile             string
	CertFile           string
	KeyFile            string
	Prefix             string        // "/registry"
	CompactionInterval time.Duration // 0: never
	HealthcheckTimeout time.Duration // 0: 2s, as in kube-apiserver
	ReadycheckTimeout  time.Duration // 0: 2s, as in kube-apiserver
	CountMetricPoll    time.Duration
	DBMetricPoll       time.Duration
	Backend            string // "etcd3" or empty, which is the same
	StorageMediaType   string // of built-in objects
	EventTTL           time.Duration
	LeaseReuseSeconds  int // maximum time over which objects share a lease; 0: no sharing
	WatchCache         bool
	WatchCacheSizes    []string // "resource.group#size": see Uncached
	// InitializationTimeout bounds how long the check poststarthook/storage-readiness waits for the watch caches.
	InitializationTimeout time.Duration
	SoftQuotaPercent      int // of etcd's quota; 0: see SoftQuota

	EncryptionConfig       string // EncryptionConfiguration file; empty: values are not encrypted
	ReloadEncryptionConfig bool   // when the file changes
}

// defaultSoftQuota is the soft quota of a server with an embedded member, in percent.
const defaultSoftQuota = 90

// defaultCheckTimeout bounds etcd's health and readiness checks.
const defaultCheckTimeout = 2 * time.Second

// CheckTimeouts returns the timeouts of etcd's health and readiness checks.
func (e *Etcd) CheckTimeouts() (health, readiness time.Duration) {
	return cmp.Or(e.HealthcheckTimeout, defaultCheckTimeout), cmp.Or(e.ReadycheckTimeout, defaultCheckTimeout)
}

// enforcedPoll is the interval at which the use of an external etcd is measured if a soft quota depends on it.
const enforcedPoll = 5 * time.Second

// SpacePollInterval returns the interval at which the use of an external etcd is measured; 0: never.
func (c *Config) SpacePollInterval() time.Duration {
	if c.SoftQuota(false) < 100 {
		return enforcedPoll
	}
	return c.Etcd.DBMetricPoll
}

// SoftQuota returns the percentage of etcd's quota that may be in use before the server rejects writes that grow the
// database. 100 means never, which is the default for an external etcd.
func (c *Config) SoftQuota(embedded bool) int {
	switch {
	case c.Etcd.SoftQuotaPercent != 0:
		return c.Etcd.SoftQuotaPercent
	case embedded:
		return defaultSoftQuota
	}
	return 100
}

// Member configures the embedded etcd member, which runs if DataDirectory is set.
type Member struct {
	DataDirectory       string
	Name                string
	ListenPeerURLs      []string // empty: the member is the only one of its cluster
	AdvertisePeerURLs   []string
	ListenClientURLs    []string // empty: only in-process clients and the local socket
	AdvertiseClientURLs []string
	InitialCluster      string // "name=peerURL,..."; used only while the data directory is empty
	InitialClusterState string // "new" or "existing"
	InitialClusterToken string
	PeerCertFile        string
	PeerKeyFile         string
	PeerTrustedCAFile   string
	ServerCertFile      string // of the client URLs
	ServerKeyFile       string
	ServerTrustedCAFile string // clients must present a certificate of this authority
	QuotaBackendBytes   int64
	SnapshotCount       uint64
	HeartbeatInterval   time.Duration
	ElectionTimeout     time.Duration
	UnsafeNoFsync       bool
	// AllowInsecureTransport allows URLs that can be used without a certificate.
	AllowInsecureTransport bool
	// Record is what is known about the data of the member outside its data directory. It has no flag.
	Record MemberRecord
}

// Authentication configures the authentication methods.
type Authentication struct {
	Anonymous                  bool // requests without credentials are authorized as system:anonymous
	ClientCAFile               string
	TokenFile                  string // CSV: token,user,uid,"group,..."
	RequestHeaderCAFile        string
	RequestHeaderAllowedNames  []string
	RequestHeaderUsername      []string
	RequestHeaderUID           []string
	RequestHeaderGroup         []string
	RequestHeaderExtraPrefix   []string
	ServiceAccountIssuers      []string // the first signs
	ServiceAccountKeyFiles     []string // public (or private) keys that verify
	ServiceAccountSigningKey   string   // file
	ServiceAccountLookup       bool
	ServiceAccountMaxLifetime  time.Duration
	ServiceAccountExtendExpiry bool
	ServiceAccountJWKSURI      string
	// ServiceAccountSigningEndpoint is the socket of an external signer, instead of the keys.
	ServiceAccountSigningEndpoint string
	APIAudiences                  []string
	BootstrapTokens               bool
	ConfigFile                    string // AuthenticationConfiguration, reloaded when it changes
	OIDC                          OIDC
	TokenWebhook                  TokenWebhook
}

// OIDC configures one issuer of OpenID tokens. AuthenticationConfiguration can have several.
type OIDC struct {
	IssuerURL      string
	ClientID       string
	CAFile         string
	UsernameClaim  string
	UsernamePrefix string // "-": none; empty: the issuer's URL, unless the claim is email
	GroupsClaim    string
	GroupsPrefix   string
	SigningAlgs    []string
	RequiredClaims map[string]string
}

// TokenWebhook configures a webhook that reviews bearer tokens.
type TokenWebhook struct {
	ConfigFile string // kubeconfig; empty: no webhook
	Version    string // of the TokenReview: "v1" or "v1beta1"
	CacheTTL   time.Duration
}

// Audiences returns the audiences of this server: APIAudiences, else the issuers.
func (a *Authentication) Audiences() []string {
	if len(a.APIAudiences) > 0 {
		return slices.Clone(a.APIAudiences)
	}
	return slices.Clone(a.ServiceAccountIssuers)
}

// Authorization configures the authorization modes.
type Authorization struct {
	Modes      []string // AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node
	ConfigFile string   // AuthorizationConfiguration, instead of Modes; reloaded when it changes
	PolicyFile string   // of ABAC
	Webhook    AuthorizationWebhook
}

// AuthorizationWebhook configures the mode Webhook.
type AuthorizationWebhook struct {
	ConfigFile      string // kubeconfig
	Version         string // of the SubjectAccessReview: "v1" or "v1beta1"
	AuthorizedTTL   time.Duration
	UnauthorizedTTL time.Duration
}

// Admission configures the admission plugins.
type Admission struct {
	Enable                []string
	Disable               []string
	Control               []string // deprecated: all enabled plugins
	ConfigFile            string
	AllowPrivileged       bool
	NotReadyToleration    time.Duration // in whole seconds, of pods without this toleration
	UnreachableToleration time.Duration
}

// Limits bound concurrent work.
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
	KubeletPort           uint          // of kubelets that do not report theirs
	KubeletTimeout        time.Duration // kube-apiserver has no use for it either
	MaxConnectionBytes    int64         // per second, of a stream to a kubelet or pod; 0: no limit
	EgressSelectorFile    string        // EgressSelectorConfiguration: the proxies for connections to other servers
	ProxyClientCertFile   string
	ProxyClientKeyFile    string
	AggregatorRouting     bool
	// RejectForwardingRedirects responds with an error if an extension API server redirects a request.
	RejectForwardingRedirects bool
	EndpointReconcilerType    string // who keeps the kubernetes Service's endpoints: "lease", "master-count" or "none"
	ServerCount               int    // of replicas, for master-count
	KubernetesNodePort        int    // of the kubernetes Service; 0: it has none
	GarbageCollector          bool   // a garbage collector runs in the cluster: deletions may leave it finalizers
	Version                   string // printed by --version=v1.2.3-custom; empty: the built-in one
}

// Controllers run inside the server, leader-elected.
type Controllers struct {
	// Enabled names controllers: "namespace", "garbagecollector"; "*" is all. Empty: none, as kube-controller-manager runs
	// them.
	Enabled []string
}

// Logging says how to log.
type Logging struct {
	Format         string // "text" or "json"
	Verbosity      int
	VModule        string        // "file=verbosity,..." of files whose verbosity differs
	FlushFrequency time.Duration // kept for kube-apiserver's flag: lines are written at once
}

// Default returns kube-apiserver's defaults, and etcd's for the member.
func Default() *Config {
	return &Config{
		Serving: Serving{
			BindAddress: "0.0.0.0", Port: 6443, CertDirectory: "/var/run/kubernetes", HTTP2MaxStreams: 0,
			RequestTimeout: time.Minute, MinRequestTimeout: 30 * time.Minute, Profiling: true,
		},
		Etcd: Etcd{
			Prefix: "/registry", CompactionInterval: 5 * time.Minute, HealthcheckTimeout: defaultCheckTimeout,
			ReadycheckTimeout: defaultCheckTimeout, CountMetricPoll: time.Minute, DBMetricPoll: 30 * time.Second,
			StorageMediaType: "application/vnd.kubernetes.protobuf", EventTTL: time.Hour, LeaseReuseSeconds: 60, WatchCache: true,
			InitializationTimeout: time.Minute,
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
		Leadership: Leadership{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second},
		Extension:  defaultExtension(),
		Logging:    Logging{Format: "text", FlushFrequency: 5 * time.Second},
	}
}
