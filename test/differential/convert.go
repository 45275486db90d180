package differential

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// conversion is one object that a server sent to a conversion webhook, as it is compared.
var rawCalls = false

type conversion struct {
	Version string          `json:"version"` // of ConversionReview
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

// servesConversion reports whether a path is that of a conversion webhook.
func servesConversion(path string) bool { return strings.HasPrefix(path, "/convert") }

// convert answers a ConversionReview as the mode asks for.
func (w *Webhooks) convert(writer http.ResponseWriter, r *http.Request, body []byte) {
	var review conversionReview
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(writer, err.Error(), http.StatusBadRequest)
		return
	}
	w.mu.Lock()
	mode := w.mode
	for _, object := range review.Request.Objects {
		w.conversions = append(w.conversions, conversion{
			Version: review.APIVersion, Desired: review.Request.DesiredAPIVersion, Object: object,
		})
	}
	w.mu.Unlock()
	if fixed := strings.Trim(strings.TrimPrefix(r.URL.Path, "/convert"), "/"); fixed != "" {
		mode = fixed
	}
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
	case "redirect":
		http.Redirect(writer, r, "/convert/good", http.StatusTemporaryRedirect)
		return
	}
	writer.Header().Set("Content-Type", "application/json")
	_, _ = writer.Write(review.answer(mode))
}

// answer is the body of the answer in a mode.
func (r *conversionReview) answer(mode string) []byte {
	switch mode {
	case "garbage":
		return []byte("this is no JSON")
	case "nothing":
		return nil
	case "null":
		return []byte("null")
	case "huge":
		return bytes.Repeat([]byte(" "), 10<<20)
	case "other-kind-of-answer":
		return []byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}`)
	}
	response := map[string]any{"uid": r.Request.UID, "result": map[string]any{"status": "Success"}}
	review := map[string]any{"kind": "ConversionReview", "apiVersion": r.APIVersion, "response": response}
	switch mode {
	case "failed":
		response["result"] = map[string]any{"status": "Failed", "message": "the converter refuses"}
		return encoded(review)
	case "failed-silently":
		response["result"] = map[string]any{"status": "Failed"}
		return encoded(review)
	case "other-uid":
		response["uid"] = "another"
	case "no-response":
		delete(review, "response")
	case "other-version-of-answer":
		review["apiVersion"] = "apiextensions.k8s.io/v9"
	}
	objects := make([]any, 0, len(r.Request.Objects))
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
	return encoded(review)
}

func encoded(review map[string]any) []byte {
	body, err := json.Marshal(review)
	if err != nil {
		return []byte(err.Error())
	}
	return body
}

// converted is an object in another version. Version v1 has spec.color, version v2 has spec.paint.color. A label and an
// annotation name the version.
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
	} else if color, found, _ := unstructured.NestedString(object.Object, "spec", "paint", "color"); found && to.Version == "v1" {
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

// spoil makes an object the wrong answer that a mode is for.
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

// takeConversions returns the distinct conversions since the last time, in the order of what was converted: servers
// convert at different moments, and more or less often. Without Version, they are those of every review.
func (w *Webhooks) takeConversions() [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all [][]byte
	for _, c := range w.conversions {
		one, err := json.Marshal(c)
		if err != nil {
			continue
		}
		all = append(all, one)
	}
	w.conversions = nil
	if rawCalls {
		return all
	}
	slices.SortFunc(all, bytes.Compare)
	return slices.CompactFunc(all, bytes.Equal)
}

// setMode sets how conversion webhooks answer.
func (w *Webhooks) setMode(mode string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mode = mode
}
