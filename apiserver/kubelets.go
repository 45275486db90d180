package apiserver

import "quorate.dev/apiserver/kubelet"

// composeKubelets returns the client of kubelets, for logs, exec, attach, port-forward and proxy.
func (s *cluster) composeKubelets() (*kubelet.Kubelets, error) {
	c := s.config.API
	return kubelet.New(s.objects, kubelet.Options{
		AddressTypes: c.KubeletAddressTypes, Port: c.KubeletPort, BytesPerSecond: c.MaxConnectionBytes,
		CertFile: c.KubeletClientCertFile, KeyFile: c.KubeletClientKeyFile, CAFile: c.KubeletCAFile,
		Dial: s.egress.Cluster, Authorizer: s.auth.authorizer, Registerer: s.metrics,
	})
}
