package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/measure/samples"
	"quorate.dev/test/scale/wire"
	"quorate.dev/test/upstream"
)

const (
	deploymentsPath = "/apis/apps/v1/namespaces/" + podsNamespace + "/deployments"
	rolloutTimeout  = 10 * time.Minute
	pollInterval    = 500 * time.Millisecond
	asJSON          = "application/json"
)

// clientLimits are the limits of requests of the controllers, as in clusters of many nodes.
func clientLimits() []string {
	return []string{"--kube-api-qps=300", "--kube-api-burst=600", "--leader-elect=false"}
}

// control runs kube-controller-manager and kube-scheduler, scales Deployments up and down, and runs the storms that
// need the controllers.
func (c *cluster) control(ctx context.Context) error {
	if !c.options.controllers {
		return nil
	}
	missing, err := c.reference.during(ctx, func(ctx context.Context) error {
		stop, err := c.startControllers(ctx)
		if err != nil {
			return err
		}
		defer stop()
		if err := c.rollouts(ctx); err != nil {
			return err
		}
		return c.controlledStorms(ctx)
	})
	if err != nil {
		return err
	}
	c.addCounts("controllers", missing)
	return nil
}

// startControllers starts kube-controller-manager and kube-scheduler. The returned function kills them, because a
// scheduler that receives SIGTERM exits with an error.
func (c *cluster) startControllers(ctx context.Context) (stop func(), err error) {
	c.progress("start kube-controller-manager and kube-scheduler")
	client := upstream.Client{
		Directory: filepath.Join(c.directory, "controllers"), PKI: c.server.PKI, Server: c.server.Admin,
		Arguments: clientLimits(),
	}
	manager, err := client.StartControllerManager(ctx)
	if err != nil {
		return nil, fmt.Errorf("start kube-controller-manager: %w", err)
	}
	scheduler, err := client.StartScheduler(ctx)
	if err != nil {
		manager.Kill()
		return nil, fmt.Errorf("start kube-scheduler: %w", err)
	}
	return func() {
		scheduler.Kill()
		manager.Kill()
	}, nil
}

// rollouts creates Deployments without replicas, and scales them up and down.
func (c *cluster) rollouts(ctx context.Context) error {
	o := c.options
	if err := c.sendAll(ctx, "Deployments", o.deployments, createDeployment); err != nil {
		return err
	}
	replicas := max(o.nodes/o.deployments, 1)
	for _, step := range []struct {
		name     string
		replicas int
	}{{"scale Deployments up", replicas}, {"scale Deployments down", 0}} {
		_, err := c.measured(ctx, step.name, func(ctx context.Context) error { return c.rollout(ctx, step.replicas) })
		if err != nil {
			return err
		}
		c.addTimings(step.name)
		c.result.add(step.name, "pods", float64(replicas*o.deployments), "")
	}
	return nil
}

func deploymentName(i int) string { return fmt.Sprintf("deployment-%04d", i) }

func createDeployment(i int) wire.Request {
	replicas := int32(0)
	labels := map[string]string{"deployment": deploymentName(i)}
	pod := samples.Pod("", 0, "")
	return create(deploymentsPath, &apps.Deployment{
		TypeMeta:   meta.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: meta.ObjectMeta{Name: deploymentName(i)},
		Spec: apps.DeploymentSpec{
			Replicas: &replicas, Selector: &meta.LabelSelector{MatchLabels: labels},
			Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	})
}

// rollout scales all Deployments, and waits until they have the number of ready pods and no others.
func (c *cluster) rollout(ctx context.Context, replicas int) error {
	err := c.sendAll(ctx, "scales", c.options.deployments, func(i int) wire.Request {
		return wire.Request{
			Method: http.MethodPatch, Path: deploymentsPath + "/" + deploymentName(i), Accept: wire.Protobuf,
			ContentType: mergePatch, Body: fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas),
		}
	})
	if err != nil {
		return err
	}
	var ready, total int32
	defer c.report(ctx, func() string { return fmt.Sprintf("%d pods, %d of them ready", total, ready) })()
	return c.poll(ctx, rolloutTimeout, func() (bool, error) {
		ready, total, err = c.replicas(ctx)
		want := int32(replicas * c.options.deployments)
		return ready == want && total == want, err
	})
}

// replicas returns how many pods the Deployments have, and how many of them are ready.
func (c *cluster) replicas(ctx context.Context) (ready, total int32, err error) {
	var list apps.DeploymentList
	if err := c.get(ctx, deploymentsPath, &list); err != nil {
		return 0, 0, err
	}
	for _, deployment := range list.Items {
		ready, total = ready+deployment.Status.ReadyReplicas, total+deployment.Status.Replicas
	}
	return ready, total, nil
}

// get reads an object or a list as JSON.
func (c *cluster) get(ctx context.Context, path string, into any) error {
	r := wire.Request{Method: http.MethodGet, Path: path, Accept: asJSON}
	response, err := c.writer(0).Do(ctx, r, 64<<20)
	if err != nil {
		return err
	}
	if response.Status != http.StatusOK {
		return fmt.Errorf("GET %s: status %d: %w", path, response.Status, errStatus)
	}
	return json.Unmarshal(response.Body, into)
}

// errStatus is returned by get for another status than 200.
var errStatus = errors.New("the response is not the object")

// poll calls done until it returns true or an error, and returns an error if it does neither within the timeout.
func (c *cluster) poll(ctx context.Context, timeout time.Duration, done func() (bool, error)) error {
	return wait.PollUntilContextTimeout(ctx, pollInterval, timeout, true, func(context.Context) (bool, error) {
		return done()
	})
}

// controlledStorms runs the selected storms that need the controllers.
func (c *cluster) controlledStorms(ctx context.Context) error {
	for _, s := range controlledStorms() {
		if !slices.Contains(c.options.storms, s.name) {
			continue
		}
		_, err := c.measured(ctx, "storm "+s.name, func(ctx context.Context) error { return s.run(c, ctx) })
		if err != nil {
			return err
		}
		c.addTimings("storm " + s.name)
	}
	return nil
}
