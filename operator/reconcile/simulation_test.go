package reconcile

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/grpclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/configuration"
	"quorate.dev/test/invariants"
)

// TestMain discards the logs of libraries, because they report unreachable members, which the tests cause.
func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	os.Exit(m.Run())
}

// simulation is a cluster with operators, a simulated kubelet and a simulated etcd. Each write of an operator and each
// disturbance is a step in its history.
type simulation struct {
	*cluster
	random    *rand.Rand
	raw       client.WithWatch // not intercepted
	etcd      *simulatedEtcd
	operators []*Reconciler
	acting    int // index of the operator that reconciles
	network   string
	addresses int
	uids      int
	// Returns the error of a write that a webhook or quota refuses; nil: no write is refused.
	refused           func(verb string, object client.Object) error
	interleavingMutex sync.Mutex                // held while another operator acts during a request to etcd
	interleavings     int                       // number of interleavings that are running
	ended             []*grpc.Server            // servers of processes that have ended during an interleaving
	pause             func()                    // called once before the next write of an operator
	backup            map[string]*corev1.Secret // the user's copies of Secrets
	history           []invariants.Step
}

func newSimulation(t *testing.T, seed int64) *simulation {
	w := &simulation{
		cluster: newCluster(t), random: rand.New(rand.NewSource(seed)), etcd: newSimulatedEtcd(),
		backup: map[string]*corev1.Secret{}, network: fmt.Sprintf("127.%d.%d.", 130+rand.Intn(60), rand.Intn(256)),
	}
	raw, ok := w.client.(client.WithWatch)
	if !ok {
		t.Fatal("the fake client cannot watch")
	}
	w.raw = raw
	// The connections to etcd verify certificates by the real clock, so that its time must be in the lifetime of all
	// certificates, also of those that are issued at the end of the simulation.
	w.clock.SetTime(time.Now().AddDate(0, -3, 0).Truncate(time.Second))
	for _, name := range []string{"a", "b"} {
		operator := *w.reconciler
		operator.Etcd, operator.Checks = etcd.NewPool(), configuration.NewChecks()
		operator.Client = &staleReader{
			Client: w.intercepted(name), live: raw, random: w.random, seen: map[string]client.Object{},
		}
		w.operators = append(w.operators, &operator)
	}
	t.Cleanup(func() {
		for _, p := range w.etcd.processes {
			p.server.Stop()
		}
		for _, operator := range w.operators {
			operator.Etcd.Drop(demo.String())
		}
	})
	return w
}

// staleReader is the client of an operator whose cache is often stale.
type staleReader struct {
	client.Client
	live   client.Reader
	random *rand.Rand
	seen   map[string]client.Object
}

// Get implements client.Reader.
func (s *staleReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	name := fmt.Sprintf("%T %s", into, key)
	if old := s.seen[name]; old != nil && s.random.Intn(3) == 0 {
		return s.Scheme().Convert(old.DeepCopyObject(), into, nil)
	}
	err := s.live.Get(ctx, key, into)
	delete(s.seen, name)
	if err == nil {
		s.seen[name], _ = into.DeepCopyObject().(client.Object)
	}
	return err
}

// intercepted returns the client of an operator, which records its writes, and may reject or delay them.
func (w *simulation) intercepted(operator string) client.WithWatch {
	write := func(verb string, object client.Object, do func() error) error {
		if pause := w.pause; pause != nil && verb != "status" {
			w.pause = nil
			pause()
		}
		if w.refused != nil {
			if err := w.refused(verb, object); err != nil {
				return err
			}
		}
		err := do()
		if err == nil {
			w.record(true, fmt.Sprintf("%s: %s %T %s", operator, verb, object, object.GetName()))
		}
		return err
	}
	return interceptor.NewClient(w.raw, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			w.uids++
			object.SetUID(types.UID(fmt.Sprint(w.uids)))
			object.SetCreationTimestamp(metav1.NewTime(w.clock.Now()))
			if _, backup := object.(*v1alpha1.ApiServerBackup); backup {
				object.SetCreationTimestamp(metav1.Now()) // the fake client uses the real clock for deletion timestamps
			}
			return write("create", object, func() error { return c.Create(ctx, object, options...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			return write("update", object, func() error { return c.Update(ctx, object, options...) })
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption,
		) error {
			return write("patch", object, func() error { return c.Patch(ctx, object, patch, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			return write("delete", object, func() error { return w.delete(ctx, object, options) })
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, _ string, object client.Object, patch client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			return write("status", object, func() error { return c.Status().Patch(ctx, object, patch, options...) })
		},
	})
}

// delete deletes an object with the preconditions on its UID and its version, which the fake client ignores.
func (w *simulation) delete(ctx context.Context, object client.Object, options []client.DeleteOption) error {
	all := &client.DeleteOptions{}
	all.ApplyOptions(options)
	if all.Preconditions != nil && all.Preconditions.UID != nil {
		current, _ := object.DeepCopyObject().(client.Object)
		if err := w.raw.Get(ctx, client.ObjectKeyFromObject(object), current); err != nil {
			return err
		}
		version := all.Preconditions.ResourceVersion
		if current.GetUID() != *all.Preconditions.UID || version != nil && current.GetResourceVersion() != *version {
			return apierrors.NewConflict(schema.GroupResource{}, object.GetName(), errors.New("another UID or version"))
		}
	}
	if err := w.raw.Delete(ctx, object); err != nil {
		return err
	}
	w.kill()
	return nil
}

// kill ends the processes of pods that no longer exist.
func (w *simulation) kill() {
	var pods corev1.PodList
	w.must(w.raw.List(w.t.Context(), &pods))
	w.etcd.mutex.Lock()
	defer w.etcd.mutex.Unlock()
	for uid, p := range w.etcd.processes {
		if !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return string(pod.UID) == uid }) {
			p.frozen = true
			delete(w.etcd.processes, uid)
			if w.interleavings > 0 { // closing its connection would continue the paused operator
				w.ended = append(w.ended, p.server)
				continue
			}
			go p.server.Stop()
		}
	}
}

// kubelets starts the processes of pods whose claims and Secrets exist, and reports the status of the pods.
func (w *simulation) kubelets() {
	var pods corev1.PodList
	w.must(w.raw.List(w.t.Context(), &pods))
	for i := range pods.Items {
		pod := &pods.Items[i]
		p := w.etcd.processes[string(pod.UID)]
		if p == nil && observed.RunsMember(pod) {
			p = w.start(pod)
		}
		w.etcd.mutex.Lock()
		ready := !observed.RunsMember(pod)
		if p != nil {
			m := w.etcd.member(p)
			ready = m != nil && !m.learner && !p.frozen && w.etcd.quorum()
		}
		w.etcd.mutex.Unlock()
		w.report(pod, ready)
	}
}

// report writes the status of a pod if it has changed.
func (w *simulation) report(pod *corev1.Pod, ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	if !observed.RunsMember(pod) && pod.Status.PodIP == "" {
		pod.Status.PodIP = "127.0.0.1"
	}
	if pod.Status.PodIP == "" || len(pod.Status.Conditions) == 1 && pod.Status.Conditions[0].Status == status {
		return
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	if err := w.raw.Status().Update(w.t.Context(), pod); !apierrors.IsConflict(err) {
		w.must(client.IgnoreNotFound(err))
	}
}

// start starts the process of a member's pod. It returns nil while an object that the pod mounts is missing.
func (w *simulation) start(pod *corev1.Pod) *process {
	claim := &corev1.PersistentVolumeClaim{}
	if err := w.raw.Get(w.t.Context(), client.ObjectKeyFromObject(pod), claim); err != nil {
		return nil
	}
	for _, source := range pod.Spec.Volumes[0].Projected.Sources {
		if err := w.raw.Get(
			w.t.Context(), client.ObjectKey{Namespace: "ns", Name: source.Secret.Name}, &corev1.Secret{},
		); err != nil {
			return nil
		}
	}
	server := w.secret("demo-etcd-server")
	certificate, err := tls.X509KeyPair(server.Data[corev1.TLSCertKey], server.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil // the Secret was edited
	}
	w.etcd.mutex.Lock()
	defer w.etcd.mutex.Unlock()
	if w.etcd.disks[string(claim.UID)] == nil {
		w.etcd.disks[string(claim.UID)] = &disk{}
	}
	p := &process{
		etcd: w.etcd, pod: pod.Name, run: string(pod.UID), disk: w.etcd.disks[string(claim.UID)],
		initial: initialMembers(pod),
	}
	w.addresses++
	address := fmt.Sprintf("%s%d", w.network, 1+w.addresses%250)
	if p.serve(address, certificate, w.secret("demo-etcd-client-ca").Data[corev1.TLSCertKey]) != nil {
		return nil
	}
	w.etcd.processes[string(pod.UID)] = p
	pod.Status.PodIP = address
	return p
}

// initialMembers returns the initial members in the arguments of a pod, or nil if its member joins an existing etcd.
func initialMembers(pod *corev1.Pod) (names []string) {
	args := pod.Spec.Containers[0].Args
	if slices.Contains(args, "--etcd-initial-cluster-state=existing") {
		return nil
	}
	for _, arg := range args {
		list, ok := strings.CutPrefix(arg, "--etcd-initial-cluster=")
		for entry := range strings.SplitSeq(list, ",") {
			if name, _, _ := strings.Cut(entry, "="); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// record adds a step to the history.
func (w *simulation) record(operator bool, action string) {
	s := invariants.State{Voters: map[string]invariants.Voter{}, Signers: map[string]invariants.Signer{}}
	object := &v1alpha1.ApiServerCluster{}
	err := w.raw.Get(w.t.Context(), demo, object)
	s.Stopping = err != nil || object.DeletionTimestamp != nil || object.Hibernated() || !object.Bootstrapped()
	w.etcd.mutex.Lock()
	for _, m := range w.etcd.members {
		if m.learner {
			s.Learners = append(s.Learners, m.name)
			continue
		}
		err := w.raw.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: m.name}, &corev1.PersistentVolumeClaim{})
		s.Voters[m.name] = invariants.Voter{Healthy: w.etcd.running(m) != nil, Claim: err == nil}
	}
	s.Acknowledged, s.Readable = w.etcd.committed, w.etcd.readable()
	w.etcd.mutex.Unlock()
	var secrets corev1.SecretList
	w.must(w.raw.List(w.t.Context(), &secrets))
	for i := range secrets.Items {
		if signer, ok := signerOf(&secrets.Items[i]); ok {
			s.Signers[secrets.Items[i].Name] = signer
		}
	}
	w.history = append(w.history, invariants.Step{Operator: operator, Action: action, After: s})
}

// signerOf returns the signer in the Secret of an authority or of service-account keys.
func signerOf(secret *corev1.Secret) (signer invariants.Signer, ok bool) {
	data := secret.Data["service-account.pub"]
	if strings.HasSuffix(secret.Name, "-ca") {
		data = secret.Data[corev1.TLSCertKey]
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		signer.Trusted = append(signer.Trusted, string(block.Bytes))
	}
	if len(signer.Trusted) > 0 {
		signer.Current = signer.Trusted[0]
	}
	return signer, len(signer.Trusted) > 0
}

// operate runs one reconciliation of an operator, then the kubelets and etcd.
func (w *simulation) operate(n int) {
	w.reconcileBy(n)
	w.interleavingMutex.Lock() // a request of the operator may time out before the interleaving that delays it ends
	defer w.interleavingMutex.Unlock()
	w.proceed()
}

func (w *simulation) reconcileBy(n int) {
	before := w.acting
	w.acting = n
	_, _ = w.operators[n].Reconcile(w.t.Context(), ctrl.Request{NamespacedName: demo}) // errors are in the status
	w.acting = before
}

func (w *simulation) proceed() {
	w.results = nil
	w.kubelets()
	w.etcd.mutex.Lock()
	w.etcd.tick()
	w.etcd.mutex.Unlock()
	w.kubelets()
	w.clock.Step(500 * time.Millisecond)
	w.save()
}

// save copies the valid Secrets to the user's copies.
func (w *simulation) save() {
	var secrets corev1.SecretList
	w.must(w.raw.List(w.t.Context(), &secrets))
	for i := range secrets.Items {
		secret := &secrets.Items[i]
		edited := slices.ContainsFunc([]string{
			corev1.TLSCertKey, corev1.TLSPrivateKeyKey, "service-account.key",
		}, func(key string) bool {
			return bytes.Equal(secret.Data[key], invalidData)
		})
		if !edited {
			w.backup[secret.Name] = secret.DeepCopy()
		}
	}
}

var invalidData = []byte("invalid")

// settle ends all disturbances, restores lost Secrets as a user would, and waits until the cluster matches its spec.
func (w *simulation) settle() {
	w.refused, w.pause, w.etcd.before = nil, nil, nil
	for _, p := range w.etcd.processes {
		p.frozen = false
	}
	for range 600 {
		w.operate(0)
		object := w.get()
		degraded := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.Degraded)
		if degraded != nil && degraded.Status == metav1.ConditionTrue &&
			(degraded.Reason == "SecretLost" || strings.Contains(degraded.Message, "restore it")) {
			w.restore()
		}
		if meta.IsStatusConditionFalse(object.Status.Conditions, v1alpha1.Progressing) &&
			meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.Available) && w.matches(object) {
			return
		}
		w.clock.Step(5 * time.Second)
	}
	var conditions strings.Builder
	for _, c := range w.get().Status.Conditions {
		fmt.Fprintf(&conditions, "\n%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	w.t.Fatalf("the cluster does not settle:%s\n%s", conditions.String(), w.trace(40))
}

func (w *simulation) matches(object *v1alpha1.ApiServerCluster) bool {
	voters, healthy := w.etcd.count()
	return voters == object.VoterCount() && healthy == voters && len(w.etcd.members) == voters
}

// restore applies the user's copies of Secrets that are missing or unusable.
func (w *simulation) restore() {
	for name, saved := range w.backup {
		if !strings.HasSuffix(name, "-ca") && !strings.HasSuffix(name, "service-account") {
			continue
		}
		current := &corev1.Secret{}
		err := w.raw.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, current)
		switch {
		case apierrors.IsNotFound(err):
			copied := saved.DeepCopy()
			copied.ResourceVersion = ""
			w.must(w.raw.Create(w.t.Context(), copied))
		default:
			current.Data = saved.DeepCopy().Data
			w.must(w.raw.Update(w.t.Context(), current))
		}
	}
	w.record(false, "restore Secrets")
}

// trace returns the last n steps of the history.
func (w *simulation) trace(n int) string {
	var out strings.Builder
	for i := max(0, len(w.history)-n); i < len(w.history); i++ {
		voters, healthy := len(w.history[i].After.Voters), 0
		for _, voter := range w.history[i].After.Voters {
			if voter.Healthy {
				healthy++
			}
		}
		fmt.Fprintf(&out, "%d %s (%d/%d voters)\n", i, w.history[i].Action, healthy, voters)
	}
	return out.String()
}

// check fails the test if the history violates an invariant.
func (w *simulation) check() {
	w.t.Helper()
	if errs := invariants.Check(w.history); len(errs) > 0 {
		w.t.Fatalf("%v\n%s", errors.Join(errs...), w.trace(60))
	}
}

// launch creates the cluster and waits until it matches its spec.
func (w *simulation) launch(replicas int32) {
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
	object.Spec.Replicas = ptr.To(replicas)
	w.must(w.raw.Create(w.t.Context(), object))
	w.settle()
	w.check()
}
