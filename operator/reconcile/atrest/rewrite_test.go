package atrest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// storedSecrets serves Secrets in pages of two, and records the patches. A page takes longer than a reconciliation
// spends on rewriting.
type storedSecrets struct {
	count   int
	clock   *clocktesting.FakeClock
	refused string // name of a Secret that cannot be patched, or ""
	patched []string
}

// ServeHTTP implements http.Handler.
func (s *storedSecrets) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodPatch {
		name := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
		if name == s.refused {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,`+
				`"message":"denied by a webhook"}`)
			return
		}
		s.patched = append(s.patched, name)
		fmt.Fprint(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1"}`)
		return
	}
	s.clock.Step(rewriteTime + time.Second)
	from, _ := strconv.Atoi(request.URL.Query().Get("continue"))
	var items []string
	for i := from; i < min(from+2, s.count); i++ {
		items = append(items, fmt.Sprintf(`{"metadata":{"namespace":"ns","name":"s%d"}}`, i))
	}
	next := ""
	if from+2 < s.count {
		next = strconv.Itoa(from + 2)
	}
	fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"continue":%q},`+
		`"items":[%s]}`, next, strings.Join(items, ","))
}

// TestRewriteContinues checks that stored objects are rewritten in several reconciliations, that another operator
// continues at the stored position, also after an object could not be patched, and that the key is dropped only then.
func TestRewriteContinues(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, encrypted("secrets")))
	r := newReplica(t, "127.201.17.3")
	clock := clocktesting.NewFakeClock(ownedtest.Now())
	stored := &storedSecrets{count: 6, clock: clock}
	r.stored = stored
	reconcile := func() (Result, error) {
		t.Helper()
		keys, err := ensure(h, clock.Now(), r.pod)
		h.Must(err)
		r.configuration = keys.Configuration
		return Steps{Objects: h.Objects, Clock: clock}.Plan(t.Context(), Input{
			State: &observed.State{Cluster: h.Cluster(), Pods: []corev1.Pod{r.pod}}, Credentials: r.credentials,
			Encryption: keys.State, Configuration: keys.Configuration, Now: clock.Now(),
		})
	}
	for range 2 { // stages TrustBoth and Reissue
		_, err := reconcile()
		h.Must(err)
	}
	expect := func(step string, result Result, message string, patched ...string) {
		t.Helper()
		stage, _ := stages.Encryption.Stage(h.Cluster())
		if stage != rotation.Reissue || !result.Waiting || len(result.Rotations) != 1 ||
			result.Rotations[0].Message != message {
			t.Errorf("%s: stage %s, %+v, want %q", step, stage, result, message)
		}
		if !slices.Equal(stored.patched, patched) {
			t.Errorf("%s: patched %q, want %q", step, stored.patched, patched)
		}
	}
	result, err := reconcile()
	h.Must(err)
	expect("first page", result, "Rewriting stored objects: 2 so far", "s0", "s1")

	stored.refused = "s3"
	result, err = reconcile()
	if err == nil || !strings.Contains(err.Error(), "ns/s3") || !strings.Contains(err.Error(), "denied by a webhook") {
		t.Errorf("a refused patch: %v", err)
	}
	expect("a patch is refused", result, "", "s0", "s1", "s2")

	stored.refused = ""
	result, err = reconcile()
	h.Must(err)
	expect("second page", result, "Rewriting stored objects: 4 so far", "s0", "s1", "s2", "s2", "s3")

	outdated := h.Cluster()
	_, err = reconcile()
	h.Must(err)
	if stage, _ := stages.Encryption.Stage(h.Cluster()); stage != rotation.DropOld {
		t.Errorf("stage %s after all objects are rewritten", stage)
	}
	if want := []string{"s0", "s1", "s2", "s2", "s3", "s4", "s5"}; !slices.Equal(stored.patched, want) {
		t.Errorf("patched %q, want %q", stored.patched, want)
	}
	// An operator that has not seen the last stage must not store its progress.
	keys, err := ensure(h, clock.Now(), r.pod)
	h.Must(err)
	_, err = Steps{Objects: h.Objects, Clock: clock}.rewrite(t.Context(), Input{
		State: &observed.State{Cluster: outdated, Pods: []corev1.Pod{r.pod}}, Credentials: r.credentials,
		Encryption: keys.State, Now: clock.Now(),
	})
	if stage, _ := stages.Encryption.Stage(h.Cluster()); !owned.Stale(err) || stage != rotation.DropOld ||
		stages.Encryption.Current(h.Cluster()).Rewrite != nil {
		t.Errorf("an outdated operator: stage %s, %v", stage, err)
	}
}

// TestResumed checks that a change whose stage is lost, for example with the status of the cluster, begins its stages
// again without another key, and is completed.
func TestResumed(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(external, encrypted("secrets")))
	r, now := newReplica(t, "127.201.17.4"), ownedtest.Now()
	var keys Keys
	reconcile := func() rotation.Stage {
		t.Helper()
		now = now.Add(time.Hour)
		var err error
		keys, err = ensure(h, now, r.pod)
		h.Must(err)
		r.configuration = keys.Configuration
		_, err = Steps{Objects: h.Objects, Clock: clocktesting.NewFakeClock(now)}.Plan(t.Context(), Input{
			State: &observed.State{Cluster: h.Cluster(), Pods: []corev1.Pod{r.pod}}, Credentials: r.credentials,
			Encryption: keys.State, Configuration: keys.Configuration, Now: now,
		})
		h.Must(err)
		stage, _ := stages.Encryption.Stage(h.Cluster())
		return stage
	}
	for range 3 { // TrustBoth, Reissue, and the keys of Reissue
		if reconcile() == rotation.DropOld {
			break
		}
	}
	key := keys.State.Current.Provider.Name
	if keys.State.Previous == nil || key == "" {
		t.Fatalf("the keys are not those of stage Reissue: %+v", keys.State)
	}
	h.Must(stages.Enter(t.Context(), h.Objects, h.Cluster(), stages.Encryption, rotation.Decision{}, now))
	h.Events()
	var entered []rotation.Stage
	for range 8 {
		if stage := reconcile(); len(entered) == 0 || entered[len(entered)-1] != stage {
			entered = append(entered, stage)
		}
	}
	want := []rotation.Stage{rotation.TrustBoth, rotation.Reissue, rotation.DropOld, rotation.None}
	if !slices.Equal(entered, want) {
		t.Errorf("stages %q, want %q", entered, want)
	}
	if got := strings.Join(h.Events(), "\n"); !strings.Contains(got, "resuming a replacement that is not in the status") {
		t.Errorf("events %s", got)
	}
	if keys.State.Changing() || keys.State.Current.Provider.Name != key {
		t.Errorf("keys %+v, want %s alone", keys.State, key)
	}
}

// TestUnreadableReplica checks that no stage is entered while the operator has no credentials with which it could read
// the configuration of replicas.
func TestUnreadableReplica(t *testing.T) {
	h, keys := beginRotation(t)
	_, err := Steps{Objects: h.Objects}.Plan(t.Context(), Input{
		State: &observed.State{Cluster: h.Cluster()}, Credentials: credentials.Set{}, Encryption: keys.State,
		Configuration: keys.Configuration, Now: ownedtest.Now(),
	})
	if stage, _ := stages.Encryption.Stage(h.Cluster()); err == nil || stage != rotation.TrustBoth {
		t.Errorf("stage %s, %v", stage, err)
	}
}
