package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

// WriteError responds with the Status of an error, in a format that the client accepts. It returns the status code.
func WriteError(w http.ResponseWriter, r *http.Request, err error) int {
	status := StatusOf(err)
	var known apierrors.APIStatus
	// A disconnected client is not an error of the server.
	gone := errors.Is(err, context.Canceled) && r.Context().Err() != nil
	if status.Code >= http.StatusInternalServerError && !errors.As(err, &known) && !gone {
		logr.FromContextOrDiscard(r.Context()).Error(err, "Request failed", "method", r.Method, "path", r.URL.Path)
	}
	return WriteStatus(w, r, status)
}

// WriteTextError does the same as WriteError on paths that do not support protobuf.
func WriteTextError(w http.ResponseWriter, r *http.Request, err error) {
	writeStatus(w, r, StatusOf(err), statusFormats{noProtobuf: true})
}

// WriteErrorWithoutCBOR does the same as WriteError, but never in CBOR. crdHandler of apiextensions-apiserver writes
// such errors if a custom resource has no route for the request, and so does the discovery of its version.
func WriteErrorWithoutCBOR(w http.ResponseWriter, r *http.Request, err error) {
	writeStatus(w, r, StatusOf(err), statusFormats{noCBOR: true})
}

// WriteStatus responds with a Status in a format that the client accepts. It returns the status code.
func WriteStatus(w http.ResponseWriter, r *http.Request, status *metav1.Status) int {
	return writeStatus(w, r, status, statusFormats{})
}

func writeStatus(w http.ResponseWriter, r *http.Request, status *metav1.Status, formats statusFormats) int {
	_, span := StartSpan(r.Context(), "SerializeObject")
	defer span.End()
	code := int(status.Code)
	if status.Details != nil && status.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(status.Details.RetryAfterSeconds)))
	}
	if code == http.StatusNoContent {
		w.WriteHeader(code)
		return code
	}
	_, info, err := negotiation.NegotiateOutputMediaType(r, formats, negotiation.DefaultEndpointRestrictions)
	if err != nil {
		if code >= http.StatusOK && code < http.StatusBadRequest {
			status = StatusOf(err)
		}
		writeRaw(w, int(status.Code), status)
		return int(status.Code)
	}
	From(r.Context()).AuditStatus(status)
	w.Header().Set("Content-Type", info.MediaType)
	w.WriteHeader(code)
	if err := info.Serializer.Encode(status, w); err != nil {
		logr.FromContextOrDiscard(r.Context()).V(2).Info("Writing a status failed", "error", err.Error())
	}
	return code
}

// writeRaw responds with a Status in JSON if the client accepts no supported format.
func writeRaw(w http.ResponseWriter, code int, status *metav1.Status) {
	body, err := json.MarshalIndent(status, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// StatusOf returns the Status of an error: its own Status if it is an APIStatus, a timeout if it is an exceeded
// deadline, otherwise an internal error with the text of the error.
func StatusOf(err error) *metav1.Status {
	var status metav1.Status
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &known):
		status = known.Status()
	case errors.Is(err, context.DeadlineExceeded):
		status = TimedOut().Status()
	default:
		status = metav1.Status{Code: http.StatusInternalServerError, Message: err.Error()}
	}
	if status.Status == "" {
		status.Status = metav1.StatusFailure
	}
	if status.Code == 0 {
		status.Code = http.StatusInternalServerError
		if status.Status == metav1.StatusSuccess {
			status.Code = http.StatusOK
		}
	}
	status.Kind, status.APIVersion = "Status", "v1"
	return &status
}

// Generic returns the error for a status code that is not related to a resource.
func Generic(code int) *apierrors.StatusError {
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false)
}

// TimedOut returns the error for a request that has exceeded its deadline.
func TimedOut() *apierrors.StatusError {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// ShuttingDown returns the error for a request that is received while the server shuts down.
func ShuttingDown() *apierrors.StatusError {
	return apierrors.NewServiceUnavailable("apiserver is shutting down")
}

// WriteInternalError responds with 500 and plain text, as kube-apiserver's responsewriters.InternalError does.
func WriteInternalError(w http.ResponseWriter, r *http.Request, err error) {
	logr.FromContextOrDiscard(r.Context()).Error(err, "Request failed", "method", r.Method, "path", r.URL.Path)
	text := fmt.Sprintf("Internal Server Error: %q: %v", r.RequestURI, err)
	http.Error(w, escapeHTML.Replace(text), http.StatusInternalServerError)
}

// escapeHTML escapes messages that quote the request, so that browsers do not interpret them as HTML.
var escapeHTML = strings.NewReplacer(`&`, "&amp;", `<`, "&lt;", `>`, "&gt;")

// Forbidden returns the error for a request that the authorizer has denied. reason may be empty.
func Forbidden(attributes authorizer.Attributes, reason string) *apierrors.StatusError {
	message := escapeHTML.Replace(refusal(attributes))
	if reason != "" {
		message += ": " + reason
	}
	resource := schema.GroupResource{Group: attributes.GetAPIGroup(), Resource: attributes.GetResource()}
	return apierrors.NewForbidden(resource, attributes.GetName(), errors.New(message))
}

func refusal(attributes authorizer.Attributes) string {
	name := ""
	if who := attributes.GetUser(); who != nil {
		name = who.GetName()
	}
	if !attributes.IsResourceRequest() {
		return fmt.Sprintf("User %q cannot %s path %q", name, attributes.GetVerb(), attributes.GetPath())
	}
	resource := attributes.GetResource()
	if attributes.GetSubresource() != "" {
		resource += "/" + attributes.GetSubresource()
	}
	where := "at the cluster scope"
	if namespace := attributes.GetNamespace(); namespace != "" {
		where = fmt.Sprintf("in the namespace %q", namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", name, attributes.GetVerb(), resource,
		attributes.GetAPIGroup(), where)
}

// statusFormats has the media types for a Status. The encoders need no scheme, because a Status has its kind set.
type statusFormats struct {
	// noProtobuf and noCBOR leave out a media type.
	noProtobuf, noCBOR bool
}

func (f statusFormats) SupportedMediaTypes() []runtime.SerializerInfo {
	all := []runtime.SerializerInfo{
		{
			MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json", EncodesAsText: true,
			Serializer: jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{}),
			PrettySerializer: jsonserializer.NewSerializerWithOptions(nil, nil, nil,
				jsonserializer.SerializerOptions{Pretty: true}),
			StreamSerializer: &runtime.StreamSerializerInfo{},
		},
		{
			MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml", EncodesAsText: true,
			Serializer: jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{Yaml: true}),
		},
		{
			MediaType: runtime.ContentTypeProtobuf, MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf",
			Serializer:       protobuf.NewSerializer(nil, nil),
			StreamSerializer: &runtime.StreamSerializerInfo{},
		},
	}
	if f.noProtobuf {
		all = slices.DeleteFunc(all, func(info runtime.SerializerInfo) bool { return !info.EncodesAsText })
	}
	if ServesCBOR() && !f.noCBOR {
		all = append(all, cbor.NewSerializerInfo(nil, nil))
	}
	return all
}

func (statusFormats) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}

func (statusFormats) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}
