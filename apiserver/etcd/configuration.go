package etcd

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"quorate.dev/apiserver/config"
)

const (
	// catchUpEntries is how many applied raft entries stay in memory for followers that lag. One that lags
	// further gets a snapshot. etcd's own default of 5000 costs tens of megabytes.
	catchUpEntries = 2500
	// progressInterval is the longest time that an idle watch does not know how far it has come.
	progressInterval = 5 * time.Second
)

// configure translates the flags of a member, which listens on a local socket too, into etcd's configuration.
func configure(member config.Member, socket socketAddress, log logr.Logger) (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name = member.Name
	c.Dir = member.DataDirectory
	c.ClusterState = member.InitialClusterState
	c.InitialClusterToken = member.InitialClusterToken
	c.QuotaBackendBytes = member.QuotaBackendBytes
	c.BootstrapDefragThresholdMegabytes = uint(quotaOf(member.QuotaBackendBytes) / defragmentShare >> 20)
	c.SnapshotCount = member.SnapshotCount
	c.SnapshotCatchUpEntries = min(catchUpEntries, member.SnapshotCount)
	c.TickMs = uint(member.HeartbeatInterval.Milliseconds())
	c.ElectionMs = uint(member.ElectionTimeout.Milliseconds())
	c.UnsafeNoFsync = member.UnsafeNoFsync
	c.WatchProgressNotifyInterval = progressInterval
	c.AutoCompactionRetention = "0" // API servers compact
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapLogger(log))
	setTLS(c, member)
	if err := setURLs(c, member); err != nil {
		return nil, err
	}
	c.ListenClientUrls = append(c.ListenClientUrls, socket.urls()...)
	if c.AdvertiseClientUrls == nil {
		c.AdvertiseClientUrls = []url.URL{} // etcd refuses nil; the socket is of no use to other members' clients
	}
	if len(member.ListenPeerURLs) == 0 {
		c.AdvertisePeerUrls = []url.URL{placeholderPeerURL()}
	}
	c.InitialCluster = member.InitialCluster
	if c.InitialCluster == "" {
		c.InitialCluster = alone(member.Name, c.AdvertisePeerUrls)
	}
	return c, nil
}

// placeholderPeerURL stands for a member without peer URLs in its own member list. It leads nowhere. It is random
// because etcd derives the IDs of a new cluster and its members from peer URLs.
func placeholderPeerURL() url.URL {
	return url.URL{Scheme: "unix", Host: "no-peers-" + strings.ToLower(rand.Text())}
}

// alone is the initial cluster of a member that has no peers.
func alone(name string, urls []url.URL) string {
	members := make([]string, len(urls))
	for i, u := range urls {
		members[i] = name + "=" + u.String()
	}
	return strings.Join(members, ",")
}

// setTLS makes peers and clients present certificates wherever an authority to check them with is given.
func setTLS(c *embed.Config, member config.Member) {
	// Who calls is told by its certificate's authority, which serves this purpose alone, not by the address the
	// call seems to come from: a pod's address changes, and is often translated on its way.
	c.PeerTLSInfo = transport.TLSInfo{
		CertFile: member.PeerCertFile, KeyFile: member.PeerKeyFile,
		TrustedCAFile: member.PeerTrustedCAFile, ClientCertAuth: member.PeerTrustedCAFile != "", SkipClientSANVerify: true,
	}
	c.ClientTLSInfo = transport.TLSInfo{
		CertFile: member.ServerCertFile, KeyFile: member.ServerKeyFile,
		TrustedCAFile: member.ServerTrustedCAFile, ClientCertAuth: member.ServerTrustedCAFile != "", SkipClientSANVerify: true,
	}
}

func setURLs(c *embed.Config, member config.Member) (err error) {
	advertisePeer, advertiseClient := member.AdvertisePeerURLs, member.AdvertiseClientURLs
	if len(advertisePeer) == 0 {
		advertisePeer = member.ListenPeerURLs
	}
	if len(advertiseClient) == 0 {
		advertiseClient = member.ListenClientURLs
	}
	if c.ListenPeerUrls, err = parseURLs(member.ListenPeerURLs); err != nil {
		return err
	}
	if c.AdvertisePeerUrls, err = parseURLs(advertisePeer); err != nil {
		return err
	}
	if c.ListenClientUrls, err = parseURLs(member.ListenClientURLs); err != nil {
		return err
	}
	c.AdvertiseClientUrls, err = parseURLs(advertiseClient)
	return err
}

func parseURLs(raw []string) ([]url.URL, error) {
	var urls []url.URL
	for _, r := range raw {
		u, err := url.Parse(r)
		if err != nil {
			return nil, fmt.Errorf("not a URL of an etcd member: %w", err)
		}
		urls = append(urls, *u)
	}
	return urls, nil
}
