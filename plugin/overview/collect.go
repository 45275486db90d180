package overview

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/plugin/replica"
)

// Collect reads everything except samples. It returns an error only if the cluster cannot be read; other failures are
// in Notes.
func Collect(ctx context.Context, reader client.Reader, key client.ObjectKey, now time.Time) (Input, error) {
	in := Input{Cluster: &v1alpha1.ApiServerCluster{}, Now: now}
	if err := reader.Get(ctx, key, in.Cluster); err != nil {
		return in, err
	}
	namespace := client.InNamespace(key.Namespace)
	own := client.MatchingLabels{desired.ClusterLabel: key.Name}
	list := func(what string, into client.ObjectList, options ...client.ListOption) {
		if err := reader.List(ctx, into, options...); err != nil {
			in.Notes = append(in.Notes, fmt.Sprintf("%s cannot be read: %v", what, err))
		}
	}
	var (
		pods    corev1.PodList
		secrets corev1.SecretList
		events  corev1.EventList
	)
	list("Pods", &pods, namespace, own)
	list("Secrets", &secrets, namespace, own)
	list("Events", &events, namespace)
	in.Pods, in.Secrets, in.Events = pods.Items, secrets.Items, events.Items
	note := func(what string, err error) {
		if err != nil {
			in.BackupsUnknown = true
			in.Notes = append(in.Notes, fmt.Sprintf("%s cannot be read: %v", what, err))
		}
	}
	note("Backups", in.collectBackups(ctx, reader, key))
	note("Backup schedules", in.collectSchedules(ctx, reader, key))
	return in, nil
}

// CollectBackups reads a cluster, its backups and schedules.
func CollectBackups(ctx context.Context, reader client.Reader, key client.ObjectKey) (Input, error) {
	in := Input{Cluster: &v1alpha1.ApiServerCluster{}}
	if err := reader.Get(ctx, key, in.Cluster); err != nil {
		return in, err
	}
	return in, errors.Join(in.collectBackups(ctx, reader, key), in.collectSchedules(ctx, reader, key))
}

func (in *Input) collectBackups(ctx context.Context, reader client.Reader, key client.ObjectKey) error {
	var list v1alpha1.ApiServerBackupList
	if err := reader.List(ctx, &list, client.InNamespace(key.Namespace)); err != nil {
		return err
	}
	for _, b := range list.Items {
		if b.Spec.ClusterName == key.Name {
			in.Backups = append(in.Backups, b)
		}
	}
	return nil
}

func (in *Input) collectSchedules(ctx context.Context, reader client.Reader, key client.ObjectKey) error {
	var list v1alpha1.ApiServerBackupScheduleList
	if err := reader.List(ctx, &list, client.InNamespace(key.Namespace)); err != nil {
		return err
	}
	for _, s := range list.Items {
		if s.Spec.Template.ClusterName == key.Name {
			in.Schedules = append(in.Schedules, s)
		}
	}
	return nil
}

// Sample reads the metrics of all pods of the input concurrently. Failures are in Notes.
func (in *Input) Sample(ctx context.Context, sampler *replica.Sampler) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	in.Samples = map[string]replica.Sample{}
	for i := range in.Pods {
		pod := &in.Pods[i]
		group.Go(func() {
			sample, err := sampler.Sample(ctx, pod)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				in.Notes = append(in.Notes, fmt.Sprintf("Metrics of %s cannot be read: %v", pod.Name, err))
				return
			}
			in.Samples[pod.Name] = sample
		})
	}
	group.Wait()
}

// Scheme returns the types that Collect reads.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}
