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
	// catchUpEntries is the number of applied raft entries that are kept in memory for slow followers. A follower that
	// lags further behind gets a snapshot. etcd's default of 5000 entries takes tens of megabytes.
	catchUpEntries = 2500
	// progressInterval is the interval of progress notifications to idle watches.
	progressInterval = 5 * time.Second
)

// configure returns etcd's configuration of a member that also listens on a local socket.
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
	c.AutoCompactionRetention = "0" // the API servers compact etcd
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapLogger(log))
	setTLS(c, member)
	if err := setURLs(c, member); err != nil {
		return nil, err
	}
	c.ListenClientUrls = append(c.ListenClientUrls, socket.urls()...)
	if c.AdvertiseClientUrls == nil {
		c.AdvertiseClientUrls = []url.URL{} // etcd rejects nil; other machines cannot use the socket
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

// placeholderPeerURL returns the peer URL of a member that listens to no peers. It is not reachable. It is random
// because etcd derives the IDs of a new cluster and its members from peer URLs.
func placeholderPeerURL() url.URL {
	return url.URL{Scheme: "unix", Host: "no-peers-" + strings.ToLower(rand.Text())}
}

// alone returns the initial cluster of a member that has no peers.
func alone(name string, urls []url.URL) string {
	members := make([]string, len(urls))
	for i, u := range urls {
		members[i] = name + "=" + u.String()
	}
	return strings.Join(members, ",")
}

// setTLS requires certificates of peers and clients if a certificate authority for them is configured.
func setTLS(c *embed.Config, member config.Member) {
	// A peer is accepted if the peer authority has signed its certificate; this authority must sign no other
	// certificates. Addresses are not verified, because the address of a pod changes and is often translated.
	c.PeerTLSInfo = transport.TLSInfo{
		CertFile: member.PeerCertFile, KeyFile: member.PeerKeyFile,
		TrustedCAFile: member.PeerTrustedCAFile, ClientCertAuth: member.PeerTrustedCAFile != "", SkipClientSANVerify: true,
	}
	c.ClientTLSInfo = transport.TLSInfo{
		CertFile: member.ServerCertFile, KeyFile: member.ServerKeyFile,
		TrustedCAFile: member.ServerTrustedCAFile, ClientCertAuth: member.ServerTrustedCAFile != "",
		SkipClientSANVerify: true,
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
