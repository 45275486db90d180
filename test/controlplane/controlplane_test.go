// Package controlplane runs kube-controller-manager and kube-scheduler on this project's API server and on
// kube-apiserver: every kind of workload must behave equally on both, and the logs must not have more errors than on
// kube-apiserver.
package controlplane

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"quorate.dev/test/upstream"
)

// skewVariable is the environment variable that selects tests with programs of former Kubernetes minor versions.
const skewVariable = "QUORATE_SKEW"

// TestMain runs all steps in parallel whatever GOMAXPROCS is, because they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "64"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// cluster is an API server with the controllers, the scheduler and a few nodes.
type cluster struct {
	config  *rest.Config
	pki     *upstream.PKI
	typed   kubernetes.Interface
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
}

var servers = map[string]func(t *testing.T, options upstream.Options) (*upstream.APIServer, error){
	"quorate": func(t *testing.T, options upstream.Options) (*upstream.APIServer, error) {
		return upstream.StartQuorate(t.Context(), options)
	},
	"kube-apiserver": func(t *testing.T, options upstream.Options) (*upstream.APIServer, error) {
		etcd, err := upstream.StartEtcd(t.Context(), options.Directory)
		if err != nil {
			return nil, err
		}
		etcd.StopAfter(t)
		options.Etcd = etcd.Endpoint
		return upstream.StartKubernetes(t.Context(), options)
	},
}

func TestControlPlane(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	compareServers(t, "")
}

// TestVersionSkew runs kube-controller-manager and kube-scheduler of each of the two former minor versions on this
// project's API server, as they run while a control plane is upgraded: the API servers are upgraded first. It compares
// their logs with those that they have on kube-apiserver of their own version.
func TestVersionSkew(t *testing.T) {
	upstream.NeedsProcesses(t)
	if os.Getenv(skewVariable) == "" {
		t.Skip("builds two former minor versions; set " + skewVariable + "=full (make skew)")
	}
	for _, release := range upstream.FormerMinors() {
		t.Run(release, func(t *testing.T) { compareServers(t, release) })
	}
}

// compareServers runs all steps on both servers, with the components of a release. kube-apiserver has this release,
// too.
func compareServers(t *testing.T, release string) {
	t.Helper()
	var logs = map[string]string{}
	for name := range servers {
		logs[name] = t.TempDir()
	}
	t.Run("on", func(t *testing.T) {
		for name, startServer := range servers {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := startCluster(t, logs[name], startServer, release)
				for step, run := range steps {
					t.Run(step, func(t *testing.T) {
						t.Parallel()
						begun := time.Now()
						run(&stepTest{T: t, cluster: c, namespace: step})
						t.Logf("%s: %s", step, time.Since(begun).Round(10*time.Millisecond))
					})
				}
			})
		}
	})
	for _, component := range []string{"kube-controller-manager", "kube-scheduler"} {
		file := component + ".log"
		compareLogs(t, component, filepath.Join(logs["quorate"], file), filepath.Join(logs["kube-apiserver"], file))
	}
}

// steps are independent of each other; each has its own namespace.
var steps = map[string]func(*stepTest){
	"deployment":      deployment,
	"statefulset":     statefulSet,
	"daemonset":       daemonSet,
	"job":             job,
	"cronjob":         cronJob,
	"replication":     replicationController,
	"garbage":         garbage,
	"namespace":       namespaceLife,
	"quota":           quota,
	"autoscaler":      autoscaler,
	"budget":          budget,
	"accounts":        accounts,
	"service":         service,
	"certificate":     certificate,
	"aggregated-role": aggregatedRole,
	"unschedulable":   unschedulable,
	"taint":           taint,
}

// startCluster starts everything with the components of a release, and stops it, the clients first, when the test ends.
func startCluster(
	t *testing.T, directory string, startServer func(*testing.T, upstream.Options) (*upstream.APIServer, error),
	release string,
) *cluster {
	c := startRelease(t, directory, startServer, release, "--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction")
	c.startControllers(t, directory, release)
	for _, name := range []string{"node-a", "node-b"} {
		c.startNode(t, name)
	}
	return c
}

// start starts a server without clients.
func start(
	t *testing.T, directory string, startServer func(*testing.T, upstream.Options) (*upstream.APIServer, error),
	arguments ...string,
) *cluster {
	return startRelease(t, directory, startServer, "", arguments...)
}

// startRelease is like start, with the release of kube-apiserver.
func startRelease(
	t *testing.T, directory string, startServer func(*testing.T, upstream.Options) (*upstream.APIServer, error),
	release string, arguments ...string,
) *cluster {
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := startServer(t, upstream.Options{
		Directory: directory, PKI: pki, Accounts: true, Arguments: arguments, Version: release,
	})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	c := &cluster{config: rest.CopyConfig(server.Admin), pki: pki}
	c.config.QPS = -1
	c.typed, c.dynamic = kubernetes.NewForConfigOrDie(c.config), dynamic.NewForConfigOrDie(c.config)
	groups, err := restmapper.GetAPIGroupResources(c.typed.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	c.mapper = restmapper.NewDiscoveryRESTMapper(groups)
	return c
}

// TestControllersInTheServer runs the steps of the server's own controllers without a kube-controller-manager.
func TestControllersInTheServer(t *testing.T) {
	upstream.NeedsProcesses(t)
	c := start(t, t.TempDir(), servers["quorate"], "--controllers=*")
	for step, run := range map[string]func(*stepTest){
		"garbage":         garbage,
		"aggregated-role": aggregatedRole,
		"quota":           counted,
		"namespace":       func(s *stepTest) { s.begin(); ended(s) },
	} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			run(&stepTest{T: t, cluster: c, namespace: step})
		})
	}
}

func (c *cluster) startControllers(t *testing.T, directory, release string) {
	client := upstream.Client{
		Directory: directory, PKI: c.pki, Server: c.config, Version: release,
		Arguments: []string{"--kube-api-qps=500", "--kube-api-burst=500"},
	}
	scheduler, err := client.StartScheduler(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	scheduler.StopAfter(t)
	client.Arguments = append(client.Arguments,
		"--horizontal-pod-autoscaler-sync-period=1s", "--namespace-sync-period=5s")
	manager, err := client.StartControllerManager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	manager.StopAfter(t)
}
