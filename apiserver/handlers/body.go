package handlers

import (
	"fmt"
	"mime"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// contentType returns the media type of the body, or an error if accepted does not contain it. The default is
// accepted[0]. Like kube-apiserver's, the error lists protobuf also for custom resources.
func contentType(r *http.Request, accepted []string) (string, error) {
	header := r.Header.Get("Content-Type")
	if header == "" {
		return accepted[0], nil
	}
	mediaType, _, err := mime.ParseMediaType(header)
	if err != nil || !slices.Contains(accepted, mediaType) {
		return "", negotiation.NewUnsupportedMediaTypeError(mediaTypes())
	}
	return mediaType, nil
}

// codec returns the codec of the endpoint's request and response bodies.
func (c *call) codec() resource.Codec {
	if c.target.Endpoint.Body != nil {
		return c.target.Endpoint.Body
	}
	return c.target.Version.Codec
}

// decodeBody decodes the object in the body of a create or update request.
func (c *call) decodeBody(body []byte, mediaType string, validation resource.FieldValidation) (runtime.Object, error) {
	object, kind, strict, err := c.codec().Decode(body, mediaType, validation)
	if err != nil {
		return nil, c.decodeError(err, kind, body)
	}
	if len(strict) > 0 && validation == resource.Strict {
		return nil, c.decodeError(runtime.NewStrictDecodingError(strict), kind, body)
	}
	change.Warn(c.r.Context(), strict)
	expected, declared := c.target.Endpoint.Kind.GroupVersion(), kind.GroupVersion()
	if declared != expected && !slices.Contains(c.target.Endpoint.Accepts, declared) {
		return nil, apierrors.NewBadRequest(fmt.Sprintf(
			"the API version in the data (%s) does not match the expected API version (%s)", declared, expected))
	}
	c.auditRequest(object, declared)
	return object, nil
}

// decodeError returns kube-apiserver's error for a body that cannot be decoded.
func (c *call) decodeError(err error, kind schema.GroupVersionKind, body []byte) error {
	if apierrors.IsRequestEntityTooLargeError(err) {
		return err
	}
	wanted := c.target.Endpoint.Kind.Kind
	if kind.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf(
			"%s in version %q cannot be handled as a %s: %v", kind.Kind, kind.Version, wanted, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf(
		"the object provided is unrecognized (must be of type %s): %v (%s)", wanted, err, summary(body)))
}

// summary returns the beginning of a body for an error message, in hexadecimal unless the body is JSON.
func summary(body []byte) string {
	const shown = 30
	switch {
	case len(body) == 0:
		return "<empty>"
	case body[0] == '{' && len(body) > shown:
		return string(body[:shown]) + " ..."
	case body[0] == '{':
		return string(body)
	case len(body) > shown:
		return fmt.Sprintf("%x ...", body[:shown])
	}
	return fmt.Sprintf("%x", body)
}

// checkNamespace sets an empty namespace of the object to the namespace in the path, and returns an error if the two
// differ.
func (c *call) checkNamespace(object runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil // a kind without metadata
	}
	expected := rest.ExpectedNamespaceForScope(c.target.Namespace, c.target.Namespaced)
	return rest.EnsureObjectNamespaceMatchesRequestNamespace(expected, accessor)
}
