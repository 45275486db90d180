package compatibility

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/test/upstream"
)

// TestListWithSomethingUnreadable stores an object that cannot be decoded behind more data than one flush sends. The
// response must be an error, and not a truncated list.
func TestListWithSomethingUnreadable(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	_, options := upstream.NewOptions(t)
	process, err := upstream.StartQuorate(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{options.Etcd}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server := newServer(t, "quorate", process.Admin)
	const configMaps = "/api/v1/namespaces/default/configmaps"
	note := strings.Repeat("x", 100<<10)
	for i := range 3 {
		server.create(t, configMaps, fmt.Sprintf(`{"metadata":{"name":"object-%d","annotations":{"note":%q}}}`, i, note))
	}
	written, err := client.Put(t.Context(), "/registry/configmaps/default/unreadable", "k8s\x00nonsense")
	if err != nil {
		t.Fatal(err)
	}
	for _, accept := range []string{
		"application/json", "application/json;as=Table;v=v1;g=meta.k8s.io",
		"application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
	} {
		path := fmt.Sprintf("%s?resourceVersion=%d", configMaps, written.Header.Revision)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", accept)
		response, err := server.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Errorf("%s: %v", accept, err)
		}
		var status struct{ Kind string }
		if err := json.Unmarshal(body, &status); err != nil ||
			response.StatusCode != http.StatusInternalServerError || status.Kind != "Status" {
			t.Errorf("%s: %d %.300s", accept, response.StatusCode, body)
		}
	}
}
