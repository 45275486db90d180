package compatibility

import (
	"bytes"
	"testing"

	"quorate.dev/test/upstream"
)

// TestMediaTypes runs kube-apiserver, which stores YAML, and Quorate, which stores JSON, on one etcd. Each reads what
// the other has stored.
func TestMediaTypes(t *testing.T) {
	upstream.NeedsProcesses(t)
	both := startServersWith(t, []string{"--storage-media-type=application/yaml"}, []string{
		"--storage-media-type=application/json",
	})
	both.kubernetes.create(t, "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			life(t, k, both.quorate, both.kubernetes)
			life(t, k, both.kubernetes, both.quorate)
		})
	}
	const pods = "/api/v1/namespaces/" + namespace + "/pods"
	for name, server := range map[string]*server{"json": both.quorate, "yaml": both.kubernetes} {
		server.create(t, pods,
			`{"metadata":{"name":"`+name+
				`","labels":{"a":"b"}},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	}
	query := pods + "?labelSelector=a%3Db&fieldSelector=spec.nodeName%3Dn"
	mustEqual(t, "LIST", both.kubernetes.get(t, query)["items"], both.quorate.get(t, query)["items"])
	for name, begins := range map[string]string{
		"json": `{"kind":"Pod","apiVersion":"v1"`, "yaml": "apiVersion: v1\nkind: Pod",
	} {
		response, err := both.etcd.Get(t.Context(), "/registry/pods/"+namespace+"/"+name)
		if err != nil || len(response.Kvs) != 1 || !bytes.HasPrefix(response.Kvs[0].Value, []byte(begins)) {
			t.Errorf("the pod is not stored as %s: %v, %v", name, response, err)
		}
	}
}
