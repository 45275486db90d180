package handlers

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	codecs "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	upstream "k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// FuzzAccept compares negotiation with that of kube-apiserver's RequestScope, for built-in kinds and custom resources.
func FuzzAccept(f *testing.F) {
	for _, header := range []string{
		"", "*/*", "application/*;q=0.5,text/html", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1beta1;g=meta.k8s.io",
		"application/yaml;stream=watch", "application/json;g=meta.k8s.io", "application/json;sv=v1;pretty=1;unknown",
		"application/json;as=", "a/b;;=,", "application/cbor", "application/cbor,application/json;q=0.5",
		"application/cbor;as=Table;v=v1;g=meta.k8s.io,application/cbor", "application/cbor;pretty=1",
		"application/cbor;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/cbor-seq",
		"application/cbor;stream=watch",
	} {
		for _, custom := range []bool{false, true} {
			f.Add(header, custom, false)
			f.Add(header, custom, true)
		}
	}
	withCBOR := codecs.NewCodecFactory(clientscheme.Scheme, codecs.WithSerializer(cbor.NewSerializerInfo))
	f.Fuzz(func(t *testing.T, header string, custom, servesCBOR bool) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage,
			servesCBOR)
		formats := clientscheme.Codecs
		if servesCBOR {
			formats = withCBOR
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Accept"] = []string{header}
		scope := &upstream.RequestScope{
			Serializer: formats, MetaGroupVersion: metav1.SchemeGroupVersion,
			TableConvertor: rest.NewDefaultTableConvertor(schema.GroupResource{Resource: "pods"}),
		}
		definition := &resource.Definition{}
		if custom {
			definition.Source = resource.Custom
			scope.StandardSerializers = slices.DeleteFunc(slices.Clone(formats.SupportedMediaTypes()),
				func(info runtime.SerializerInfo) bool { return info.MediaType == runtime.ContentTypeProtobuf })
		}
		target := resource.Target{Match: resource.Match{Definition: definition}, Endpoint: &resource.Endpoint{}}
		got, err := negotiate(r, target)
		want, info, refused := negotiation.NegotiateOutputMediaType(r, scope.Serializer, scope)
		if (err == nil) != (refused == nil) || (err != nil && err.Error() != refused.Error()) {
			t.Fatalf("error %v, upstream's %v", err, refused)
		}
		if err != nil {
			return
		}
		var kind schema.GroupVersionKind
		if want.Convert != nil {
			kind = *want.Convert
		}
		if mediaTypes()[formatIndex(info)] != got.contentType(false) || kind.GroupVersion() != got.group ||
			(kind.Kind == "Table") != (got.as == table) || (kind.Kind == "PartialObjectMetadataList") != got.list {
			t.Errorf("got %+v, upstream %s as %v", got, info.MediaType, kind)
		}
	})
}

func formatIndex(info runtime.SerializerInfo) int {
	for i, media := range mediaTypes() {
		if media == info.MediaType {
			return i
		}
	}
	return -1
}

// FuzzListOptions compares the options of a query with upstream's. Selectors that pass are within the limits.
func FuzzListOptions(f *testing.F) {
	for _, query := range []string{
		"", "labelSelector=a%3Db,c+in+(d,e)&limit=5", "fieldSelector=metadata.name%3Da,metadata.name!%3Db",
		"labelSelector=!", "limit=x", "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
		"fieldSelector=a%3Db%5C", "labelSelector=,,&fieldSelector=,", "continue=a&resourceVersion=5", "timeoutSeconds=-1",
	} {
		f.Add(query)
	}
	same := func(name, value string) (string, string, error) { return name, value, nil }
	target := resource.Target{Match: resource.Match{Version: &resource.Version{FieldLabel: same}}}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Skip()
		}
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.RawQuery = query
		c := &call{r: r, record: request.Begin(r, time.Now(), logr.Discard()), target: target}
		options, selection, err := c.listOptions()
		var want internalversion.ListOptions
		if refused := internalscheme.ParameterCodec.DecodeParameters(
			values, metav1.SchemeGroupVersion, &want,
		); refused != nil {
			if err == nil {
				t.Fatalf("upstream rejects it: %v", refused)
			}
			return
		}
		if err != nil {
			return // validation rejects more than upstream's decoder
		}
		if (selection.Label == nil) != (want.LabelSelector == nil || want.LabelSelector.Empty()) ||
			options.Limit != want.Limit {
			t.Errorf("got %+v, upstream %+v", options, want)
		}
		if selection.Label != nil && selection.Label.String() != want.LabelSelector.String() {
			t.Errorf("selector %s, upstream's %s", selection.Label, want.LabelSelector)
		}
		if selection.Label != nil && checkLabelSelector(selection.Label) != nil ||
			selection.Field != nil && checkFieldSelector(selection.Field) != nil {
			t.Errorf("accepted a selector that is too large: %.100s", query)
		}
	})
}
