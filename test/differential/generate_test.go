package differential

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestGenerate expands a small template for two resources.
func TestGenerate(t *testing.T) {
	template, err := ParseScript("template",
		"--- create\nPOST ${collection}\n\n${object}\n{\"metadata\":{\"labels\":{\"x\":\"${rv}\"}}}\n\n=== A "+
			"heading.\n\n--- ${subresource} of each\n@for each\nGET ${item}/${subresource}\n\n--- of status\n@for status\nGET "+
			"${item}/status\n")
	if err != nil {
		t.Fatal(err)
	}
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	nodes := schema.GroupVersionResource{Group: "a.k8s.io", Version: "v1beta1", Resource: "nodes"}
	scripts, err := Generate(template, []Resource{
		{pods, "Pod", true, []string{"exec", "resize", "status"}, nil, `{"metadata":{"name":"p"},"spec":{"a":1}}`},
		{nodes, "Node", false, nil, nil, ""},
	})
	if err != nil {
		t.Fatal(err)
	}
	type line struct{ script, name, path, body string }
	var got []line
	for _, script := range scripts {
		for _, c := range script.Cases {
			got = append(got, line{script.Name, c.Name, c.Path, c.Body})
		}
	}
	want := []line{
		{"v1 pods", "create", "/api/v1/namespaces/${ns}/pods",
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"differential":"v1-pods","x":"${rv}"},"name":"p"},"spec":{"a":1}}`},
		{"v1 pods", "resize of each", "/api/v1/namespaces/${ns}/pods/p/resize", ""},
		{"v1 pods", "status of each", "/api/v1/namespaces/${ns}/pods/p/status", ""},
		{"v1 pods", "of status", "/api/v1/namespaces/${ns}/pods/p/status", ""},
		{"a.k8s.io/v1beta1 nodes", "create", "/apis/a.k8s.io/v1beta1/nodes",
			`{"apiVersion":"a.k8s.io/v1beta1","kind":"Node","metadata":{"labels":{"differential":"a-v1beta1-nodes","x":"${rv}"},"name":"stub"}}`},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got  %+v\nwant %+v", got[i], want[i])
		}
	}
}

// TestHistories checks that the writes of one script are selected from the writes of several scripts.
func TestHistories(t *testing.T) {
	script := &Script{Name: "s", Cases: []Case{{Method: "POST"}, {Method: "GET"}}}
	answers := []Answer{
		{Code: 201, Body: []byte(`{"metadata":{"uid":"mine","creationTimestamp":"2020-01-01T00:00:00Z"}}`)},
		{Code: 200, Body: []byte(`{"metadata":{"uid":"theirs","creationTimestamp":"2020-01-01T00:00:00Z"}}`)},
	}
	histories := Histories(script, answers, []Write{
		{Key: "/registry/nodes/a", Value: []byte("... mine ...")},
		{Key: "/registry/nodes/b", Value: []byte("... theirs ...")},
		{Key: "/registry/pods/d-s/p", Value: []byte("...")},
		{Key: "/registry/pods/d-so/p", Value: []byte("...")},
		{Key: "/registry/nodes/a"},
	})
	if len(histories) != 2 || len(histories["/registry/nodes/a"]) != 2 || len(histories["/registry/pods/d-s/p"]) != 1 {
		t.Errorf("got %v", histories)
	}
}
