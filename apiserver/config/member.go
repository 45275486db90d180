package config

import (
	"errors"
	"fmt"
	"net/url"
)

func (c *Config) validateMember() []error {
	var errs []error
	if percent := c.Etcd.SoftQuotaPercent; percent < 0 || percent > 100 {
		errs = append(errs, fmt.Errorf("--etcd-soft-quota-percent %d must be between 0 and 100", percent))
	}
	if c.Member.DataDirectory != "" {
		errs = append(errs, c.Member.problems()...)
	}
	return errs
}

// Validate returns all errors in the flags of the member.
func (m *Member) Validate() error { return errors.Join(m.problems()...) }

func (m *Member) problems() []error {
	var errs []error
	if m.InitialClusterState != "new" && m.InitialClusterState != "existing" {
		errs = append(errs, fmt.Errorf("--etcd-initial-cluster-state %q must be new or existing", m.InitialClusterState))
	}
	if m.Name == "" {
		errs = append(errs, errors.New("--etcd-name must not be empty"))
	}
	if len(m.ListenPeerURLs) == 0 && (len(m.AdvertisePeerURLs) > 0 || m.InitialCluster != "") {
		errs = append(errs,
			errors.New("--etcd-listen-peer-urls is required with --etcd-initial-advertise-peer-urls and --etcd-initial-cluster"))
	}
	if m.ElectionTimeout < 5*m.HeartbeatInterval {
		errs = append(errs, errors.New("--etcd-election-timeout must be at least five times --etcd-heartbeat-interval"))
	}
	for _, transport := range m.transports() {
		errs = append(errs, transport.problems(m.AllowInsecureTransport)...)
	}
	return errs
}

// transport has the flags of the URLs for peers, or of the URLs for clients.
type transport struct {
	// listen and advertise are the names of the flags of the URLs.
	listen, advertise         string
	listenURLs, advertiseURLs []string
	certFile, keyFile         string
	caFile                    string // authority of the certificates of peers or clients
	authority                 string // name of the flag of caFile
}

func (m *Member) transports() []transport {
	return []transport{{
		listen: "etcd-listen-peer-urls", advertise: "etcd-initial-advertise-peer-urls",
		listenURLs: m.ListenPeerURLs, advertiseURLs: m.AdvertisePeerURLs,
		certFile: m.PeerCertFile, keyFile: m.PeerKeyFile, caFile: m.PeerTrustedCAFile,
		authority: "etcd-peer-trusted-ca-file",
	}, {
		listen: "etcd-listen-client-urls", advertise: "etcd-advertise-client-urls",
		listenURLs: m.ListenClientURLs, advertiseURLs: m.AdvertiseClientURLs,
		certFile: m.ServerCertFile, keyFile: m.ServerKeyFile, caFile: m.ServerTrustedCAFile,
		authority: "etcd-server-trusted-ca-file",
	}}
}

func (t transport) problems(allowInsecure bool) []error {
	var errs []error
	for _, raw := range t.listenURLs {
		scheme, err := checkURL(t.listen, raw, allowInsecure)
		switch {
		case err != nil:
			errs = append(errs, err)
		case scheme == "https" && t.caFile == "" && !allowInsecure:
			errs = append(errs, fmt.Errorf("--%s: --%s is required with %s: without it everyone who can reach the URL can "+
				"read and write all data; or allow this with --etcd-allow-insecure-transport", t.listen, t.authority, raw))
		case scheme == "https" && (t.certFile == "" || t.keyFile == ""):
			errs = append(errs, fmt.Errorf("--%s: %s needs a certificate and a key", t.listen, raw))
		}
	}
	for _, raw := range t.advertiseURLs {
		if _, err := checkURL(t.advertise, raw, allowInsecure); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func checkURL(flag, raw string, allowInsecure bool) (scheme string, err error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("--%s: %q is not a URL such as https://host:2380", flag, raw)
	case u.Scheme == "http" && !allowInsecure:
		return "", fmt.Errorf("--%s: %s would let everyone who can reach it read and write all data without a "+
			"certificate; use https, or allow this with --etcd-allow-insecure-transport", flag, raw)
	}
	return u.Scheme, nil
}
