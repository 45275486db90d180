package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/desired"
	"quorate.dev/plugin/overview"
	"quorate.dev/terminal"
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

// logged returns a tool, and its output. The hosting cluster has two API servers of demo, and the operator in another
// namespace. Each log has a line about demo with the query of the request, and a line about another cluster. The log of
// demo-1 cannot be read.
func logged(t *testing.T, funcs interceptor.Funcs) (*tool, *bytes.Buffer) {
	t.Helper()
	pod := func(namespace, name string, labels map[string]string) *corev1.Pod {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
		pod.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "sidecar"}}
		return pod
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "demo-1") {
			http.Error(w, "the node is unreachable", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "2026-01-01T00:00:00Z %s namespace=default name=demo\n", r.URL.RawQuery)
		fmt.Fprintln(w, "2026-01-01T00:00:00Z about another namespace=default name=other")
	}))
	t.Cleanup(server.Close)
	out := &bytes.Buffer{}
	w := terminal.NewWriter(out)
	cluster := map[string]string{desired.ClusterLabel: "demo"}
	return &tool{
		streams: streams{out: w, err: w}, namespace: "default", config: &rest.Config{Host: server.URL},
		client: fake.NewClientBuilder().WithScheme(overview.Scheme()).WithInterceptorFuncs(funcs).WithObjects(
			pod("default", "demo-0", cluster), pod("default", "demo-1", cluster), pod("elsewhere", "demo-0", cluster),
			pod("quorate-system", "operator", map[string]string{desired.NameLabel: desired.OperatorName}),
		).Build(),
	}, out
}

// TestLogs checks which logs are printed, with which limits, and that a log that cannot be read does not hide the
// others.
func TestLogs(t *testing.T) {
	forbidden := interceptor.Funcs{List: func(
		ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption,
	) error {
		if only := (&client.ListOptions{}).ApplyOptions(options); only.Namespace == "" {
			return errors.New("forbidden")
		}
		return c.List(ctx, list, options...)
	}}
	const unreachable = "read the log of pod demo-1: "
	for name, c := range map[string]struct {
		funcs   interceptor.Funcs
		options logOptions
		want    []string // lines, in any order
		err     string
	}{
		"all": {
			options: logOptions{tail: 20}, err: unreachable, want: []string{
				"[demo-0] 2026-01-01T00:00:00Z container=main&tailLines=20 namespace=default name=demo",
				"[demo-0] 2026-01-01T00:00:00Z about another namespace=default name=other",
				"[operator] container=main&timestamps=true namespace=default name=demo",
			},
		},
		"only API servers": {
			options: logOptions{replicas: true, tail: -1, since: 1500 * time.Millisecond, previous: true}, err: unreachable,
			want: []string{
				"[demo-0] 2026-01-01T00:00:00Z container=main&previous=true&sinceSeconds=1 namespace=default name=demo",
				"[demo-0] 2026-01-01T00:00:00Z about another namespace=default name=other",
			},
		},
		"only the operator": {
			options: logOptions{operator: true, tail: 1, since: time.Millisecond},
			want:    []string{"container=main&sinceSeconds=1&timestamps=true namespace=default name=demo"},
		},
		"the whole log of the operator": {
			options: logOptions{operator: true, tail: -1},
			want:    []string{"2026-01-01T00:00:00Z container=main namespace=default name=demo"},
		},
		"without permission to list the operator's pods": {
			funcs: forbidden, options: logOptions{tail: 1}, err: unreachable, want: []string{
				"The operator's log is not printed: forbidden",
				"[demo-0] 2026-01-01T00:00:00Z container=main&tailLines=1 namespace=default name=demo",
				"[demo-0] 2026-01-01T00:00:00Z about another namespace=default name=other",
			},
		},
		"only the operator, without permission": {funcs: forbidden, options: logOptions{operator: true}, err: "forbidden"},
	} {
		tool, out := logged(t, c.funcs)
		err := tool.logs(t.Context(), client.ObjectKey{Namespace: "default", Name: "demo"}, c.options)
		if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %q", name, err, c.err)
		}
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(c.want)); strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
