package config

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Peers configures the forwarding of requests between replicas. A replica forwards requests for resources that it does
// not serve to a replica that serves them.
type Peers struct {
	// CAFile has the authority of the replicas' serving certificates. If it is empty, requests are not forwarded.
	CAFile string
	// AdvertiseIP and AdvertisePort are the address at which other replicas reach this one. If both are empty, it is
	// the address for clients.
	AdvertiseIP   string
	AdvertisePort string
}

func (p *Peers) flags(f *pflag.FlagSet) {
	stringFlag(f, &p.CAFile, "peer-ca-file",
		"Certificate authority of the other API servers. With it, requests for resources that this server does not serve "+
			"are forwarded to one that does. Needs --proxy-client-cert-file and --proxy-client-key-file.")
	stringFlag(f, &p.AdvertiseIP, "peer-advertise-ip",
		"IP address at which other API servers reach this one; default, unless --peer-advertise-port is set: "+
			"--advertise-address.")
	stringFlag(f, &p.AdvertisePort, "peer-advertise-port",
		"Port at which other API servers reach this one; default, unless --peer-advertise-ip is set: --secure-port.")
}

// Leadership configures the lease of the controller of coordinated leader election, which the feature gate
// CoordinatedLeaderElection enables.
type Leadership struct{ LeaseDuration, RenewDeadline, RetryPeriod time.Duration }

const (
	leadershipLease = "coordinated-leadership-lease-duration"
	leadershipRenew = "coordinated-leadership-renew-deadline"
	leadershipRetry = "coordinated-leadership-retry-period"
)

func (l *Leadership) flags(f *pflag.FlagSet) {
	durationFlag(f, &l.LeaseDuration, leadershipLease,
		"Duration of the lease of the controller of coordinated leader election.")
	durationFlag(f, &l.RenewDeadline, leadershipRenew,
		"How long the holder of the lease tries to renew it before it gives up.")
	durationFlag(f, &l.RetryPeriod, leadershipRetry, "Time between attempts to acquire or renew the lease.")
}

// validate returns kube-apiserver's errors.
func (l *Leadership) validate() []error {
	var errs []error
	if l.LeaseDuration <= l.RenewDeadline {
		errs = append(errs, fmt.Errorf("--%s must be greater than --%s", leadershipLease, leadershipRenew))
	}
	if l.RenewDeadline <= l.RetryPeriod {
		errs = append(errs, fmt.Errorf("--%s must be greater than --%s", leadershipRenew, leadershipRetry))
	}
	return errs
}
