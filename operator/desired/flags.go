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
	// recordDirectory is where a member keeps its record outside its volume: on an emptyDir volume, which survives restarts
	// of the container and is deleted with the pod.
	recordDirectory = "/var/run/quorate/member"
	// podIP is expanded by the kubelet. A replica listens only on its own address.
	podIP = "$(POD_IP)"

	issuer = "https://kubernetes.default.svc.cluster.local"

	// shutdownDelay is the time for kube-proxies to remove a terminating replica from the Service.
	shutdownDelay = 3 * time.Second
)

// InitialCluster is etcd's configuration for an empty data directory. For a member that has run before it contains only
// that member, with which etcd refuses to start on an empty directory: a member must not restart without its data.
type InitialCluster struct {
	New      bool              // bootstrap a new cluster instead of joining an existing one
	PeerURLs map[string]string // by member name
}

// MemberRecord is what is known about the data of a member outside its volume.
type MemberRecord = config.MemberRecord

// Replica describes the pod of one replica.
type Replica struct {
	Name           string
	Member         bool
	InitialCluster InitialCluster // of a member
	Record         MemberRecord   // of a member, without the directory
	Endpoints      []string       // of a server: client URLs of the embedded members
	AuthorityHash  string         // of the authorities that etcd reads only at its start; empty with an external etcd
	Configuration  Configuration
}

// goawayChance makes clients reconnect from time to time. Otherwise most connections accumulate on the replica that
// has run longest, and break at once when it stops.
const goawayChance = 0.001

// configuration returns the configuration of a replica that listens on address, with the extra flags of the user.
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

// setCluster configures the users, permissions and controllers of a cluster. API servers in mode Extension have none
// of their own.
func setCluster(c *config.Config, cluster *v1alpha1.ApiServerCluster) {
	c.Authentication.RequestHeaderCAFile = mounted("front-proxy-ca.crt")
	c.Authentication.RequestHeaderAllowedNames = []string{frontProxyName}
	c.Authentication.RequestHeaderUsername = []string{"X-Remote-User"}
	c.Authentication.RequestHeaderUID = []string{"X-Remote-Uid"}
	c.Authentication.RequestHeaderGroup = []string{"X-Remote-Group"}
	c.Authentication.RequestHeaderExtraPrefix = []string{"X-Remote-Extra-"}
	c.API.ProxyClientCertFile, c.API.ProxyClientKeyFile = mounted("front-proxy-client.crt"), mounted("front-proxy-client.key")
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
	c.API.EndpointReconcilerType = "none" // clients of this API cannot route to the pod addresses
	c.API.AggregatorRouting = usesAggregatorRouting(cluster)
}

// setNodes configures what joining nodes need: bootstrap tokens, and access to kubelets by node address, because the
// pods of the API servers cannot resolve node names.
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

// token returns the initial cluster token.
func token(cluster *v1alpha1.ApiServerCluster) string {
	return fmt.Sprintf("%s-%s-%s", cluster.Namespace, cluster.Name, cluster.UID)
}

// Quota returns the etcd quota in bytes. The rest of the volume is for the write-ahead log, snapshots and
// defragmentation. etcd recommends at most 8 GiB.
func Quota(cluster *v1alpha1.ApiServerCluster) int64 {
	size := cluster.StorageSize()
	return quotaOf(size.Value())
}

func quotaOf(volume int64) int64 { return min(volume/10*6, 8<<30) }

// quota returns the etcd quota for the actual volumes, which may be smaller than the size in the spec.
func (c Configuration) quota(cluster *v1alpha1.ApiServerCluster) int64 {
	if c.VolumeSize == 0 {
		return Quota(cluster)
	}
	return min(Quota(cluster), quotaOf(c.VolumeSize))
}
