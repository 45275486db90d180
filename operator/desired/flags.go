package desired

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

const (
	dataDirectory = "/var/lib/quorate"
	// recordDirectory is where a member stores its own record of its data outside of its volume. It is an emptyDir
	// volume, which survives restarts of the container and is deleted with the pod.
	recordDirectory = "/var/run/quorate/member"
	// podIP is the IP address of the pod as a container argument, which the kubelet expands. A replica listens only on
	// that address.
	podIP = "$(POD_IP)"

	issuer = "https://kubernetes.default.svc.cluster.local"

	// shutdownDelay is the time between the termination signal and the end of listening, in which kube-proxies remove the
	// replica from the endpoints of the Service.
	shutdownDelay = 3 * time.Second
)

// InitialCluster is etcd's configuration for an empty data directory. For a member that has run before, it contains
// only that member, and etcd's --initial-cluster-state is "existing": with this combination etcd refuses to start on an
// empty directory, so that a member never restarts without its data.
type InitialCluster struct {
	New      bool              // bootstrap a new cluster; false: join an existing one
	PeerURLs map[string]string // by member name
}

// MemberRecord is the operator's record of the state that a member has reached, which the member compares with its data
// when it starts. It is passed to the pod and stored outside of the volume, because a volume that was put back to an
// earlier state would contain an earlier record.
type MemberRecord = config.MemberRecord

// Replica describes the replica for which a pod is built: a member, which is an API server with an embedded etcd
// member, or a server, which is an API server without one.
type Replica struct {
	Name           string
	Member         bool
	InitialCluster InitialCluster // only for members
	Record         MemberRecord   // only for members; Directory is set by this package
	Endpoints      []string       // only for servers: client URLs of the embedded members
	AuthorityHash  string         // hash of the authorities that etcd reads only when it starts; "" with an external etcd
	Configuration  Configuration
}

// goawayChance is the value of --goaway-chance, which makes clients reconnect from time to time. Without it, most
// connections accumulate on the replica that has run longest, and break all at the same time when it stops.
const goawayChance = 0.001

// configuration returns the configuration of a replica that listens on address, with the user's extra flags.
func configuration(
	cluster *v1alpha1.ApiServerCluster, replica Replica, address string, extra map[string]string,
) (*config.Config, error) {
	c := config.Default()
	c.Serving.BindAddress, c.Serving.AdvertiseAddress, c.Serving.Port = address, address, SecurePort
	c.Serving.CertFile, c.Serving.KeyFile = mounted("serving.crt"), mounted("serving.key")
	c.Serving.ShutdownDelay, c.Serving.ShutdownSendRetryAfter = shutdownDelay, true
	c.Authentication.ClientCAFile = mounted("client-ca.crt")
	if cluster.ReplicaCount() > 1 {
		c.Serving.GoawayChance = goawayChance
	}
	if cluster.IsExtension() {
		setExtension(c, cluster)
	} else {
		setCluster(c, cluster)
	}
	setParts(c, cluster, replica.Configuration.Encryption != nil)
	switch {
	case cluster.ExternalEtcd():
		setExternal(c, cluster.Spec.Etcd.External)
	case replica.Member:
		setMember(c, cluster, replica, address)
	default:
		c.Etcd.Servers = replica.Endpoints
		setEtcdClient(c)
	}
	return c, setExtra(c, extra)
}

// setCluster configures authentication, authorization and controllers of a cluster. API servers in mode Extension
// delegate these to their host.
func setCluster(c *config.Config, cluster *v1alpha1.ApiServerCluster) {
	c.Authentication.RequestHeaderCAFile = mounted("front-proxy-ca.crt")
	c.Authentication.RequestHeaderAllowedNames = []string{frontProxyName}
	c.Authentication.RequestHeaderUsername = []string{"X-Remote-User"}
	c.Authentication.RequestHeaderUID = []string{"X-Remote-Uid"}
	c.Authentication.RequestHeaderGroup = []string{"X-Remote-Group"}
	c.Authentication.RequestHeaderExtraPrefix = []string{"X-Remote-Extra-"}
	c.API.ProxyClientCertFile, c.API.ProxyClientKeyFile =
		mounted("front-proxy-client.crt"), mounted("front-proxy-client.key")
	// Replicas of different versions serve different resources, and forward requests to each other.
	c.Peers.CAFile = mounted("serving-ca.crt")
	c.Authentication.ServiceAccountIssuers = []string{issuer}
	c.Authentication.ServiceAccountKeyFiles = []string{mounted("service-account.pub")}
	c.Authentication.ServiceAccountSigningKey = mounted("service-account.key")
	c.Authorization.Modes = []string{"Node", "RBAC"}
	if cluster.EmbeddedControllers() {
		c.Controllers.Enabled = []string{"*"}
	}
	if cluster.RunsControllerManager() {
		setNodes(c)
	}
	c.API.EndpointReconcilerType = "none" // clients of this API cannot reach pods of the hosting cluster
	c.API.AggregatorRouting = usesAggregatorRouting(cluster)
}

// setNodes configures the API servers for nodes that join: they accept bootstrap tokens, and connect to kubelets by IP
// address, because the pods of API servers cannot resolve the names of nodes.
func setNodes(c *config.Config) {
	c.Authentication.BootstrapTokens = true
	c.API.KubeletClientCertFile, c.API.KubeletClientKeyFile = mounted("kubelet-client.crt"), mounted("kubelet-client.key")
	c.API.KubeletAddressTypes = []string{"InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"}
}

func setExternal(c *config.Config, external *v1alpha1.ExternalEtcd) {
	c.Etcd.Servers, c.Etcd.Prefix = external.Endpoints, external.Prefix
	if external.SecretRef != nil {
		setEtcdClient(c)
	}
}

func setEtcdClient(c *config.Config) {
	c.Etcd.CAFile, c.Etcd.CertFile = mounted("etcd-client-ca.crt"), mounted("etcd-client.crt")
	c.Etcd.KeyFile = mounted("etcd-client.key")
}

func setMember(c *config.Config, cluster *v1alpha1.ApiServerCluster, replica Replica, address string) {
	m := &c.Member
	m.DataDirectory, m.Name = dataDirectory+"/etcd", replica.Name
	m.ListenPeerURLs = []string{fmt.Sprintf("https://%s:%d", address, PeerPort)}
	m.AdvertisePeerURLs = []string{PeerURL(cluster, replica.Name)}
	m.ListenClientURLs = []string{fmt.Sprintf("https://%s:%d", address, ClientPort)}
	m.AdvertiseClientURLs = []string{ClientURL(cluster, replica.Name)}
	m.PeerCertFile, m.PeerKeyFile = mounted("etcd-peer.crt"), mounted("etcd-peer.key")
	m.PeerTrustedCAFile = mounted("etcd-peer-ca.crt")
	m.ServerCertFile, m.ServerKeyFile = mounted("etcd-server.crt"), mounted("etcd-server.key")
	m.ServerTrustedCAFile = mounted("etcd-client-ca.crt")
	m.QuotaBackendBytes = replica.Configuration.quota(cluster)
	m.InitialClusterToken = token(cluster)
	m.InitialClusterState = "existing"
	if replica.InitialCluster.New {
		m.InitialClusterState = "new"
	}
	var initial []string
	for name, url := range replica.InitialCluster.PeerURLs {
		initial = append(initial, name+"="+url)
	}
	slices.Sort(initial)
	m.InitialCluster = strings.Join(initial, ",")
}

// token returns the initial cluster token of etcd. The UID distinguishes clusters that were created with the same name.
func token(cluster *v1alpha1.ApiServerCluster) string {
	return fmt.Sprintf("%s-%s-%s", cluster.Namespace, cluster.Name, cluster.UID)
}

// Quota returns the quota of the etcd database in bytes: 60% of the volume, at most 8 GiB, which is the maximum that
// etcd recommends. The rest of the volume is for the write-ahead log, snapshots and defragmentation.
func Quota(cluster *v1alpha1.ApiServerCluster) int64 {
	size := cluster.StorageSize()
	return quotaOf(size.Value())
}

func quotaOf(volume int64) int64 { return min(volume/10*6, 8<<30) }

// quota returns the quota for the actual volumes, which may be smaller than the size in the spec.
func (c Configuration) quota(cluster *v1alpha1.ApiServerCluster) int64 {
	if c.VolumeSize == 0 {
		return Quota(cluster)
	}
	return min(Quota(cluster), quotaOf(c.VolumeSize))
}
