package configuration

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// policy returns a ConfigMap with an audit policy of one level.
func policy(level string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "audit"}, Data: map[string]string{
		"config.yaml": "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: " + level + "}]\n",
	}}
}

// audited is a change of a cluster: its audit policy is in ConfigMap audit.
func audited(c *v1alpha1.ApiServerCluster) {
	c.Spec.Audit = &v1alpha1.Audit{
		ConfigurationFiles: v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: "audit"}},
	}
}

// inSecret is a change of a cluster: its authentication configuration is in Secret tokens.
func inSecret(c *v1alpha1.ApiServerCluster) {
	c.Spec.Authentication = &v1alpha1.ConfigurationFiles{SecretRef: &corev1.LocalObjectReference{Name: "tokens"}}
}

// patched is a change of a cluster: it patches its pods.
func patched(c *v1alpha1.ApiServerCluster) {
	c.Spec.Patches.Pod = &runtime.RawExtension{Raw: []byte(`{"metadata":{"annotations":{"example.com/team":"a"}}}`)}
}

// ensure executes Ensure with new results of validations.
func ensure(h *ownedtest.Host, checks *Checks, pods ...corev1.Pod) (Result, error) {
	state := &observed.State{Cluster: h.Cluster(), Image: "quorate:1", Pods: pods}
	return Steps{Objects: h.Objects, Checks: checks}.Ensure(h.Context(), state, desired.Configuration{})
}

// TestFiles follows the audit policy of a cluster: valid files are stored, invalid ones leave the last valid ones in
// use, and without valid ones the spec is invalid.
func TestFiles(t *testing.T) {
	h, checks := ownedtest.NewHost(t, ownedtest.NewCluster(audited)), NewChecks()
	for _, test := range []struct {
		level             string // "": the ConfigMap does not exist
		rejected, invalid string
		events            int
	}{
		{"", "", "ConfigMap audit does not exist", 0},
		{"nonsense", "", "audit", 0},
		{"None", "", "", 0},
		{"nonsense", "audit", "", 0},
		{"Metadata", "", "", 1},
		{"", "ConfigMap audit does not exist", "", 0},
	} {
		_ = h.API.Delete(t.Context(), policy(""))
		if test.level != "" {
			h.CreateAll(policy(test.level))
		}
		result, err := ensure(h, checks)
		h.Must(err)
		for got, want := range map[error]string{result.Rejected: test.rejected, result.Invalid: test.invalid} {
			if got == nil && (test.rejected == "") && (test.invalid == "") {
				continue
			}
			if got != nil && !strings.Contains(got.Error(), want) {
				t.Errorf("level %q: %v, want %q", test.level, got, want)
			}
		}
		if (result.Rejected != nil) != (test.rejected != "") || (result.Invalid != nil) != (test.invalid != "") {
			t.Errorf("level %q: %+v", test.level, result)
		}
		if stored := h.Exists("demo-configuration", &corev1.Secret{}); stored == (test.invalid != "") {
			t.Errorf("level %q: stored %t", test.level, stored)
		}
		if events := h.Events(); len(events) > 1 {
			t.Errorf("level %q: events %q", test.level, events)
		}
	}
}

// TestUnusedFiles checks that the Secret of former static files is deleted once no pod mounts it.
func TestUnusedFiles(t *testing.T) {
	h, checks := ownedtest.NewHost(t, ownedtest.NewCluster(audited), policy("None")), NewChecks()
	_, err := ensure(h, checks)
	h.Must(err)
	static := slices.DeleteFunc(h.Names(), func(name string) bool {
		return !strings.HasPrefix(name, "Secret demo-configuration-")
	})
	h.Delete("audit", &corev1.ConfigMap{})
	h.CreateAll(policy("Request"))
	if len(static) != 1 {
		t.Fatalf("static files %v", static)
	}
	name := strings.TrimPrefix(static[0], "Secret ")
	mounting := corev1.Pod{
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "configuration", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: []corev1.KeyToPath{{Key: "x", Path: "x"}},
			}}}},
		}}}},
	}
	for _, pods := range [][]corev1.Pod{{mounting}, nil} {
		_, err := ensure(h, checks, pods...)
		h.Must(err)
		if exists := h.Exists(name, &corev1.Secret{}); exists != (pods != nil) {
			t.Errorf("%d pods: the former Secret exists: %t", len(pods), exists)
		}
	}
}

// TestSecretFiles checks that files are read from Secrets as well.
func TestSecretFiles(t *testing.T) {
	content := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n"
	h := ownedtest.NewHost(t, ownedtest.NewCluster(inSecret))
	result, err := ensure(h, NewChecks())
	h.Must(err)
	if result.Invalid == nil || !strings.Contains(result.Invalid.Error(), "Secret tokens does not exist") {
		t.Errorf("without the Secret: %+v", result)
	}
	h.CreateAll(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tokens"},
		Data:       map[string][]byte{"config.yaml": []byte(content)},
	})
	if result, err = ensure(h, NewChecks()); err != nil || result.Invalid != nil ||
		string(result.Files["authentication.config.yaml"]) != content {
		t.Errorf("%+v, %v", result, err)
	}
}

// TestPodPatch checks which rejections of a pod with the patch make the spec invalid. An exceeded quota and an
// unavailable API server are no errors of the patch. Only an accepted pod is not sent again: a rejection may end
// without a change of the spec, and an outage says nothing.
func TestPodPatch(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for name, test := range map[string]struct {
		err      error
		invalid  bool
		requests int
	}{
		"accepted": {nil, false, 1},
		"rejected": {apierrors.NewForbidden(resource, "demo-0", errors.New("priority class high does not exist")), true, 2},
		"invalid":  {apierrors.NewBadRequest("unknown field"), true, 2},
		"quota":    {apierrors.NewForbidden(resource, "demo-0", errors.New("exceeded quota: pods")), false, 1},
		"outage":   {ownedtest.ErrUnavailable, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			h, checks, requests := ownedtest.NewHost(t, ownedtest.NewCluster(patched)), NewChecks(), 0
			h.Refuse = func(string) error {
				requests++
				return test.err
			}
			for range 2 {
				if result, err := ensure(h, checks); err != nil || (result.Invalid != nil) != test.invalid {
					t.Errorf("%+v, %v", result, err)
				}
			}
			if len(h.Names()) != 0 || requests != test.requests {
				t.Errorf("%d requests, want %d; they have created %v", requests, test.requests, h.Names())
			}
		})
	}
	h := ownedtest.NewHost(t, ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Patches.Pod = &runtime.RawExtension{Raw: []byte(`{"spec":"text"}`)}
	}))
	if result, err := ensure(h, NewChecks()); err != nil || result.Invalid == nil {
		t.Errorf("a patch that is no JSON: %+v, %v", result, err)
	}
}

// TestSpec checks that a validation is repeated only if the spec has changed, and that results are forgotten with the
// cluster.
func TestSpec(t *testing.T) {
	checks, state := NewChecks(), &observed.State{
		Cluster: ownedtest.NewCluster(), Claims: []corev1.PersistentVolumeClaim{{}},
	}
	if err := checks.Spec(state); err != nil {
		t.Errorf("a valid spec: %v", err)
	}
	state.Cluster.Spec.ExtraArgs = map[string]string{"nonsense": "true"}
	err := checks.Spec(state)
	if err == nil || !errors.Is(checks.Spec(state), err) {
		t.Errorf("an unknown flag: %v", err)
	}
	key := client.ObjectKeyFromObject(state.Cluster)
	checks.Forget(key)
	if len(checks.results[key]) != 0 {
		t.Errorf("results of a deleted cluster: %v", checks.results[key])
	}
}

// TestVersions checks that the version is read again once a pod was replaced.
func TestVersions(t *testing.T) {
	checks, state := NewChecks(), &observed.State{
		Cluster: ownedtest.NewCluster(), Pods: []corev1.Pod{
			{ObjectMeta: metav1.ObjectMeta{UID: "b"}}, {ObjectMeta: metav1.ObjectMeta{UID: "a"}},
		},
	}
	if checks.VersionKnown(state) {
		t.Error("the version is known before it was read")
	}
	checks.VersionRead(state)
	state.Cluster.Status.Version = "v1.36.0"
	if !checks.VersionKnown(state) {
		t.Error("the version is unknown after it was read")
	}
	state.Pods[0].UID = "c"
	if checks.VersionKnown(state) {
		t.Error("the version of a replaced pod is known")
	}
}

// TestFailedRequests lets each request fail with which files are stored.
func TestFailedRequests(t *testing.T) {
	tokens := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "tokens"}, Data: map[string][]byte{
		"config.yaml": []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt: []\n"),
	}}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		former := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "former", Labels: desired.Labels(ownedtest.NewCluster()),
		}}
		former.Labels[desired.ConfigurationLabel] = ""
		return ownedtest.NewHost(t, ownedtest.NewCluster(audited, inSecret), policy("None"), tokens.DeepCopy(), former)
	}, func(h *ownedtest.Host) error {
		_, err := ensure(h, NewChecks())
		return err
	})
}
