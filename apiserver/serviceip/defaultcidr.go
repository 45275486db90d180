package serviceip

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

const (
	// defaultCIDR is the name of the ServiceCIDR that has the ranges of --service-cluster-ip-range.
	defaultCIDR = "kubernetes"
	// cidrController is the field manager and the source of Events, as in kube-apiserver.
	cidrController = "kubernetes-service-cidr-controller"
	cidrInterval   = 10 * time.Second
	// firstRetry is the delay after the first failure before the ServiceCIDR has been created. It doubles up to lastRetry.
	// No address can be allocated before.
	firstRetry = 100 * time.Millisecond
	// lastRetry is the longest delay before the ServiceCIDR has been created, which readiness waits for.
	lastRetry = time.Second
)

var cidrs = schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}

// DefaultCIDR creates the ServiceCIDR that has the ranges of --service-cluster-ip-range. It adds a second family if the
// flag has one; it only reports any other difference between the flag and the object.
type DefaultCIDR struct {
	CIDRs   []string
	Objects resource.Client
	Clock   clock.WithTicker
	Logger  logr.Logger

	// reported has the reasons that have been reported as Events.
	reported map[string]bool
}

// Run reconciles the ServiceCIDR until ctx ends. It calls synced once, after the first success.
func (d *DefaultCIDR) Run(ctx context.Context, synced func()) error {
	for retry := firstRetry; ; {
		wait := cidrInterval
		if err := d.Once(ctx); err != nil {
			d.Logger.Error(err, "Failed to reconcile the default ServiceCIDR")
			if synced != nil {
				wait, retry = retry, min(2*retry, lastRetry)
			}
		} else if synced != nil {
			synced()
			synced = nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.Clock.After(wait):
		}
	}
}

// Once creates the ServiceCIDR or reconciles the existing one.
func (d *DefaultCIDR) Once(ctx context.Context) error {
	ctx = system.WithServerUser(ctx)
	object, err := d.Objects.Get(ctx,
		resource.Key{GroupResource: cidrs, Name: defaultCIDR}, resource.ReadOptions{Cached: true})
	if apierrors.IsNotFound(err) {
		return d.create(ctx)
	}
	if err != nil {
		return err
	}
	cidr := object.(*networking.ServiceCIDR)
	if len(d.CIDRs) == 2 && slices.Equal(cidr.Spec.CIDRs, d.CIDRs[:1]) {
		return d.addFamily(ctx, cidr)
	}
	return d.report(ctx, cidr)
}

func (d *DefaultCIDR) create(ctx context.Context) error {
	internal, err := system.ToInternal(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: defaultCIDR}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: d.CIDRs},
	})
	if err != nil {
		return err
	}
	created, err := d.Objects.Create(ctx, resource.Key{GroupResource: cidrs}, internal, resource.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create the default ServiceCIDR: %w", err)
	}
	return d.report(ctx, created.(*networking.ServiceCIDR))
}

// addFamily adds the second family to the ServiceCIDR.
func (d *DefaultCIDR) addFamily(ctx context.Context, cidr *networking.ServiceCIDR) error {
	key := resource.Key{GroupResource: cidrs, Name: defaultCIDR}
	_, err := d.Objects.Update(ctx, key, func(object runtime.Object) error {
		object.(*networking.ServiceCIDR).Spec.CIDRs = slices.Clone(d.CIDRs)
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		d.warn(ctx, cidr, "KubernetesDefaultServiceCIDRError", fmt.Sprintf(
			"The default ServiceCIDR can not be upgraded from %s to dual stack %v : %v", d.CIDRs[0], d.CIDRs, err))
	}
	return nil
}

// report sets the condition Ready if it is unknown, and warns if the ServiceCIDR does not match the flag.
func (d *DefaultCIDR) report(ctx context.Context, cidr *networking.ServiceCIDR) error {
	if cidr.DeletionTimestamp != nil {
		// kube-controller-manager removes the finalizer.
		return nil
	}
	if !slices.Equal(cidr.Spec.CIDRs, d.CIDRs) {
		d.warn(ctx, cidr, "KubernetesDefaultServiceCIDRInconsistent", fmt.Sprintf(
			"The default ServiceCIDR %v does not match the controller flag configurations %s", cidr.Spec.CIDRs, d.CIDRs))
		return nil
	}
	ready := meta.FindStatusCondition(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
	switch {
	case ready == nil || ready.Status == metav1.ConditionUnknown:
		if err := d.markReady(ctx); err != nil {
			d.warn(ctx, cidr, "KubernetesDefaultServiceCIDRError", "The default ServiceCIDR Status can not be set to Ready=True")
			d.Logger.Error(err, "The default ServiceCIDR could not be marked ready")
		}
	case ready.Status == metav1.ConditionFalse:
		d.warn(ctx, cidr, ready.Reason, "Configuration matches, but "+ready.Message)
	}
	return nil
}

func (d *DefaultCIDR) markReady(ctx context.Context) error {
	key := resource.Key{GroupResource: cidrs, Subresource: "status", Name: defaultCIDR}
	_, err := d.Objects.Apply(resource.WithManager(ctx, cidrController), key, map[string]any{
		"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": map[string]any{"name": defaultCIDR},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": networkingv1.ServiceCIDRConditionReady, "status": metav1.ConditionTrue,
			"message":            "Kubernetes default Service CIDR is ready",
			"lastTransitionTime": d.Clock.Now().UTC().Format(time.RFC3339),
		}}},
	}, resource.WriteOptions{})
	return err
}

// warn reports a warning about the ServiceCIDR in the log and as an Event, once for each reason.
func (d *DefaultCIDR) warn(ctx context.Context, cidr *networking.ServiceCIDR, reason, message string) {
	if d.reported[reason] {
		return
	}
	d.Logger.Info(message, "reason", reason)
	if err := d.record(ctx, cidr, reason, message); err != nil {
		d.Logger.Error(err, "Failed to create the Event of a warning", "reason", reason)
		return
	}
	if d.reported == nil {
		d.reported = map[string]bool{}
	}
	d.reported[reason] = true
}

func (d *DefaultCIDR) record(ctx context.Context, cidr *networking.ServiceCIDR, reason, message string) error {
	regarding, err := referenceTo(cidr)
	if err != nil {
		return err
	}
	now := metav1.NewTime(d.Clock.Now())
	event, err := system.ToInternal(&corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s.%x", cidr.Name, now.UnixNano()), Namespace: metav1.NamespaceDefault,
		},
		InvolvedObject: *regarding, Reason: reason, Message: message, Type: corev1.EventTypeWarning,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: cidrController}, ReportingController: cidrController,
	})
	if err != nil {
		return err
	}
	_, err = d.Objects.Create(ctx,
		resource.Key{GroupResource: schema.GroupResource{Resource: "events"}, Namespace: metav1.NamespaceDefault},
		event, resource.WriteOptions{})
	return err
}
