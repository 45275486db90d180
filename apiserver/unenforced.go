package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/watchcache"
)

// Admission webhooks and policies are not implemented: their configurations are stored and have no effect. This file
// warns clients and administrators of that until they are.

const (
	notEnforced  = "this server does not enforce admission webhooks and policies yet: this object has no effect"
	notConverted = "this server does not call conversion webhooks yet: objects cannot be converted between versions"
)

// unenforcedResources are the resources without effect.
var unenforcedResources = []string{
	"mutatingwebhookconfigurations", "validatingwebhookconfigurations",
	"mutatingadmissionpolicies", "mutatingadmissionpolicybindings",
	"validatingadmissionpolicies", "validatingadmissionpolicybindings",
}

// unenforced counts stored objects without effect and warns clients that write them.
type unenforced struct {
	logger  logr.Logger
	objects *prometheus.GaugeVec

	lock   sync.Mutex
	counts map[string]int // by kind
}

func newUnenforced(registerer prometheus.Registerer, logger logr.Logger) *unenforced {
	u := &unenforced{logger: logger, counts: map[string]int{}, objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "quorate_admission_unenforced_objects",
		Help: "Number of stored admission configurations that have no effect, by kind.",
	}, []string{"kind"})}
	registerer.MustRegister(u.objects)
	return u
}

// plugin returns the admission plugin that warns clients which write an object without effect.
func (u *unenforced) plugin() admission.Plugin {
	return admission.Plugin{Operations: []admission.Operation{admission.Create, admission.Update}, Validator: u}
}

// Validate implements admission.Validator. It rejects nothing.
func (u *unenforced) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Subresource != "" {
		return nil
	}
	name := a.Definition.GroupResource()
	if name.Group == admissionregistrationv1.GroupName && slices.Contains(unenforcedResources, name.Resource) {
		warning.AddWarning(ctx, "", notEnforced)
	}
	definition, ok := a.Object.(*apiextensions.CustomResourceDefinition)
	if ok && crd.NeedsConversionWebhook(&definition.Spec) {
		warning.AddWarning(ctx, "", notConverted)
	}
	return nil
}

// followUnenforced counts the objects without effect until ctx ends.
func (s *Server) followUnenforced(ctx context.Context, _ func()) error {
	var follow []func(context.Context) error
	for _, plural := range unenforcedResources {
		name := schema.GroupResource{Group: admissionregistrationv1.GroupName, Resource: plural}
		match, served := s.catalogs.holder.Current().Find(name)
		if !served {
			continue
		}
		follow = append(follow, func(ctx context.Context) error {
			return s.registry.FollowEntries(ctx, name, func(before, after *watchcache.Entry) {
				s.unenforced.changed(match.Kind, before, after)
			}, nil)
		})
	}
	return together(ctx, follow...)
}

// changed updates the counts. before is nil for a new object, after for a deleted one.
func (u *unenforced) changed(kind string, before, after *watchcache.Entry) {
	u.lock.Lock()
	defer u.lock.Unlock()
	switch {
	case before == nil && after != nil:
		u.counts[kind]++
		u.logger.Info("Admission webhooks and policies are not enforced", "kind", kind, "key", after.Path())
	case before != nil && after == nil:
		u.counts[kind]--
	}
	u.objects.WithLabelValues(kind).Set(float64(u.counts[kind]))
}

// check fails while objects without effect are stored.
func (u *unenforced) check(context.Context) error {
	u.lock.Lock()
	defer u.lock.Unlock()
	var stored []string
	for _, kind := range slices.Sorted(maps.Keys(u.counts)) {
		if count := u.counts[kind]; count > 0 {
			stored = append(stored, fmt.Sprintf("%d %s", count, kind))
		}
	}
	if len(stored) == 0 {
		return nil
	}
	return errors.New("stored and not enforced: " + strings.Join(stored, ", "))
}
