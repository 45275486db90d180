package plugin

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
)

// TestFollowedLogHasATail checks that following the operator's log begins with the last lines about the cluster,
// instead of the first ones, and repeats no line.
func TestFollowedLogHasATail(t *testing.T) {
	const about = `"namespace":"default","name":"demo"}`
	var log []string
	for i := range 10 {
		log = append(log, fmt.Sprintf(`2026-01-01T00:00:00.00000000%dZ {"line":%d,%s`, i, i, about))
	}
	log = append(log, `2026-01-01T00:00:01.5Z {"line":10,"name":"other"}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lines := log
		if r.URL.Query().Get("follow") != "" {
			if since := r.URL.Query().Get("sinceTime"); since != "2026-01-01T00:00:01Z" {
				t.Errorf("followed since %q", since)
			}
			lines = append(log[len(log)-1:], `2026-01-01T00:00:01.6Z {"line":11,`+about,
				`2026-01-01T00:00:01.7Z {"line":12,"name":"other"}`)
		}
		fmt.Fprintln(w, strings.Join(lines, "\n"))
	}))
	defer server.Close()
	clientset, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "operator", Labels: map[string]string{desired.NameLabel: desired.OperatorName}},
	}
	pod.Spec.Containers = []corev1.Container{{Name: "operator"}}
	s := source{
		pod, func(line string) bool { return mentions(line, client.ObjectKey{Namespace: "default", Name: "demo"}) },
	}
	for follow, want := range map[bool]string{true: "8,9,11,", false: "8,9,"} {
		var got bytes.Buffer
		err := (&tool{}).printLog(t.Context(), clientset, s, logOptions{follow: follow, tail: 2}, func(line string) {
			number, _, _ := strings.Cut(strings.TrimPrefix(line, `{"line":`), ",")
			got.WriteString(number + ",")
		})
		if err != nil || got.String() != want {
			t.Errorf("follow %t: got %s and %v, want %s", follow, got.String(), err, want)
		}
	}
}
