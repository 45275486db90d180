package differential

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// conversion is an object that a server has sent to a conversion webhook, in the form that is compared.
type conversion struct {
	Version string          `json:"version"` // version of ConversionReview
	Desired string          `json:"desired"`
	Object  json.RawMessage `json:"object"`
}

// conversionReview is the part of a ConversionReview that the webhook reads.
type conversionReview struct {
	APIVersion string `json:"apiVersion"`
	Request    struct {
		UID               string            `json:"uid"`
		DesiredAPIVersion string            `json:"desiredAPIVersion"`
		Objects           []json.RawMessage `json:"objects"`
	} `json:"request"`
}

// servesConversion reports whether a path belongs to a conversion webhook.
func servesConversion(path string) bool { return strings.HasPrefix(path, "/convert") }

// convert responds to a ConversionReview in the way that the mode selects.
func (w *Webhooks) convert(writer http.ResponseWriter, r *http.Request, body []byte) {
	var review conversionReview
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	for _, object := range review.Request.Objects {
		w.conversions = append(w.conversions, conversion{
			Version: review.APIVersion, Desired: review.Request.DesiredAPIVersion, Object: object,
		})
	}
	w.mu.Unlock()
	mode := review.modeOf(strings.Trim(strings.TrimPrefix(r.URL.Path, "/convert"), "/"))
	switch mode {
	case "never":
		<-r.Context().Done()
		return
	case "status-500":
		http.Error(writer, "the converter is broken", http.StatusInternalServerError)
		return
	case "status-404":
		http.NotFound(writer, r)
		return
	}
	body, results := review.answer(mode)
	w.mu.Lock()
	for _, result := range results {
		w.results = append(w.results, canonical(result))
	}
	w.mu.Unlock()
	writer.Header().Set("Content-Type", "application/json")
	_, _ = writer.Write(body)
}

// modeOf returns the mode that an object in the review selects by its name, "mode-" followed by the mode.
func (r *conversionReview) modeOf(otherwise string) string {
	for _, raw := range r.Request.Objects {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw); err != nil {
			continue
		}
		if mode, ok := strings.CutPrefix(object.GetName(), "mode-"); ok {
			return mode
		}
	}
	return otherwise
}

// answer returns the body of the response in a mode, and the objects in it.
func (r *conversionReview) answer(mode string) (body []byte, objects []any) {
	switch mode {
	case "garbage":
		return []byte("this is no JSON"), nil
	case "nothing":
		return nil, nil
	case "null":
		return []byte("null"), nil
	case "huge":
		return bytes.Repeat([]byte(" "), 10<<20), nil
	case "other-kind-of-answer":
		return []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`), nil
	}
	response := map[string]any{"uid": r.Request.UID, "result": map[string]any{"status": "Success"}}
	review := map[string]any{"kind": "ConversionReview", "apiVersion": r.APIVersion, "response": response}
	switch mode {
	case "failed":
		response["result"] = map[string]any{"status": "Failed", "message": "the converter refuses"}
		return encoded(review), objects
	case "failed-silently":
		response["result"] = map[string]any{"status": "Failed"}
		return encoded(review), objects
	case "other-uid":
		response["uid"] = "another"
	case "no-response":
		delete(review, "response")
	case "other-version-of-answer":
		review["apiVersion"] = "apiextensions.k8s.io/v9"
	}
	objects = make([]any, 0, len(r.Request.Objects))
	for _, raw := range r.Request.Objects {
		objects = append(objects, converted(raw, r.Request.DesiredAPIVersion, mode))
	}
	switch mode {
	case "missing":
		objects = objects[:0]
	case "surplus":
		objects = append(objects, objects[0])
	case "not-an-object":
		objects[0] = 7
	}
	response["convertedObjects"] = objects
	return encoded(review), objects
}

func encoded(review map[string]any) []byte {
	body, err := json.Marshal(review)
	if err != nil {
		return []byte(err.Error())
	}
	return body
}

// converted returns an object in another version. Version v1 has spec.color, version v2 has spec.paint.color. A label
// and an annotation contain the name of the version.
func converted(raw json.RawMessage, desired, mode string) any {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return map[string]any{"error": err.Error()}
	}
	to, _ := schema.ParseGroupVersion(desired)
	object.SetAPIVersion(desired)
	if color, found, _ := unstructured.NestedString(object.Object, "spec", "color"); found && to.Version != "v1" {
		unstructured.RemoveNestedField(object.Object, "spec", "color")
		_ = unstructured.SetNestedField(object.Object, color, "spec", "paint", "color")
	} else if color, found, _ := unstructured.NestedString(object.Object, "spec", "paint",
		"color"); found && to.Version == "v1" {
		unstructured.RemoveNestedField(object.Object, "spec", "paint")
		_ = unstructured.SetNestedField(object.Object, color, "spec", "color")
	}
	labels, annotations := object.GetLabels(), object.GetAnnotations()
	if mode != "plain" {
		labels, annotations = with(labels, "version", to.Version), with(annotations, "version", to.Version)
	}
	if mode == "second" {
		annotations = with(annotations, "converter", "second")
	}
	object.SetLabels(labels)
	object.SetAnnotations(annotations)
	spoil(object, mode)
	return object.Object
}

func with(values map[string]string, key, value string) map[string]string {
	if values == nil {
		values = map[string]string{}
	}
	values[key] = value
	return values
}

// spoil changes an object into the invalid response that a mode selects.
func spoil(object *unstructured.Unstructured, mode string) {
	switch mode {
	case "other-kind":
		object.SetKind("Other")
	case "other-name":
		object.SetName("other")
	case "other-namespace":
		object.SetNamespace("other")
	case "other-uid-of-object":
		object.SetUID("another")
	case "same-version":
		object.SetAPIVersion("convert.example.com/v9")
	case "other-metadata":
		object.SetFinalizers([]string{"example.com/added"})
		object.SetGeneration(42)
		object.SetManagedFields(nil)
	case "bad-label":
		object.SetLabels(map[string]string{"not a label": "at all!"})
	case "bad-label-type":
		_ = unstructured.SetNestedField(object.Object, int64(7), "metadata", "labels", "number")
	case "bad-labels":
		_ = unstructured.SetNestedField(object.Object, "text", "metadata", "labels")
	case "bad-annotation":
		object.SetAnnotations(map[string]string{"not an annotation": "x"})
	case "no-metadata":
		delete(object.Object, "metadata")
	case "bad-metadata":
		object.Object["metadata"] = "text"
	case "unknown-field":
		_ = unstructured.SetNestedField(object.Object, "x", "spec", "unknown")
	case "wrong-type":
		object.Object["spec"] = "text"
	}
}

// takeConversions returns the conversions since its last call, in order. Servers repeat conversions and convert results
// back, at times that differ between them. Only the first conversion of an object counts, and only if the object was
// not the result of a conversion before the last call.
func (w *Webhooks) takeConversions() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	var fresh [][]byte
	for _, c := range w.conversions {
		source := canonical(c.Object)
		key := c.Desired + source
		if w.converted[key] || w.converted[source] {
			continue
		}
		w.converted[key] = true
		if one, err := json.Marshal(c); err == nil {
			fresh = append(fresh, one)
		}
	}
	for _, result := range w.results {
		w.converted[result] = true
	}
	w.conversions, w.results = nil, nil
	return fresh
}

// canonical returns the JSON of an object with sorted fields, without the fields that storage adds.
func canonical(object any) string {
	raw, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return string(raw)
	}
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		delete(metadata, "resourceVersion")
	}
	if raw, err = json.Marshal(fields); err != nil {
		return err.Error()
	}
	return string(raw)
}
