package apiserver

import (
	"fmt"

	"k8s.io/apiserver/pkg/util/proxy"

	"quorate.dev/apiserver/kubelet"
)

// composeKubelets returns the client of kubelets, for logs, exec, attach, port-forward and proxy.
func (s *cluster) composeKubelets() (*kubelet.Kubelets, error) {
	slices, err := proxy.NewEndpointSliceIndexerGetter(s.informers.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, fmt.Errorf("index the EndpointSlices: %w", err)
	}
	c := s.config.API
	return kubelet.New(s.objects, kubelet.Options{
		AddressTypes: c.KubeletAddressTypes, Port: c.KubeletPort, BytesPerSecond: c.MaxConnectionBytes,
		CertFile: c.KubeletClientCertFile, KeyFile: c.KubeletClientKeyFile, CAFile: c.KubeletCAFile,
		Dial: s.egress.Cluster, Slices: slices, Family: s.serviceFamily(), Authorizer: s.auth.authorizer,
		Registerer: s.metrics,
	})
}
