// Package names implements the DNS server of a sandbox. It resolves the names of Services and Pods according to the
// Kubernetes DNS specification.
package names

import (
	"net/netip"
	"strings"

	"quorate.dev/sandbox/endpoints"
)

// Answer is the result of Resolve.
type Answer struct {
	Ours      bool // the name belongs to the cluster, so that queries are not forwarded
	Exists    bool
	Addresses []netip.Addr
}

// Resolve resolves a name, with or without a trailing dot:
//
//	service.namespace.svc[.cluster.local]            the cluster IP; if headless, the addresses of ready Pods
//	hostname.service.namespace.svc[.cluster.local]   the address of a ready Pod with the hostname
//	a-b-c-d.namespace.pod[.cluster.local]            a.b.c.d
func Resolve(table *endpoints.Table, name string) Answer {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	name, inDomain := strings.CutSuffix(name, "."+endpoints.Domain)
	labels := strings.Split(name, ".")
	last := len(labels) - 1
	switch {
	case labels[last] == "svc" && len(labels) == 3:
		return service(table, labels[1], labels[0])
	case labels[last] == "svc" && len(labels) == 4:
		return member(table, labels[2], labels[1], labels[0])
	case labels[last] == "pod" && len(labels) == 3:
		return pod(labels[0])
	}
	return Answer{Ours: inDomain || name == endpoints.Domain || labels[last] == "svc"}
}

func service(table *endpoints.Table, namespace, name string) Answer {
	entry, ok := table.Get(namespace, name)
	if !ok {
		return Answer{Ours: true}
	}
	if address, ok := entry.ClusterIP(); ok {
		return Answer{Ours: true, Exists: true, Addresses: []netip.Addr{address}}
	}
	answer := Answer{Ours: true, Exists: true}
	for _, endpoint := range entry.Endpoints {
		if endpoint.Ready {
			answer.Addresses = append(answer.Addresses, endpoint.Address)
		}
	}
	return answer
}

func member(table *endpoints.Table, namespace, name, hostname string) Answer {
	answer := Answer{Ours: true}
	entry, _ := table.Get(namespace, name)
	for _, endpoint := range entry.Endpoints {
		if endpoint.Ready && endpoint.Hostname == hostname {
			answer.Exists = true
			answer.Addresses = append(answer.Addresses, endpoint.Address)
		}
	}
	return answer
}

func pod(label string) Answer {
	address, err := netip.ParseAddr(strings.ReplaceAll(label, "-", "."))
	if err != nil {
		return Answer{Ours: true}
	}
	return Answer{Ours: true, Exists: true, Addresses: []netip.Addr{address}}
}
