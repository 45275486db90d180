package handlers

import (
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestDeleteOptionsAreGuarded sends PartialObjectMetadata, which would be decoded before it is refused, with a label
// that claims what follows it.
func TestDeleteOptionsAreGuarded(t *testing.T) {
	const (
		typeMeta = "\x0a\x27\x0a\x0emeta.k8s.io/v1\x12\x15PartialObjectMetadata"
		metadata = "\x0a\x06\x5a\x02\x0a\x02\x5a\x00"
	)
	r := httptest.NewRequest("DELETE", "/", nil)
	r.Header.Set("Content-Type", runtime.ContentTypeProtobuf)
	c := &call{Handlers: New(Options{}), r: r}
	_, err := c.decodeDeleteOptions([]byte("k8s\x00" + typeMeta + "\x12\x08" + metadata))
	if err == nil || err.Error() != "an entry of a map extends beyond its end" {
		t.Error(err)
	}
}
