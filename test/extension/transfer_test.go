package extension

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// transfers checks that a definition with the transfer annotation serves its objects to administrators only, and
// stores them unchanged.
func transfers(s *fixture) {
	s.namespaced("transfers")
	admin := s.administrator()
	definitions := dynamic.NewForConfigOrDie(admin).Resource(crds)
	annotate := func(value string) {
		s.Helper()
		patch := []byte(`{"metadata":{"annotations":{"quorate.dev/transfer":` + value + `}}}`)
		if _, err := definitions.Patch(
			s.Context(), "widgets.demo.example.com", types.MergePatchType, patch, metav1.PatchOptions{},
		); err != nil {
			s.Fatal(err)
		}
	}
	const object = `{"apiVersion":"demo.example.com/v1","kind":"Widget","metadata":{"name":"a","namespace":"transfers","uid":"UID",` +
		`"creationTimestamp":"2020-01-02T03:04:05Z","generation":7,"finalizers":["x/y"],"deletionTimestamp":"2021-01-02T03:04:05Z",` +
		`"deletionGracePeriodSeconds":0},"spec":{"size":1},"status":{"ready":true}}`
	const path = "/apis/demo.example.com/v1/namespaces/transfers/widgets/a"
	reader := s.direct(0)
	reader.BearerToken = s.token("quorate-extension")
	editor := s.direct(0)
	editor.BearerToken = s.account("transfer-editor",
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{widgets.Group}, Resources: []string{"widgets"}})
	expect := func(client *rest.Config, method, path, body string, marked bool, want int) string {
		s.Helper()
		code, response := s.send(client, method, path, body, marked)
		if code != want {
			s.Errorf("%s %s %s (marked %v): got %d %s, want %d", method, path, body, marked, code, response, want)
		}
		return response
	}
	expect(admin, http.MethodPut, path, object, true, http.StatusNotFound) // an ordinary update

	watched := must(s.objects.Resource(widgets).Watch(s.Context(), metav1.ListOptions{}))(s)
	defer watched.Stop()
	annotate(`"test"`)
	deadline := time.After(waitTimeout)
	for open := true; open; {
		select {
		case _, open = <-watched.ResultChan():
		case <-deadline:
			s.Fatal("a watch does not end with the begin of a transfer")
		}
	}
	if _, err := s.objects.Resource(widgets).List(
		s.Context(), metav1.ListOptions{},
	); !apierrors.IsServiceUnavailable(err) {
		s.Errorf("a list through the host: %v, want 503", err)
	}
	expect(admin, http.MethodGet, path, "", false, http.StatusServiceUnavailable)
	expect(reader, http.MethodPut, path, object, true, http.StatusForbidden)
	expect(editor, http.MethodPut, path, object, true, http.StatusServiceUnavailable)
	expect(editor, http.MethodGet, path, "", true, http.StatusServiceUnavailable)
	expect(admin, http.MethodGet, path, "", true, http.StatusNotFound)
	expect(admin, http.MethodPut, path, strings.Replace(object, `"uid":"UID",`, "", 1), true,
		http.StatusUnprocessableEntity)
	expect(admin, http.MethodPut, path, strings.Replace(object, `"size"`, `"unknown"`, 1), true, http.StatusBadRequest)
	expect(admin, http.MethodPut, path, strings.Replace(object, `"a"`, `"b"`, 1), true, http.StatusBadRequest)
	expect(admin, http.MethodPut, path, "{", true, http.StatusBadRequest)
	expect(admin, http.MethodPost, strings.TrimSuffix(path, "/a"), object, true, http.StatusServiceUnavailable)
	expect(admin, http.MethodPut, path, object, true, http.StatusCreated)
	expect(admin, http.MethodPut, path, object, true, http.StatusOK)
	expect(admin, http.MethodPut, path, strings.Replace(object, "UID", "other", 1), true, http.StatusConflict)
	got := expect(admin, http.MethodGet, path, "", true, http.StatusOK)
	for _, part := range []string{
		`"uid":"UID"`, `"generation":7`, `"deletionTimestamp":"2021-01-02T03:04:05Z"`, `"ready":true`,
		`"creationTimestamp":"2020-01-02T03:04:05Z"`,
	} {
		if !strings.Contains(got, part) {
			s.Errorf("%s is missing in %s", part, got)
		}
	}
	expect(admin, http.MethodDelete, path, "{}", true, http.StatusBadRequest)
	expect(admin, http.MethodDelete, path, `{"preconditions":{"uid":"other"}}`, true, http.StatusConflict)
	expect(admin, http.MethodDelete, path, `{"preconditions":{"uid":"UID","resourceVersion":"1"}}`,
		true, http.StatusConflict)
	expect(admin, http.MethodDelete, path, `{"preconditions":{"uid":"UID"}}`, true, http.StatusOK)
	expect(admin, http.MethodDelete, path, `{"preconditions":{"uid":"UID"}}`, true, http.StatusNotFound)

	annotate("null")
	s.awaitAvailable()
	expect(admin, http.MethodPut, path, object, true, http.StatusNotFound)
}

// send sends a request, with the header of a transfer if it is marked.
func (s *fixture) send(client *rest.Config, method, path, body string, marked bool) (int, string) {
	s.Helper()
	request := must(http.NewRequestWithContext(s.Context(), method, client.Host+path, bytes.NewBufferString(body)))(s)
	request.Header.Set("Content-Type", "application/json")
	if marked {
		request.Header.Set("Quorate-Transfer", "true")
	}
	response := must(must(rest.HTTPClientFor(client))(s).Do(request))(s)
	defer response.Body.Close()
	return response.StatusCode, string(must(io.ReadAll(response.Body))(s))
}
