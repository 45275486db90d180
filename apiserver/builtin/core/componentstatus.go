package core

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"

	"quorate.dev/panics"
)

// componentTimeout bounds one health check.
const componentTimeout = 20 * time.Second

// check checks the health of a component.
type check func(ctx context.Context) (probe.Result, string, error)

// components maps the names of the control plane's components on this machine to their health checks.
type components map[string]check

// newComponents returns all components, including the members of etcd.
func newComponents(etcd []func(context.Context) error) components {
	all := components{
		"controller-manager": checkURL(url.URL{Scheme: "https", Host: "127.0.0.1:10257", Path: "/healthz"}),
		"scheduler":          checkURL(url.URL{Scheme: "https", Host: "127.0.0.1:10259", Path: "/healthz"}),
	}
	for i, ask := range etcd {
		all[fmt.Sprintf("etcd-%d", i)] = checkMember(ask)
	}
	return all
}

func checkURL(address url.URL) check {
	// The components on this machine have self-signed certificates.
	prober := httpprobe.NewWithTLSConfig(&tls.Config{InsecureSkipVerify: true}, true)
	return func(ctx context.Context) (probe.Result, string, error) {
		request, err := httpprobe.NewProbeRequest(&address, nil)
		if err != nil {
			return probe.Unknown, "", err
		}
		return prober.Probe(request.WithContext(ctx), componentTimeout)
	}
}

func checkMember(ask func(context.Context) error) check {
	return func(ctx context.Context) (probe.Result, string, error) {
		ctx, cancel := context.WithTimeout(ctx, componentTimeout)
		defer cancel()
		if err := ask(ctx); err != nil {
			return probe.Failure, "", err
		}
		return probe.Success, "ok", nil
	}
}

// compute implements resource.Compute by running the health checks.
func (c components) compute(ctx context.Context, name string) ([]runtime.Object, error) {
	if name != "" {
		check, ok := c[name]
		if !ok {
			return nil, apierrors.NewNotFound(api.Resource("componentstatus"), name)
		}
		return []runtime.Object{status(ctx, name, check)}, nil
	}
	names := slices.Sorted(maps.Keys(c))
	statuses := make([]runtime.Object, len(names))
	var asked panics.Group
	for i, name := range names {
		asked.Start(func() { statuses[i] = status(ctx, name, c[name]) })
	}
	asked.Wait()
	return statuses, nil
}

func status(ctx context.Context, name string, check check) *api.ComponentStatus {
	result, message, err := check(ctx)
	condition := api.ComponentCondition{Type: api.ComponentHealthy, Status: api.ConditionUnknown, Message: message}
	switch {
	case err != nil && result != probe.Failure:
		condition.Message, condition.Error = "", err.Error()
	case err != nil:
		condition.Status, condition.Error = api.ConditionFalse, err.Error()
	case result == probe.Success:
		condition.Status = api.ConditionTrue
	case result == probe.Failure:
		condition.Status = api.ConditionFalse
	}
	return &api.ComponentStatus{ObjectMeta: metav1.ObjectMeta{Name: name}, Conditions: []api.ComponentCondition{condition}}
}
