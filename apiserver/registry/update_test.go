package registry_test

import (
	"context"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
)

// conditional is a strategy that requires the resource version of an update.
type conditional struct{ plain }

func (conditional) AllowUnconditionalUpdate(context.Context) bool { return false }

// TestPreconditionsOfAnUpdate replaces an object under conditions on its version and its UID.
func TestPreconditionsOfAnUpdate(t *testing.T) {
	t.Parallel()
	definition := configMaps()
	endpoint := definition.Versions[0].Endpoints[""]
	endpoint.Update = conditional{endpoint.Update.(plain)}
	w := openWorld(t, etcdtest.Client(t), definition)
	w.put(t, "x")
	target := named(w.target, "x")
	for _, test := range []struct {
		name    string
		edit    func(*corev1.ConfigMap)
		dryRun  bool
		outcome registry.Outcome
		refused func(error) bool
	}{
		{name: "no version", edit: func(o *corev1.ConfigMap) { o.ResourceVersion = "" }, refused: apierrors.IsInvalid},
		{name: "old version", edit: func(o *corev1.ConfigMap) { o.ResourceVersion = "1" }, refused: apierrors.IsConflict},
		{
			name: "no number", edit: func(o *corev1.ConfigMap) { o.ResourceVersion = "x" }, refused: func(err error) bool {
				return err != nil
			},
		},
		{name: "another UID", edit: func(o *corev1.ConfigMap) { o.UID = "other" }, refused: apierrors.IsConflict},
		{
			name: "another UID, dry run", edit: func(o *corev1.ConfigMap) { o.UID = "other" }, dryRun: true,
			refused: apierrors.IsConflict,
		},
		{name: "no change", edit: func(*corev1.ConfigMap) {}, outcome: registry.Unchanged},
		{name: "dry run", edit: func(o *corev1.ConfigMap) { o.Data["n"] = "2" }, dryRun: true, outcome: registry.Updated},
		{name: "change", edit: func(o *corev1.ConfigMap) { o.Data["n"] = "2" }, outcome: registry.Updated},
		{name: "self link", edit: func(o *corev1.ConfigMap) { o.SelfLink = "/x" }, outcome: registry.Unchanged},
	} {
		stored, err := w.registry.ReadStored(t.Context(), target)
		if err != nil {
			t.Fatal(err)
		}
		object := stored.DeepCopyObject().(*corev1.ConfigMap)
		test.edit(object)
		result, err := w.registry.Update(t.Context(), target, change.Replacement{Object: object},
			registry.WriteOptions{DryRun: test.dryRun})
		if test.refused != nil {
			if !test.refused(err) {
				t.Errorf("%s: got the error %v", test.name, err)
			}
			continue
		}
		if err != nil || result.Outcome != test.outcome || result.DryRun != test.dryRun {
			t.Errorf("%s: got %+v, %v, want outcome %d", test.name, result, err, test.outcome)
		}
	}
}

// TestComparisonsAreMeasured updates an object with the managers of its fields as before and with others. As with
// kube-apiserver, a metric has the time of the comparison with the stored object.
func TestComparisonsAreMeasured(t *testing.T) {
	t.Parallel()
	registerer := prometheus.NewRegistry()
	w := openConfigured(t, etcdtest.Client(t), configMaps(), func(o *registry.Options) {
		o.Metrics = registry.NewMetrics(registerer)
	})
	w.put(t, "x")
	managed := []metav1.ManagedFieldsEntry{{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate}}
	for _, step := range []struct {
		value   string
		managed []metav1.ManagedFieldsEntry
		outcome registry.Outcome
		path    string
	}{
		{"1", managed, registry.Updated, "unequal_objects_fast"},
		{"1", managed, registry.Unchanged, "equal_objects"},
		{"2", managed, registry.Updated, "unequal_objects_slow"},
	} {
		object := newConfigMap("x")
		object.Data, object.ManagedFields = map[string]string{"n": step.value}, step.managed
		result, err := w.registry.Update(t.Context(), named(w.target, "x"),
			change.Replacement{Object: object}, registry.WriteOptions{})
		if err != nil || result.Outcome != step.outcome {
			t.Fatalf("%s: got %+v, %v", step.path, result, err)
		}
		if !slices.Contains(measuredPaths(t, registerer), step.path) {
			t.Errorf("%s was not measured", step.path)
		}
	}
}

// measuredPaths returns the paths of comparisons that were taken.
func measuredPaths(t *testing.T, gatherer prometheus.Gatherer) (paths []string) {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetHistogram().GetSampleCount() > 0 {
				paths = append(paths, metric.GetLabel()[0].GetValue())
			}
		}
	}
	return paths
}

// TestScale updates the replicas of a replication controller through its subresource scale. Admission sees the Scale.
func TestScale(t *testing.T) {
	t.Parallel()
	r := &recorder{}
	s := builtintest.NewServer(t, builtin.Options{}, r.chain())
	controller := targetOf(t, s, "replicationcontrollers", "", "default", "rc")
	body := []byte(`{"apiVersion":"v1","kind":"ReplicationController","metadata":{"name":"rc"},"spec":{"replicas":1,
		"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	object, _, _, err := controller.Version.Codec.Decode(body, "application/json", "")
	if err != nil {
		t.Fatal(err)
	}
	object.(metav1.Object).SetNamespace("default")
	if _, err := s.Registry.Create(t.Context(), controller, object, registry.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.calls = nil
	scale := targetOf(t, s, "replicationcontrollers", "scale", "default", "rc")
	patch := change.Patch{Type: types.MergePatchType, Data: []byte(`{"spec":{"replicas":5}}`)}
	ctx := genericrequest.WithRequestInfo(t.Context(), &genericrequest.RequestInfo{
		IsResourceRequest: true, APIVersion: "v1", Resource: "replicationcontrollers", Subresource: "scale",
	})
	result, err := s.Registry.Patch(ctx, scale, patch, registry.WriteOptions{})
	if err != nil || result.Outcome != registry.Updated {
		t.Fatalf("got %+v, %v", result, err)
	}
	if len(r.calls) < 2 || r.calls[0] != "admit UPDATE scale" {
		t.Errorf("admission was called for %v", r.calls)
	}
	for fails, refused := range map[string]bool{"admit": true, "validate": true, "": false} {
		r.fails = fails
		if _, err := s.Registry.Patch(ctx, scale, patch, registry.WriteOptions{}); (err != nil) != refused {
			t.Errorf("if admission fails to %q: %v", fails, err)
		}
	}
	missing := scale
	missing.Name = "missing"
	if _, err := s.Registry.Patch(ctx, missing, patch, registry.WriteOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing object: %v", err)
	}
}

// TestResponsesAreCached offers the response of a write to the watch cache, which later readers get.
func TestResponsesAreCached(t *testing.T) {
	t.Parallel()
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.list(t, registry.ListOptions{})
	format := encoding.Format{Resource: w.target.Match, Media: codec.JSON}
	for _, dryRun := range []bool{true, false} {
		result, err := w.registry.Create(t.Context(), w.target, newConfigMap("x"), registry.WriteOptions{DryRun: dryRun})
		if err != nil {
			t.Fatal(err)
		}
		w.registry.Offer(w.target, result, format, []byte(`{"offered":true}`))
		if object, err := w.registry.DecodeResult(t.Context(), w.target, result); err != nil ||
			object.(*corev1.ConfigMap).Name != "x" {
			t.Errorf("got %v, %v", object, err)
		}
	}
	entry, err := w.registry.Get(t.Context(), named(w.target, "x"), "")
	if err != nil {
		t.Fatal(err)
	}
	if encoded, err := entry.Encoded(t.Context(), format); err != nil || string(encoded.Bytes()) != `{"offered":true}` {
		t.Errorf("got %s, %v", encoded.Bytes(), err)
	}
	if objects, mean := w.registry.Size(w.target.Match); objects != 1 || mean == 0 {
		t.Errorf("the collection has %d objects of %d bytes", objects, mean)
	}
}
