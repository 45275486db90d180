package openapi

import "slices"

// cborAfter has the media types of CBOR by the media type that precedes each of them in kube-apiserver's lists.
var cborAfter = map[string]string{
	"application/vnd.kubernetes.protobuf":              "application/cbor",
	"application/vnd.kubernetes.protobuf;stream=watch": "application/cbor-seq",
	"application/apply-patch+yaml":                     "application/apply-patch+cbor",
}

// addCBOR adds the media types of CBOR to a document of built-in resources, which the archive contains without them,
// and returns the document. kube-apiserver publishes them with the feature gate CBORServingAndStorage, but not for
// custom resources.
func addCBOR(value any) any {
	switch v := value.(type) {
	case object:
		for key, child := range v {
			v[key] = addCBOR(child)
		}
		for mediaType, added := range cborAfter {
			if content, ok := v[mediaType]; ok {
				v[added] = content
			}
		}
	case []any:
		for i := range v {
			v[i] = addCBOR(v[i])
		}
		for i := len(v) - 1; i >= 0; i-- {
			if name, ok := v[i].(string); ok && cborAfter[name] != "" {
				v = slices.Insert(v, i+1, any(cborAfter[name]))
			}
		}
		return v
	}
	return value
}
