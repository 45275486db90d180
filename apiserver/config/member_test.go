package config

import (
	"strings"
	"testing"
)

// A member that can be reached without a certificate requires --etcd-allow-insecure-transport.
func TestMemberTransport(t *testing.T) {
	const (
		allow      = "--etcd-allow-insecure-transport"
		peers      = "--etcd-listen-peer-urls=https://127.0.0.1:2380"
		clients    = "--etcd-listen-client-urls=https://127.0.0.1:2379"
		peerCA     = " --etcd-peer-trusted-ca-file=ca.crt"
		peerPair   = "--etcd-peer-cert-file=p.crt --etcd-peer-key-file=p.key"
		serverPair = "--etcd-server-cert-file=s.crt --etcd-server-key-file=s.key"
	)
	for name, test := range map[string]struct {
		args string
		want string // empty: valid
	}{
		"alone":                     {"", ""},
		"peers with certificates":   {peers + " " + peerPair + " --etcd-peer-trusted-ca-file=ca.crt", ""},
		"clients with certificates": {clients + " " + serverPair + " --etcd-server-trusted-ca-file=ca.crt", ""},
		"http for peers":            {"--etcd-listen-peer-urls=http://127.0.0.1:2380", allow},
		"http for peers, announced": {
			peers + " " + peerPair + peerCA + " --etcd-initial-advertise-peer-urls=http://127.0.0.1:1", allow,
		},
		"http for clients":            {"--etcd-listen-client-urls=http://127.0.0.1:2379", allow},
		"http for clients, announced": {"--etcd-advertise-client-urls=http://127.0.0.1:2379", allow},
		"http among https":            {peers + ",http://127.0.0.1:1 " + peerPair + peerCA, allow},
		"http, allowed": {
			"--etcd-listen-peer-urls=http://127.0.0.1:1 --etcd-listen-client-urls=http://127.0.0.1:2 " + allow, "",
		},
		"peers without authority":     {peers + " " + peerPair, "--etcd-peer-trusted-ca-file is required"},
		"clients without authority":   {clients + " " + serverPair, "--etcd-server-trusted-ca-file is required"},
		"no authority, allowed":       {peers + " " + peerPair + " " + allow, ""},
		"peers without a certificate": {peers + " --etcd-peer-trusted-ca-file=ca.crt", "needs a certificate and a key"},
		"clients without a key": {clients + " --etcd-server-trusted-ca-file=ca.crt --etcd-server-cert-file=s.crt",
			"needs a certificate and a key"},
		"another scheme": {"--etcd-listen-client-urls=unix://localhost:1", "is not a URL"},
		"announced, but not listened on": {"--etcd-initial-advertise-peer-urls=https://127.0.0.1:2380",
			"--etcd-listen-peer-urls is required"},
		"peers, but not listened to": {"--etcd-initial-cluster=default=https://127.0.0.1:2380",
			"--etcd-listen-peer-urls is required"},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, append([]string{"--etcd-data-dir=/x"}, strings.Fields(test.args)...)...).Validate()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
