package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/scale/wire"
)

const (
	doomedNamespace = "doomed"
	doomedPath      = namespacesPath + "/" + doomedNamespace
	objectSize      = 900 // bytes of data of an object in the namespace that is deleted
	outageShare     = 3   // one node of so many stops
)

// controlledStorms returns the storms that need the controllers, in the order in which they run.
func controlledStorms() []storm {
	return []storm{{"outage", (*cluster).outage}, {"namespace", (*cluster).deleteNamespace}}
}

// outage stops the leases and statuses of a third of the nodes until the controllers have noticed that, and then waits
// until they have returned.
func (c *cluster) outage(ctx context.Context) error {
	var stopped []int
	changes := map[int]int64{}
	for i := 0; i < len(c.nodes); i += outageShare {
		c.nodes[i].Stop()
		stopped, changes[i] = append(stopped, i), c.reference.nodes[i].Load()
	}
	begin := time.Now()
	err := c.awaitNodes(ctx, "nodes are known to be unreachable", stopped, func(i int) bool {
		return c.reference.nodes[i].Load() > changes[i]
	})
	if err != nil {
		return err
	}
	c.result.add("storm outage", "nodes", float64(len(stopped)), "")
	c.result.add("storm outage", "time until all are known to be unreachable", time.Since(begin).Seconds(), seconds)
	begin = time.Now()
	for _, i := range stopped {
		changes[i] = c.nodes[i].Statuses.Load()
		c.nodes[i].Resume()
	}
	err = c.awaitNodes(ctx, "nodes have returned", stopped, func(i int) bool {
		return c.nodes[i].Statuses.Load() > changes[i]
	})
	c.result.add("storm outage", "time until all have returned", time.Since(begin).Seconds(), seconds)
	return err
}

// awaitNodes waits until a condition holds for all given nodes.
func (c *cluster) awaitNodes(ctx context.Context, what string, nodes []int, holds func(i int) bool) error {
	count := func() (done int) {
		for _, i := range nodes {
			if holds(i) {
				done++
			}
		}
		return done
	}
	defer c.report(ctx, func() string { return fmt.Sprintf("%d of %d %s", count(), len(nodes), what) })()
	err := c.poll(ctx, rolloutTimeout, func() (bool, error) { return count() == len(nodes), nil })
	if err != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	return nil
}

// deleteNamespace deletes a namespace of many objects.
func (c *cluster) deleteNamespace(ctx context.Context) error {
	namespace := &core.Namespace{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: meta.ObjectMeta{Name: doomedNamespace},
	}
	if err := c.writer(0).Send(ctx, create(namespacesPath, namespace)); err != nil {
		return err
	}
	if err := c.sendAll(ctx, "objects", c.options.objects, createConfigMap); err != nil {
		return err
	}
	begin := time.Now()
	deletion := wire.Request{Method: http.MethodDelete, Path: doomedPath, Accept: wire.Protobuf}
	if err := c.writer(0).Send(ctx, deletion); err != nil {
		return err
	}
	err := c.poll(ctx, rolloutTimeout, func() (bool, error) {
		err := c.get(ctx, doomedPath, &core.Namespace{})
		if errors.Is(err, errStatus) {
			return true, nil
		}
		return false, err
	})
	c.result.add("storm namespace", "objects", float64(c.options.objects), "")
	c.result.add("storm namespace", "time until the namespace is gone", time.Since(begin).Seconds(), seconds)
	return err
}

func createConfigMap(i int) wire.Request {
	return create(doomedPath+"/configmaps", &core.ConfigMap{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: meta.ObjectMeta{Name: fmt.Sprint("object-", i)},
		Data:       map[string]string{"payload": strings.Repeat("0123456789", objectSize/10)},
	})
}
