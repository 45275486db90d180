package crd

import (
	"context"
	"fmt"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
)

// Converters creates the converters of definitions with a conversion webhook. Upstream's conversion.CRConverterFactory
// implements it.
type Converters interface {
	// NewConverter returns two converters with the same results: safe does not change its arguments, and unsafe may
	// change them.
	NewConverter(crd *apiextensionsv1.CustomResourceDefinition) (safe, unsafe runtime.ObjectConvertor, err error)
}

// splitWithin bounds the duration of failed calls whose objects are sent again in two halves. If a call takes longer
// until it fails, the webhook is overloaded or does not respond, and is not called again.
const splitWithin = 5 * time.Second

// webhook is the conversion webhook of a custom resource. It is safe for concurrent use and has no limit of concurrent
// calls; the watch cache shares conversions between readers.
type webhook struct {
	clock clock.PassiveClock
	// converter creates upstream's converter on the first call and then returns the same one. It is created late because
	// it parses the CA bundle and builds a client.
	converter func() (runtime.ObjectConvertor, error)
}

// newWebhook returns the conversion webhook of a definition, nil if it has none.
func (b *Builder) newWebhook(crd *apiextensionsv1.CustomResourceDefinition) *webhook {
	if crd.Spec.Conversion == nil || crd.Spec.Conversion.Strategy != apiextensionsv1.WebhookConverter {
		return nil
	}
	described := withoutSchemas(crd)
	return &webhook{clock: b.clock, converter: sync.OnceValues(func() (runtime.ObjectConvertor, error) {
		_, converter, err := b.converters.NewConverter(described)
		return converter, err
	})}
}

// withoutSchemas returns a copy of the parts of a definition that converters use, without the schemas: a converter
// lives as long as its definition, and would keep the decoded schemas in memory.
func withoutSchemas(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	described := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: crd.Spec.Group, Scope: crd.Spec.Scope, Conversion: crd.Spec.Conversion.DeepCopy(),
	}}
	described.Name = crd.Name
	for _, v := range crd.Spec.Versions {
		described.Spec.Versions = append(described.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v.Name, Subresources: v.Subresources.DeepCopy(), SelectableFields: v.SelectableFields,
		})
	}
	return described
}

// call converts an object or the items of a list. It may change its argument. Upstream's converter takes no context:
// when ctx ends, call returns, and the request to the webhook continues until its timeout of 30 s. The caller must not
// use the argument afterwards, because that goroutine may still change it. A panic of the converter, which processes
// the response of the webhook, becomes an error.
func (w *webhook) call(ctx context.Context, object runtime.Object, to schema.GroupVersion) (runtime.Object, error) {
	type result struct {
		object runtime.Object
		err    error
	}
	converter, err := w.converter()
	if err != nil {
		return nil, &resource.ConversionError{Err: err}
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() {
			if cause := recover(); cause != nil {
				r.object, r.err = nil, fmt.Errorf("convert a custom resource: %v", cause)
			}
			done <- r
		}()
		r.object, r.err = converter.ConvertToVersion(object, to)
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, &resource.ConversionError{Err: r.err}
		}
		return r.object, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// convertAll converts objects of one version in one call of the webhook. It may change its argument. If the call fails
// within splitWithin, it halves the objects repeatedly to find the first object that cannot be converted. It returns
// the objects before that one, and the error of a call with this object alone, which is kube-apiserver's error. For n
// objects, of which one fails, it makes about 2 log n calls.
func (w *webhook) convertAll(
	ctx context.Context, objects []unstructured.Unstructured, to schema.GroupVersion,
) ([]unstructured.Unstructured, error) {
	if len(objects) == 1 {
		converted, err := w.convert(ctx, &objects[0], to)
		if err != nil {
			return nil, err
		}
		return []unstructured.Unstructured{*converted}, nil
	}
	began := w.clock.Now()
	list := &unstructured.UnstructuredList{Object: map[string]any{}, Items: objects}
	list.SetGroupVersionKind(objects[0].GroupVersionKind())
	answer, err := w.call(ctx, list, to)
	if err == nil {
		converted, ok := answer.(*unstructured.UnstructuredList)
		if !ok || len(converted.Items) != len(objects) {
			return nil, &resource.ConversionError{Err: fmt.Errorf("%T is not the list of converted objects", answer)}
		}
		return converted.Items, nil
	}
	if ctx.Err() != nil || w.clock.Since(began) > splitWithin {
		return nil, err
	}
	half := len(objects) / 2
	first, err := w.convertAll(ctx, objects[:half], to)
	if err != nil {
		return first, err
	}
	second, err := w.convertAll(ctx, objects[half:], to)
	return append(first, second...), err
}

// convert converts one object. It may change its argument.
func (w *webhook) convert(
	ctx context.Context, object *unstructured.Unstructured, to schema.GroupVersion,
) (*unstructured.Unstructured, error) {
	answer, err := w.call(ctx, object, to)
	if err != nil {
		return nil, err
	}
	converted, ok := answer.(*unstructured.Unstructured)
	if !ok {
		return nil, &resource.ConversionError{Err: fmt.Errorf("%T is not a converted object", answer)}
	}
	return converted, nil
}

// checkVersions returns kube-apiserver's errors for conversions between unknown versions.
func (c *custom) checkVersions(from, to schema.GroupVersion) error {
	if to.Group != c.group || c.versions[to.Version] == nil {
		return fmt.Errorf("request to convert CR to an invalid group/version: %s", to)
	}
	if from.Group != c.group || c.versions[from.Version] == nil {
		return fmt.Errorf("request to convert CR from an invalid group/version: %s", from)
	}
	return nil
}

// convert returns the object in another version. It may change its argument, and returns it if the version is the same.
// Without a webhook (strategy None), only apiVersion changes, like in upstream's nopConverter.
func (c *custom) convert(
	ctx context.Context, object *unstructured.Unstructured, to schema.GroupVersion,
) (*unstructured.Unstructured, error) {
	from := object.GroupVersionKind()
	if from.GroupVersion() == to {
		return object, nil
	}
	if err := c.checkVersions(from.GroupVersion(), to); err != nil {
		return nil, err
	}
	if c.webhook != nil {
		return c.webhook.convert(ctx, object, to)
	}
	object.SetGroupVersionKind(to.WithKind(from.Kind))
	return object, nil
}

// coerceConverted prunes unknown fields from a converted object. A webhook may have added them, or the schema of the
// object's previous version may have allowed them.
func (c *custom) coerceConverted(object *unstructured.Unstructured) error {
	_, err := c.coerce(object, coercion{})
	if err != nil && c.webhook != nil {
		return &resource.ConversionError{Err: err}
	}
	if err != nil {
		return fmt.Errorf("converted custom resource: %w", err)
	}
	return nil
}

// loading is the state of one LoadAll. The results from the first object that failed are nil.
type loading struct {
	of      *custom
	to      schema.GroupVersion
	objects []*unstructured.Unstructured
	err     error // error of the first object that failed
}

// fail records the error of an object. This object and the objects after it are not loaded.
func (l *loading) fail(index int, err error) {
	clear(l.objects[index:])
	l.err = err
}

// convert converts the objects to the requested version. It makes one call of the webhook for each stored version.
func (l *loading) convert(ctx context.Context) {
	indexes := map[schema.GroupVersion][]int{}
	var versions []schema.GroupVersion
	for i, object := range l.objects {
		if object == nil {
			break
		}
		from := object.GroupVersionKind().GroupVersion()
		if from == l.to {
			continue
		}
		if indexes[from] == nil {
			versions = append(versions, from)
		}
		indexes[from] = append(indexes[from], i)
	}
	for _, from := range versions {
		l.convertFrom(ctx, indexes[from])
	}
}

// convertFrom converts the objects with the given indexes, which are ascending. All of the objects are stored in the
// same version. Objects that an earlier failure has cleared are left out; because a failure clears everything after it,
// these are the last ones, and the indexes of the others stay valid.
func (l *loading) convertFrom(ctx context.Context, indexes []int) {
	var objects []unstructured.Unstructured
	for _, i := range indexes {
		if l.objects[i] != nil {
			objects = append(objects, *l.objects[i])
		}
	}
	if len(objects) == 0 {
		return
	}
	converted, err := l.of.convertAll(ctx, objects, l.to)
	for n := range objects {
		i := indexes[n]
		if n >= len(converted) {
			l.fail(i, err)
			return
		}
		l.objects[i] = &converted[n]
		if err := l.of.coerceConverted(l.objects[i]); err != nil {
			l.fail(i, err)
			return
		}
	}
}

// convertAll converts objects of one version. It may change its argument. On an error it returns the objects before the
// first one that failed.
func (c *custom) convertAll(
	ctx context.Context, objects []unstructured.Unstructured, to schema.GroupVersion,
) ([]unstructured.Unstructured, error) {
	if err := c.checkVersions(objects[0].GroupVersionKind().GroupVersion(), to); err != nil {
		return nil, err
	}
	if c.webhook != nil {
		return c.webhook.convertAll(ctx, objects, to)
	}
	for i := range objects {
		objects[i].SetGroupVersionKind(to.WithKind(objects[i].GetKind()))
	}
	return objects, nil
}
