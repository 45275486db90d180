package reconcile

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/configuration"
	"quorate.dev/operator/reconcile/outcome"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

var update = flag.Bool("update", false, "rewrite the results in the scripts")

var demo = types.NamespacedName{Namespace: "ns", Name: "demo"}

// cluster is an ApiServerCluster named demo in a simulated hosting cluster. Its pods never run, so its etcd has no
// members.
type cluster struct {
	t          *testing.T
	client     client.Client
	clock      *clocktesting.FakeClock
	reconciler *Reconciler
	results    []string
	hosted     client.Client   // client of the simulated API inside the cluster
	served     map[string]bool // paths of the group versions that the API servers serve
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		client: fake.NewClientBuilder().WithScheme(ownedtest.NewScheme(t)).
			WithTypeConverters(managedfields.NewDeducedTypeConverter()).
			WithStatusSubresource(&v1alpha1.ApiServerCluster{}, &corev1.Pod{}, &apiregistrationv1.APIService{}).Build(),
	}
	c.hosted, c.served = newHosted(t), map[string]bool{}
	c.reconciler = &Reconciler{
		Discover: func(_ context.Context, _ *rest.Config, path string) error {
			if !c.served[path] {
				return fmt.Errorf("%s: 404 Not Found", path)
			}
			return nil
		},
		Host:    apiservices.Host{Server: "https://host.example.org:6443", CAData: []byte("CA")},
		Connect: func(*rest.Config) (client.Client, error) { return c.hosted, nil },
		Client:  c.client, Reader: c.client, Recorder: c, Etcd: etcd.NewPool(), Clock: c.clock, Image: "quorate:1",
		Checks: configuration.NewChecks(), Retries: outcome.NewRetries(),
	}
	return c
}

// Eventf implements events.EventRecorder.
func (c *cluster) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	c.results = append(c.results, fmt.Sprintf("> %s %s: %s", kind, reason, fmt.Sprintf(note, args...)))
}

// execute executes one line of a script:
//
//	create FIELD=VALUE...   create the cluster: replicas, image, external, extension, arg.NAME,
//	                        controllerManager, scheduler (their images; none: removed)
//	serve VERSION.GROUP     the API servers serve a group version
//	host                    results are the cluster's objects in its host: "  = line"
//	set FIELD=VALUE...      update its spec
//	delete                  delete it
//	reconcile               reconcile once; results are the events and the result: "  > line"
//	settle                  reconcile until only time or a pod can change anything, without results
//	rollout DEPLOYMENT      report all pods of a Deployment available
//	nodes                   results are the objects inside the cluster with which nodes join: "  = line"
//	ready POD               report a pod ready
//	address POD             report the address 127.0.0.1 of a pod
//	aggregate ENTRY...      set spec.aggregation.apiServices: VERSION.GROUP,BACKEND[,SOURCE]; a backend is an address or
//	                        NAMESPACE/NAME, a source of a caBundle the name of a ConfigMap or secret/NAME
//	ca NAME COMMON-NAME     create or update a ConfigMap with a certificate authority
//	available NAME REASON   set the condition Available of an APIService inside the cluster, true for Passed
//	registered              results are the objects of extension API servers inside the cluster: "  = line"
//	delete-registered         delete these objects and the namespaces inside the cluster
//	foreign-apiservice NAME   create an APIService inside the cluster
//	give NAME LIFETIME HOST   create or update a Secret with the user's certificate, as cert-manager does
//	give-authority NAME LIFETIME   create or update a Secret with the user's authority
//	serving                   result is the issuer of the serving certificate in use and the number of trusted ones: "  = line"
//	rotation                  results are the stages in the status and the keys of the Secrets that are replaced: "  = line"
//	lose-status               remove the rotations from the status
//	configmap NAME FILE=level:LEVEL   create or update a ConfigMap with an audit policy
//	delete-secret NAME...     delete Secrets
//	edit-secret NAME KEY TEXT   set a value in the data of a Secret
//	copy-secret NAME NAME     replace the data of the first Secret by that of the second
//	annotate NAME VALUE       annotate the cluster
//	strip KIND NAME           remove the labels of a Pod or PersistentVolumeClaim
//	bootstrapped NAME...      report members in the status, of a bootstrapped etcd
//	encryption                result is the encryption configuration without keys: "  = line"
//	foreign KIND NAME       create a PersistentVolumeClaim, Pod or Service with another owner
//	after DURATION          advance the clock
//	objects                 results are the objects in the namespace: "  = line"
//	conditions              results are the conditions: "  = line"
//	degraded                result is the condition Degraded: "  = line"
func (c *cluster) execute(fields []string) []string {
	c.results = nil
	switch command, args := fields[0], fields[1:]; command {
	case "create":
		object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
		c.set(object, args)
		c.must(c.client.Create(c.t.Context(), object))
	case "set":
		object := c.get()
		c.set(object, args)
		object.Generation++
		c.must(c.client.Update(c.t.Context(), object))
	case "delete":
		c.must(c.client.Delete(c.t.Context(), c.get()))
	case "reconcile":
		c.reconcile()
	case "settle":
		for wait := time.Duration(0); wait < outcome.ShortWait; {
			wait = c.reconcile()
		}
		c.results = nil
	case "ready":
		c.ready(args[0])
	case "serve":
		version, group, _ := strings.Cut(args[0], ".")
		c.served["/apis/"+group+"/"+version] = true
	case "host":
		c.host()
	case "address":
		c.address(args[0])
	case "rollout":
		c.rollout(args[0])
	case "crash":
		c.crash(args[0], strings.Join(args[1:], " "))
	case "load-balancer":
		c.loadBalancer(args)
	case "nodes":
		c.nodes()
	case "aggregate":
		c.aggregate(args)
	case "ca":
		c.ca(args[0], args[1])
	case "available":
		c.available(args[0], args[1])
	case "registered":
		c.registered()
	case "delete-registered":
		c.deleteRegistered()
	case "foreign-apiservice":
		c.must(c.hosted.Create(c.t.Context(), &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: args[0]}}))
	case "delete-secret":
		for _, name := range args {
			c.must(c.client.Delete(c.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}))
		}
	case "edit-secret", "copy-secret":
		c.editSecret(command, args)
	case "annotate":
		object := c.get()
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, args[0], args[1])
		c.must(c.client.Update(c.t.Context(), object))
	case "strip":
		c.removeAllLabels(args[0], args[1])
	case "bootstrapped":
		c.bootstrapped(args)
	case "configmap":
		c.configMap(args[0], args[1])
	case "encryption":
		c.encryption()
	case "foreign":
		c.foreign(args[0], args[1])
	case "lose-status":
		object := c.get()
		object.Status.Rotations = nil
		c.must(c.client.Status().Update(c.t.Context(), object))
	case "give-authority":
		c.createUserAuthority(args[0], args[1])
	case "give":
		c.createUserCertificate(args[0], args[1], args[2])
	case "serving":
		c.serving()
	case "rotation":
		c.rotation()
	case "after":
		duration, err := time.ParseDuration(args[0])
		c.must(err)
		c.clock.Step(duration)
	case "objects":
		c.objects()
	case "conditions":
		c.conditions()
	case "degraded":
		c.degraded()
	default:
		c.t.Fatalf("unknown command %q", command)
	}
	return c.results
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) get() *v1alpha1.ApiServerCluster {
	object := &v1alpha1.ApiServerCluster{}
	c.must(c.client.Get(c.t.Context(), demo, object))
	return object
}

func (c *cluster) set(object *v1alpha1.ApiServerCluster, assignments []string) {
	for _, assignment := range assignments {
		field, value, _ := strings.Cut(assignment, "=")
		switch {
		case field == "replicas":
			n, err := strconv.Atoi(value)
			c.must(err)
			object.Spec.Replicas = ptr.To(int32(n))
		case field == "extension": // GROUP/VERSION,...
			object.Spec.Mode = v1alpha1.ModeExtension
			group, versions, _ := strings.Cut(value, "/")
			object.Spec.Extension.Groups = append(object.Spec.Extension.Groups, v1alpha1.ExtensionGroup{
				Name: group, Versions: strings.Split(versions, "/"),
			})
		case field == "controllerManager":
			object.Spec.Companions.KubeControllerManager = companion(value)
		case field == "scheduler":
			object.Spec.Companions.KubeScheduler = companion(value)
		case field == "image":
			object.Spec.Image = value
		case field == "external":
			object.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{value}, Prefix: "/registry"}
		case field == "rotateBefore":
			at, err := time.Parse(time.RFC3339, value)
			c.must(err)
			object.Spec.Certificates.Authorities.RotateBefore = &metav1.Time{Time: at}
			object.Spec.Certificates.ServiceAccountKeys.RotateBefore = &metav1.Time{Time: at}
		case field == "clientAuthority":
			object.Spec.Certificates.Authorities.ClientSecretRef = &corev1.LocalObjectReference{Name: value}
		case field == "audit":
			object.Spec.Audit = &v1alpha1.Audit{ConfigurationFiles: v1alpha1.ConfigurationFiles{
				ConfigMapRef: &corev1.LocalObjectReference{Name: value},
			}}
		case field == "authentication":
			object.Spec.Authentication = &v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: value}}
		case field == "resources": // encrypted resources: RESOURCE,...
			object.Spec.Encryption = &v1alpha1.Encryption{Resources: strings.Split(value, ",")}
		case field == "encryption" && value == "none":
			object.Spec.Encryption = nil
		case field == "encryption":
			object.Spec.Encryption = &v1alpha1.Encryption{Provider: v1alpha1.EncryptionProvider(value)}
		case field == "serving":
			object.Spec.Certificates.Serving.SecretRef = &corev1.LocalObjectReference{Name: value}
		case field == "window": // schedule of a maintenance window of one hour
			object.Spec.Maintenance.Windows = []v1alpha1.MaintenanceWindow{
				{Schedule: strings.ReplaceAll(value, "_", " "), Duration: metav1.Duration{Duration: time.Hour}},
			}
		case field == "pausedUntil":
			object.Annotations = map[string]string{v1alpha1.PausedUntilAnnotation: value}
		case strings.HasPrefix(field, "arg."):
			object.Spec.ExtraArgs = map[string]string{strings.TrimPrefix(field, "arg."): value}
		default:
			c.t.Fatalf("unknown field %q", field)
		}
	}
}

// reconcile reconciles once and returns the requeue interval, or 0 after an error.
func (c *cluster) reconcile() time.Duration {
	result, err := c.reconciler.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: demo})
	switch {
	case err != nil:
		c.results = append(c.results, "> error: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		return outcome.ResyncInterval
	case result.RequeueAfter > 0:
		c.results = append(c.results, "> requeue after "+result.RequeueAfter.String())
	default:
		return outcome.ResyncInterval
	}
	return result.RequeueAfter
}

func (c *cluster) ready(name string) {
	pod := &corev1.Pod{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, pod))
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	c.must(c.client.Status().Update(c.t.Context(), pod))
}

func (c *cluster) foreign(kind, name string) {
	objects := map[string]client.Object{
		"PersistentVolumeClaim": &corev1.PersistentVolumeClaim{}, "Service": &corev1.Service{}, "Pod": &corev1.Pod{},
	}
	object := objects[kind]
	object.SetNamespace("ns")
	object.SetName(name)
	c.must(c.client.Create(c.t.Context(), object))
}

func (c *cluster) createUserCertificate(name, lifetime, host string) {
	duration, err := time.ParseDuration(lifetime)
	c.must(err)
	authority, err := pki.NewAuthority("cert-manager", 2*duration, c.clock.Now())
	c.must(err)
	pair, err := authority.Issue(pki.Leaf{CommonName: host, DNSNames: []string{host}, Server: true, Lifetime: duration},
		c.clock.Now())
	c.must(err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key, desired.AuthorityKey: authority.Certificate,
	}}
	if err := c.client.Create(c.t.Context(), secret); err != nil {
		c.must(c.client.Update(c.t.Context(), secret))
	}
}

func (c *cluster) createUserAuthority(name, lifetime string) {
	duration, err := time.ParseDuration(lifetime)
	c.must(err)
	authority, err := pki.NewAuthority("cert-manager", duration, c.clock.Now())
	c.must(err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{
		corev1.TLSCertKey: authority.Certificate, corev1.TLSPrivateKeyKey: authority.Key,
	}}
	if err := c.client.Create(c.t.Context(), secret); err != nil {
		c.must(c.client.Update(c.t.Context(), secret))
	}
}

func (c *cluster) editSecret(command string, args []string) {
	secret := c.secret(args[0])
	if command == "copy-secret" {
		secret.Data = c.secret(args[1]).Data
	} else {
		secret.Data[args[1]] = []byte(args[2])
	}
	c.must(c.client.Update(c.t.Context(), secret))
}

func (c *cluster) removeAllLabels(kind, name string) {
	objects := map[string]client.Object{"PersistentVolumeClaim": &corev1.PersistentVolumeClaim{}, "Pod": &corev1.Pod{}}
	object := objects[kind]
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, object))
	object.SetLabels(nil)
	c.must(c.client.Update(c.t.Context(), object))
}

func (c *cluster) bootstrapped(names []string) {
	object := c.get()
	object.Status.Membership.InitialMembers, object.Status.Membership.Bootstrapped = nil, true
	object.Status.Members = nil
	for _, name := range names {
		object.Status.Members = append(object.Status.Members, v1alpha1.MemberStatus{Name: name, Role: "voter"})
	}
	c.must(c.client.Status().Update(c.t.Context(), object))
}

func (c *cluster) secret(name string) *corev1.Secret {
	secret := &corev1.Secret{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, secret))
	return secret
}

func (c *cluster) serving() {
	secret := c.secret("demo-serving")
	chain, err := cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
	c.must(err)
	trusted, err := cert.ParseCertsPEM(secret.Data[desired.AuthorityKey])
	c.must(err)
	c.results = append(c.results, fmt.Sprintf("= issued by %s until %s, %d trusted authorities",
		chain[0].Issuer.CommonName, chain[0].NotAfter.Format(time.RFC3339), len(trusted)))
}

func (c *cluster) rotation() {
	if rotations := c.get().Status.Rotations; rotations != nil {
		for name, rotation := range map[string]*v1alpha1.Rotation{
			"authorities": rotations.Authorities, "keys": rotations.ServiceAccountKeys,
		} {
			if rotation != nil {
				c.results = append(c.results, fmt.Sprintf("= %s: %s", name, rotation.Stage))
			}
		}
		slices.Sort(c.results)
	}
	for _, name := range []string{"demo-client-ca", "demo-front-proxy-ca", "demo-service-account"} {
		data := c.secret(name).Data
		trusted := bytes.Count(append(data[corev1.TLSCertKey], data["service-account.pub"]...), []byte("BEGIN"))
		c.results = append(c.results, fmt.Sprintf("= %s: %d trusted, keys %v", name, trusted, slices.Sorted(maps.Keys(data))))
	}
}

func (c *cluster) objects() {
	for _, list := range []client.ObjectList{
		&v1alpha1.ApiServerClusterList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.ServiceList{},
		&appsv1.DeploymentList{}, &corev1.SecretList{}, &policyv1.PodDisruptionBudgetList{},
		&networkingv1.NetworkPolicyList{},
	} {
		c.must(c.client.List(c.t.Context(), list))
		var names []string
		c.must(meta.EachListItem(list, func(item runtime.Object) error {
			names = append(names, item.(client.Object).GetName())
			return nil
		}))
		slices.Sort(names)
		if kind := strings.TrimSuffix(fmt.Sprintf("%T", list), "List"); len(names) > 0 {
			c.results = append(c.results,
				fmt.Sprintf("= %s %s", kind[strings.LastIndex(kind, ".")+1:], strings.Join(names, " ")))
		}
	}
}

func (c *cluster) conditions() {
	for _, condition := range c.get().Status.Conditions {
		c.results = append(c.results,
			fmt.Sprintf("= %s=%s %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message))
	}
}

// play executes a script and returns it with the actual results.
func runScript(t *testing.T, script []byte) []byte {
	c := newCluster(t)
	var out bytes.Buffer
	for lines := bufio.NewScanner(bytes.NewReader(script)); lines.Scan(); {
		text := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(text, "> ") || strings.HasPrefix(text, "= ") {
			continue
		}
		fmt.Fprintln(&out, lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		for _, result := range c.execute(strings.Fields(text)) {
			fmt.Fprintln(&out, "  "+result)
		}
	}
	return out.Bytes()
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata has no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, script)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if !bytes.Equal(got, script) {
				t.Errorf("got:\n%s\nwant (%s):\n%s", got, file, script)
			}
		})
	}
}
