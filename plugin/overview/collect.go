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

const (
	// sourceTimeout bounds the time to read each source of an overview. During an outage, the overview is shown without
	// the sources that do not respond in time.
	sourceTimeout = 2 * time.Second
	// clusterTimeout bounds the time to read the ApiServerCluster, without which there is nothing to show.
	clusterTimeout = 10 * time.Second
)

// source is a part of an overview that Collect reads with one request.
type source struct {
	name string
	read func(context.Context) error
}

// Collect reads everything except the samples. It returns an error only if the ApiServerCluster cannot be read. Errors
// of other reads become Notes.
func Collect(ctx context.Context, reader client.Reader, key client.ObjectKey, now time.Time) (Input, error) {
	in := Input{Cluster: &v1alpha1.ApiServerCluster{}, Now: now}
	if err := within(
		ctx, clusterTimeout, func(ctx context.Context) error { return reader.Get(ctx, key, in.Cluster) },
	); err != nil {
		return in, err
	}
	var (
		pods    corev1.PodList
		secrets corev1.SecretList
		events  corev1.EventList
	)
	namespace, own := client.InNamespace(key.Namespace), client.MatchingLabels{desired.ClusterLabel: key.Name}
	list := func(into client.ObjectList, options ...client.ListOption) func(context.Context) error {
		return func(ctx context.Context) error { return reader.List(ctx, into, options...) }
	}
	errs := in.read(ctx, []source{
		{"Pods", list(&pods, namespace, own)},
		{"Secrets", list(&secrets, namespace, own)},
		{"Events", list(&events, namespace)},
		{"Backups", func(ctx context.Context) error { return in.collectBackups(ctx, reader, key) }},
		{"Backup schedules", func(ctx context.Context) error { return in.collectSchedules(ctx, reader, key) }},
	})
	in.PodsUnknown, in.BackupsUnknown = errs[0] != nil, errs[3] != nil || errs[4] != nil
	in.Pods, in.Secrets, in.Events = pods.Items, secrets.Items, events.Items
	return in, nil
}

// read reads sources concurrently, adds a note for each source that cannot be read, and returns the error of each
// source.
func (in *Input) read(ctx context.Context, sources []source) []error {
	errs := make([]error, len(sources))
	var group sync.WaitGroup
	for i, s := range sources {
		group.Go(func() { errs[i] = within(ctx, sourceTimeout, s.read) })
	}
	group.Wait()
	for i, s := range sources {
		if errs[i] != nil {
			in.Notes = append(in.Notes, fmt.Sprintf("%s are not known: %v", s.name, errs[i]))
		}
	}
	return errs
}

// within calls read with a time limit, and returns an error that names the limit if read exceeds it.
func within(ctx context.Context, limit time.Duration, read func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := read(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("the API server of the hosting cluster did not respond within %s", limit)
	}
	return err
}

// CollectBackups reads a cluster with its backups and schedules.
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

// Sample reads the metrics of all running pods concurrently. Pods whose API server does not respond are in Failures;
// other errors are in Notes.
func (in *Input) Sample(ctx context.Context, sampler *replica.Sampler) {
	var group sync.WaitGroup
	samples, errs := make([]replica.Sample, len(in.Pods)), make([]error, len(in.Pods))
	for i := range in.Pods {
		if in.Pods[i].Status.Phase == corev1.PodRunning {
			group.Go(func() { samples[i], errs[i] = sampler.Sample(ctx, &in.Pods[i]) })
		}
	}
	group.Wait()
	in.Samples, in.Failures = map[string]replica.Sample{}, map[string]string{}
	for i, pod := range in.Pods {
		switch failure := replica.Unresponsive(errs[i]); {
		case failure != "":
			in.Failures[pod.Name] = failure
		case errs[i] != nil:
			in.Notes = append(in.Notes, fmt.Sprintf("Metrics of %s cannot be read: %v", pod.Name, errs[i]))
		case pod.Status.Phase == corev1.PodRunning:
			in.Samples[pod.Name] = samples[i]
		}
	}
}

// Scheme returns a scheme with the types that Collect reads.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}
