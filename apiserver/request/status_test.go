package request

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/scheme"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestWriteErrorInCBOR compares a Status in CBOR with upstream's, with and without the feature gate, and in the places
// that do not know CBOR.
func TestWriteErrorInCBOR(t *testing.T) {
	problem := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a")
	for _, on := range []bool{false, true} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.CBORServingAndStorage, on)
		codecs := scheme.Codecs
		if on {
			codecs = serializer.NewCodecFactory(scheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
		}
		r := httptest.NewRequest("GET", "/api/v1/pods", nil)
		r.Header.Set("Accept", "application/cbor")
		got, want, without := httptest.NewRecorder(), httptest.NewRecorder(), httptest.NewRecorder()
		WriteError(got, r, problem)
		WriteErrorWithoutCBOR(without, r, problem)
		responsewriters.ErrorNegotiated(problem, codecs.WithoutConversion(), schema.GroupVersion{Version: "v1"}, want, r)
		if got.Code != want.Code || got.Header().Get("Content-Type") != want.Header().Get("Content-Type") {
			t.Errorf("CBOR %t: got %d %v, want %d %v", on, got.Code, got.Header(), want.Code, want.Header())
		}
		if without.Header().Get("Content-Type") != "application/json" {
			t.Errorf("CBOR %t: got %v from a place without CBOR", on, without.Header())
		}
		if on {
			var ours, theirs metav1.Status
			err := errors.Join(direct.Unmarshal(got.Body.Bytes(), &ours), direct.Unmarshal(want.Body.Bytes(), &theirs))
			if err != nil || ours.Reason != metav1.StatusReasonNotFound || ours.String() != theirs.String() {
				t.Errorf("got %v, want %v: %v", ours, theirs, err)
			}
		}
	}
}

func TestWriteErrorLikeUpstream(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	retry := apierrors.NewTooManyRequests("slow <down>", 7)
	errs := []error{
		apierrors.NewNotFound(pods, "a"), apierrors.NewUnauthorized("Unauthorized"), retry,
		apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", field.ErrorList{
			field.Required(field.NewPath("spec"), "needed"),
		}),
		apierrors.NewConflict(pods, "a", errors.New("it changed")), apierrors.NewTimeoutError("late", 1),
		apierrors.NewInternalError(errors.New("oh")), errors.New("plain & simple"), TimedOut(), ShuttingDown(),
		&apierrors.StatusError{ErrStatus: metav1.Status{Message: "empty"}},
	}
	accepts := []string{
		"", "*/*", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "text/html",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/vnd.kubernetes.protobuf,*/*",
		"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch", "application/json;pretty=1",
		"application/yaml;stream=watch", "application/cbor,application/json",
	}
	for _, err := range errs {
		for _, accept := range accepts {
			for _, agent := range []string{"curl/8", "kubectl/v1"} {
				r := httptest.NewRequest("GET", "/api/v1/pods", nil)
				r.Header.Set("Accept", accept)
				r.Header.Set("User-Agent", agent)
				got, want := httptest.NewRecorder(), httptest.NewRecorder()
				code := WriteError(got, r, err)
				responsewriters.ErrorNegotiated(err, scheme.Codecs.WithoutConversion(), schema.GroupVersion{Version: "v1"}, want, r)
				compare(t, fmt.Sprintf("%v, accept %q, agent %q", err, accept, agent), got, want)
				if code != want.Code {
					t.Errorf("returned code %d, want %d", code, want.Code)
				}
			}
		}
	}
}

func compare(t *testing.T, what string, got, want *httptest.ResponseRecorder) {
	t.Helper()
	if got.Code != want.Code || got.Body.String() != want.Body.String() {
		t.Errorf("%s\n got %d %q\nwant %d %q", what, got.Code, got.Body, want.Code, want.Body)
	}
	if !maps.EqualFunc(got.Header(), want.Header(), func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Errorf("%s\n got headers %v\nwant headers %v", what, got.Header(), want.Header())
	}
}

func TestStatusOfWrappedErrors(t *testing.T) {
	if s := StatusOf(
		fmt.Errorf("read: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a")),
	); s.Code != 404 {
		t.Errorf("wrapped not found: %+v", s)
	}
	if s := StatusOf(fmt.Errorf("read: %w", context.DeadlineExceeded)); s.Code != 504 ||
		s.Reason != metav1.StatusReasonTimeout {
		t.Errorf("deadline: %+v", s)
	}
	if s := StatusOf(&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusSuccess}}); s.Code != 200 {
		t.Errorf("success: %+v", s)
	}
}

func TestForbiddenLikeUpstream(t *testing.T) {
	who := &user.DefaultInfo{Name: "<alice> & co"}
	for _, attributes := range []*authorizer.AttributesRecord{
		{User: who, Verb: "list", Resource: "pods", ResourceRequest: true},
		{User: who, Verb: "get", Resource: "pods", Namespace: "a", Name: "b", ResourceRequest: true},
		{
			User: who, Verb: "get", APIGroup: "apps", Resource: "deployments", Subresource: "scale", Namespace: "a",
			Name: "b", ResourceRequest: true,
		},
		{User: who, Verb: "get", Path: "/metrics/<x>"},
		{Verb: "get", Path: "/metrics"},
	} {
		for _, reason := range []string{"", "RBAC: because <so>"} {
			got, want := Forbidden(attributes, reason), responsewriters.ForbiddenStatusError(attributes, reason)
			if fmt.Sprintf("%+v", got.ErrStatus) != fmt.Sprintf("%+v", want.ErrStatus) {
				t.Errorf("got %+v, want %+v", got.ErrStatus, want.ErrStatus)
			}
		}
	}
}

func TestInternalErrorLikeUpstream(t *testing.T) {
	r := httptest.NewRequest("GET", "/<a>?b=\"c\"", nil)
	got, want := httptest.NewRecorder(), httptest.NewRecorder()
	WriteInternalError(got, r, errors.New("no & more"))
	responsewriters.InternalError(want, r, errors.New("no & more"))
	compare(t, "internal error", got, want)
}

func FuzzWarningsLikeUpstream(f *testing.F) {
	f.Add("a", "first", uint16(1), uint16(1))
	f.Add("", "long ü", uint16(500), uint16(20))
	f.Add("bad agent", "x", uint16(4096), uint16(3))
	f.Add("-", "ab\x00", uint16(1), uint16(1))
	f.Fuzz(func(t *testing.T, agent, text string, repeat, count uint16) {
		got, want := httptest.NewRecorder(), httptest.NewRecorder()
		var ours Warnings
		ours.To(got)
		filters.WithWarningRecorder(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for i := range count % 64 {
				long := fmt.Sprint(i % 40) // some come twice
				for range repeat % 1200 {
					long += text
				}
				warning.AddWarning(r.Context(), agent, long)
				ours.AddWarning(agent, long)
			}
		})).ServeHTTP(want, httptest.NewRequest("GET", "/", nil))
		if fmt.Sprint(got.Header()) != fmt.Sprint(want.Header()) {
			t.Errorf("got %q\nwant %q", got.Header(), want.Header())
		}
	})
}

// A client that goes away is no error of the server.
func TestErrorsAreLoggedUnlessTheClientHasGone(t *testing.T) {
	for _, gone := range []bool{false, true} {
		logged := 0
		logger := funcr.New(func(_, _ string) { logged++ }, funcr.Options{})
		ctx, cancel := context.WithCancel(logr.NewContext(t.Context(), logger))
		r := httptest.NewRequest("GET", "/api/v1/pods", nil).WithContext(ctx)
		if gone {
			cancel()
		}
		WriteError(httptest.NewRecorder(), r, fmt.Errorf("read: %w", context.Canceled))
		cancel()
		if (logged == 0) != gone {
			t.Errorf("client gone %v: %d lines are logged", gone, logged)
		}
	}
}
