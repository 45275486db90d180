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
	// podIP is expanded by the kubelet from the variable of that name. A replica listens on its own address only.
	podIP = "$(POD_IP)"

	issuer = "https://kubernetes.default.svc.cluster.local"

	// shutdownDelay is the time a Service needs to notice that a replica is going.
	shutdownDelay = 3 * time.Second
)

// Start is what a member is told in case its data directory is empty. A member that has run before is told of itself
// alone, which etcd refuses on an empty directory: it must not come back without its data.
type Start struct {
	New     bool              // the founders make a new cluster
	Cluster map[string]string // peer URLs by member name
}

// Replica is one pod to build.
type Replica struct {
	Name      string
	Member    bool
	Start     Start    // of a member
	Endpoints []string // of a server: client URLs of the embedded members
}

// configuration of one replica at an address, with the user's flags.
func configuration(
	cluster *v1alpha1.ApiServerCluster, replica Replica, address string, extra map[string]string,
) (*config.Config, error) {
	c := config.Default()
	c.Serving.BindAddress, c.Serving.AdvertiseAddress, c.Serving.Port = address, address, SecurePort
	c.Serving.CertFile, c.Serving.KeyFile = mounted("serving.crt"), mounted("serving.key")
	c.Serving.ShutdownDelay, c.Serving.ShutdownSendRetryAfter = shutdownDelay, true
	c.Authentication.ClientCAFile = mounted("client-ca.crt")
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
	c.Controllers.Enabled = []string{"*"}
	c.API.EndpointReconcilerType = "none" // the addresses of these pods mean nothing to the clients of this API
	switch {
	case cluster.Spec.Etcd.External != nil:
		setExternal(c, cluster.Spec.Etcd.External)
	case replica.Member:
		setMember(c, cluster, replica, address)
	default:
		c.Etcd.Servers = replica.Endpoints
		c.Etcd.CAFile, c.Etcd.CertFile, c.Etcd.KeyFile = mounted("etcd-client-ca.crt"), mounted("etcd-client.crt"), mounted("etcd-client.key")
	}
	return c, setExtra(c, extra)
}

func setExternal(c *config.Config, external *v1alpha1.ExternalEtcd) {
	c.Etcd.Servers, c.Etcd.Prefix = external.Endpoints, external.Prefix
	if external.SecretRef != nil {
		c.Etcd.CAFile, c.Etcd.CertFile, c.Etcd.KeyFile = mounted("etcd-client-ca.crt"), mounted("etcd-client.crt"), mounted("etcd-client.key")
	}
}

func setMember(c *config.Config, cluster *v1alpha1.ApiServerCluster, replica Replica, address string) {
	m := &c.Member
	m.DataDirectory, m.Name = dataDirectory+"/etcd", replica.Name
	m.ListenPeerURLs = []string{fmt.Sprintf("https://%s:%d", address, PeerPort)}
	m.AdvertisePeerURLs = []string{PeerURL(cluster, replica.Name)}
	m.ListenClientURLs = []string{fmt.Sprintf("https://%s:%d", address, ClientPort)}
	m.AdvertiseClientURLs = []string{ClientURL(cluster, replica.Name)}
	m.PeerCertFile, m.PeerKeyFile, m.PeerTrustedCAFile = mounted("etcd-peer.crt"), mounted("etcd-peer.key"), mounted("etcd-peer-ca.crt")
	m.ServerCertFile, m.ServerKeyFile, m.ServerTrustedCAFile = mounted("etcd-server.crt"), mounted("etcd-server.key"), mounted("etcd-client-ca.crt")
	m.QuotaBackendBytes = quota(cluster)
	m.InitialClusterToken = fmt.Sprintf("%s-%s-%s", cluster.Namespace, cluster.Name, cluster.UID)
	m.InitialClusterState = "existing"
	if replica.Start.New {
		m.InitialClusterState = "new"
	}
	var initial []string
	for name, url := range replica.Start.Cluster {
		initial = append(initial, name+"="+url)
	}
	slices.Sort(initial)
	m.InitialCluster = strings.Join(initial, ",")
}

// quota leaves room on the volume for the log, snapshots and defragmentation. Etcd recommends at most 8 GiB.
func quota(cluster *v1alpha1.ApiServerCluster) int64 {
	size := StorageSize(cluster)
	return min(size.Value()/10*6, 8<<30)
}
