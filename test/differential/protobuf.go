package differential

import (
	"encoding/json"
	"fmt"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

const protobufType = "application/vnd.kubernetes.protobuf"

// kinds is the result of newScheme.
var kinds = sync.OnceValues(newScheme)

// newScheme returns a scheme with all kinds that scripts send or receive in protobuf.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientscheme.AddToScheme, apiextensionsv1.AddToScheme, apiregistrationv1.AddToScheme, metav1.AddMetaToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	return scheme, nil
}

// protobufBody encodes an object in JSON or YAML as protobuf.
func protobufBody(text []byte) ([]byte, error) {
	scheme, err := kinds()
	if err != nil {
		return nil, err
	}
	object, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("body to send as protobuf: %w", err)
	}
	return runtime.Encode(protobuf.NewSerializer(scheme, scheme), object)
}

// protobufJSON decodes a protobuf body to JSON.
func protobufJSON(body []byte) ([]byte, error) {
	scheme, err := kinds()
	if err != nil {
		return nil, err
	}
	object, kind, err := protobuf.NewSerializer(scheme, scheme).Decode(body, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("protobuf body: %w", err)
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	return json.Marshal(object)
}

// eventJSON decodes a protobuf watch event to JSON.
func eventJSON(frame []byte) ([]byte, error) {
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame); err != nil {
		return nil, fmt.Errorf("protobuf event: %w", err)
	}
	object, err := protobufJSON(event.Object.Raw)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{"type": event.Type, "object": json.RawMessage(object)})
}
