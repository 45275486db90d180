package crd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// converted starts a server with a resource that the webhook converts, and returns its version v1beta1.
func (s *server) converted(t *testing.T, c *converter) resource.Target {
	t.Helper()
	definition := sample(t)
	c.converts(definition)
	s.create(t, definition)
	s.establish(t)
	match, ok := s.publisher.Current().Lookup("example.com", "v1beta1", "widgets")
	if !ok {
		t.Fatal("version v1beta1 is not served")
	}
	return resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: "default"}
}

func (s *server) createWidget(t *testing.T, name string) {
	t.Helper()
	key := resource.Key{GroupResource: widgets, Namespace: "default"}
	if _, err := s.Create(t.Context(), key, newWidget(name), resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestConvertedOnce reads objects concurrently in every way. Each object is converted once.
func TestConvertedOnce(t *testing.T) {
	s, c := startServer(t), startConverter(t)
	target := s.converted(t, c)
	const count = 20
	for i := range count {
		s.createWidget(t, fmt.Sprint("w", i))
	}
	stored := target
	stored.Version = target.Definition.Version("v1")
	if err := s.list(t, stored, registry.Selection{}, count); err != nil { // initializes the watch cache
		t.Fatal(err)
	}
	selected := registry.Selection{Label: labels.SelectorFromSet(labels.Set{"in": "v1beta1"})}
	read := []func() error{
		func() error { return s.list(t, target, registry.Selection{}, count) },
		func() error { return s.list(t, target, selected, count) },
		func() error {
			entry, err := s.Registry.Get(t.Context(), named(target, "w3"), "")
			if err == nil {
				_, err = entry.Encoded(t.Context(), encoding.Format{Resource: target.Match, Shape: encoding.Metadata})
			}
			return err
		},
		func() error { return s.watchInitial(t, target, selected, count) },
	}
	var readers errgroup.Group
	for i := range 40 {
		readers.Go(read[i%len(read)])
	}
	if err := readers.Wait(); err != nil {
		t.Fatal(err)
	}
	converted := map[string]int{}
	for _, call := range c.take() {
		for _, name := range strings.Fields(call)[1:] {
			converted[name]++
		}
	}
	for name, times := range converted {
		if times != 1 {
			t.Errorf("%s was converted %d times", name, times)
		}
	}
	if len(converted) != count {
		t.Errorf("%d objects were converted", len(converted))
	}
}

func named(target resource.Target, name string) resource.Target {
	target.Name = name
	return target
}

// list lists objects and encodes them.
func (s *server) list(t *testing.T, target resource.Target, selection registry.Selection, want int) error {
	page, err := s.Registry.List(t.Context(), target, registry.ListOptions{Selection: selection})
	if err != nil {
		return err
	}
	defer page.Close()
	items, err := page.Encoded(t.Context(), encoding.Format{Resource: target.Match})
	if err == nil && len(items) != want {
		err = fmt.Errorf("listed %d objects", len(items))
	}
	return err
}

func (s *server) watchInitial(t *testing.T, target resource.Target, selection registry.Selection, want int) error {
	w, err := s.Registry.Watch(t.Context(), target, registry.WatchOptions{Selection: selection, InitialEvents: true})
	if err != nil {
		return err
	}
	defer w.Close()
	if len(w.Initial) != want {
		return fmt.Errorf("%d initial events", len(w.Initial))
	}
	for _, entry := range w.Initial {
		if _, err := entry.Encoded(t.Context(), encoding.Format{Resource: target.Match}); err != nil {
			return err
		}
	}
	return nil
}

// TestOneObjectFails fails the reads and watches of an object that cannot be converted, and no others.
func TestOneObjectFails(t *testing.T) {
	s, c := startServer(t), startConverter(t)
	target := s.converted(t, c)
	w, err := s.Registry.Watch(t.Context(), target, registry.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s.createWidget(t, "good")
	events, _, err := w.Next(t.Context())
	if err != nil || len(events) != 1 {
		t.Fatalf("%d events, %v", len(events), err)
	}
	s.createWidget(t, "bad")
	var failure *resource.ConversionError
	if _, _, err := w.Next(t.Context()); !errors.As(err, &failure) {
		t.Errorf("watch: %v", err)
	}
	if err := s.list(t, target, registry.Selection{}, 2); !errors.As(err, &failure) {
		t.Errorf("list: %v", err)
	}
	entry, err := s.Registry.Get(t.Context(), named(target, "good"), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entry.Encoded(t.Context(), encoding.Format{Resource: target.Match}); err != nil {
		t.Errorf("get: %v", err)
	}
	byName := registry.Selection{Field: fields.OneTermEqualSelector("metadata.name", "good")}
	if err := s.list(t, target, byName, 1); err != nil {
		t.Errorf("list of one name: %v", err)
	}
}

// TestSlowConversionDelaysNoOthers writes and reads stored objects, and continues a watch, while the webhook does not
// answer.
func TestSlowConversionDelaysNoOthers(t *testing.T) {
	s, c := startServer(t), startConverter(t)
	target := s.converted(t, c)
	w, err := s.Registry.Watch(t.Context(), target, registry.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c.hold = make(chan struct{})
	s.createWidget(t, "first")
	impatient, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, _, err := w.Next(impatient)
		waited <- err
	}()
	stored := target
	stored.Version = target.Definition.Version("v1")
	stored.Endpoint = stored.Version.Endpoints[""]
	s.createWidget(t, "second")
	if err := s.list(t, stored, registry.Selection{}, 2); err != nil {
		t.Error(err)
	}
	<-c.held
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(c.hold)
	seen := 0
	for seen < 2 { // no event was lost with the first wait
		events, _, err := w.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen += len(events)
	}
}
