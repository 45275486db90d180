package main

import (
	_ "github.com/google/btree"
	_ "github.com/spf13/cobra"
	_ "go.etcd.io/etcd/client/v3"
	_ "go.etcd.io/etcd/server/v3/embed"
	_ "go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/apiextensions-apiserver/pkg/apiserver"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app"
	_ "k8s.io/kubernetes/cmd/kubelet/app"
	_ "k8s.io/sample-apiserver/pkg/apiserver"
	_ "sigs.k8s.io/controller-runtime"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/miekg/dns"
	_ "github.com/go-logr/logr"
	_ "k8s.io/metrics/pkg/apis/metrics"
	_ "golang.org/x/tools/go/packages"
)

func main() {}
