package workload

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"quorate.dev/test/history/check"
)

// customObjects reads, writes, lists and watches objects of a CustomResourceDefinition. Each object is a register with
// compare-and-swap, by its resourceVersion.
type customObjects struct {
	*site
	history  *check.Site
	work     *sync.WaitGroup
	watchers *check.Watchers
	// endWatches ends the watches. It is called after all other clients have stopped, so that the watches deliver their
	// last writes.
	endWatches context.CancelFunc
	drop       func() bool // reports whether a watcher drops an event, to test the check
}

const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"registers.faults.quorate.dev"},
"spec":{"group":"faults.quorate.dev","scope":"Namespaced","names":{"plural":"registers","singular":"register","kind":"Register"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
"data":{"type":"object","additionalProperties":{"type":"string"}}}}}}]}}`

func (w *customObjects) Start(ctx context.Context) error {
	w.history = &check.Site{
		Objects: check.Objects{
			APIVersion: "faults.quorate.dev/v1", Kind: "Register", Resource: "registers", Namespace: "default",
		},
		Record: check.NewRecord(), Drop: w.drop,
	}
	for _, configuration := range w.configurations {
		client, err := check.NewClient(configuration)
		if err != nil {
			return err
		}
		w.history.Clients = append(w.history.Clients, client)
	}
	if err := w.define(ctx); err != nil {
		return err
	}
	load := check.Load{Writers: 2, Readers: 1, Watchers: 2, LongestWatch: 4 * time.Second, Consistencies: true}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.endWatches = cancel
	w.watchers = w.history.Watch(watching, load, w.seed)
	w.work = w.history.Work(ctx, load, w.seed)
	return nil
}

// define creates the definition and waits until all servers serve its objects.
func (w *customObjects) define(ctx context.Context) error {
	err := eventually(ctx, func(ctx context.Context) error {
		err := w.history.Clients[0].Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").
			Body([]byte(definition)).Do(ctx).Error()
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	for _, client := range w.history.Clients {
		if err == nil {
			err = eventually(ctx, func(ctx context.Context) error { return w.served(ctx, client) })
		}
	}
	return err
}

func (w *customObjects) served(ctx context.Context, client rest.Interface) error {
	return client.Get().AbsPath("/apis/faults.quorate.dev/v1/registers").Do(ctx).Error()
}

func (w *customObjects) Stop() { w.work.Wait() }

func (w *customObjects) Check(ctx context.Context) (faults []error) {
	last, err := w.history.Finish(ctx)
	if err == nil {
		err = w.watchers.Reach(ctx, last)
	}
	if err != nil {
		faults = append(faults, fmt.Errorf("custom objects: %w", err))
	}
	w.endWatches()
	w.watchers.Finish()
	return append(faults, w.history.Record.Check()...)
}

func (w *customObjects) Observed() int { return w.history.Record.Summary().Known() }
