package differential

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// compaction is a list on one server whose revision has been compacted.
type compaction struct {
	server              *Server
	path                string
	token               string // continue token of the second page
	revision, compacted string
}

// compact reads the first page of a list, changes the listed objects, and compacts the etcds of both servers as their
// compactors do. It must run after all scripts that read the compacted revisions.
func compact(t *testing.T, pair *Pair) []*compaction {
	t.Helper()
	script, err := ParseScript("compaction", `
--- a
POST /api/v1/namespaces/${ns}/configmaps

{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}

--- b
POST /api/v1/namespaces/${ns}/configmaps

{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}

--- page
GET /api/v1/namespaces/${ns}/configmaps?limit=1

--- c
POST /api/v1/namespaces/${ns}/configmaps

{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}
`)
	if err != nil {
		t.Fatal(err)
	}
	var all []*compaction
	for _, server := range []*Server{pair.Upstream, pair.Ours} {
		answers, err := Run(t.Context(), server, script)
		if err != nil {
			t.Fatal(err)
		}
		var page, last metav1.PartialObjectMetadataList
		for i, into := range []*metav1.PartialObjectMetadataList{&page, &last} {
			if err := json.Unmarshal(answers[2+i].Body, into); err != nil {
				t.Fatal(err)
			}
		}
		c := &compaction{
			server, "/api/v1/namespaces/" + script.namespace() + "/configmaps", page.Continue,
			page.ResourceVersion, last.ResourceVersion,
		}
		if err := c.compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	return all
}

// compact runs one compaction.
func (c *compaction) compact(ctx context.Context) error {
	revision, err := strconv.ParseInt(c.compacted, 10, 64)
	if err != nil {
		return err
	}
	if _, err := c.server.Etcd.client.Put(ctx, "compact_rev_key", c.compacted); err != nil {
		return err
	}
	_, err = c.server.Etcd.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	return err
}

// compareCompacted compares the remaining pages of the lists.
func compareCompacted(t *testing.T, all []*compaction) {
	var seen [2][]string
	for i, c := range all {
		expired := func(ctx context.Context) (bool, error) {
			answer, err := c.get(ctx, "?limit=1&continue="+c.token)
			return err == nil && answer.Code == http.StatusGone, err
		}
		if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, expired); err != nil {
			t.Fatalf("%s: continue the list: %v", c.server.Name, err)
		}
		token := ""
		for _, query := range []string{"?limit=1&continue=" + c.token, "?limit=1&continue=",
			"?resourceVersion=" + c.revision + "&resourceVersionMatch=Exact", "?limit=1&resourceVersion=" + c.revision,
			"?resourceVersion=" + c.compacted + "&resourceVersionMatch=Exact",
			"?resourceVersion=" + c.revision + "&resourceVersionMatch=NotOlderThan"} {
			if query == "?limit=1&continue=" {
				query += token
			}
			answer, err := c.get(t.Context(), query)
			if err != nil {
				t.Fatal(err)
			}
			if answer.Code != 0 {
				token = answer.Continue
			}
			seen[i] = append(seen[i], answer.String())
		}
		watched, err := c.exchange(t.Context(), "?watch=1&timeoutSeconds=1&resourceVersion="+c.revision)
		if err != nil {
			t.Fatal(err)
		}
		var event metav1.WatchEvent
		if err := json.Unmarshal(watched.Body, &event); err != nil {
			t.Fatal(err)
		}
		seen[i] = append(seen[i],
			fmt.Sprintf("%d %s, of c: %v", watched.Code, event.Type, bytes.Contains(event.Object.Raw, []byte(`"name":"c"`))))
	}
	if difference := cmp.Diff(seen[0], seen[1]); difference != "" {
		t.Errorf("(- kube-apiserver, + ours)\n%s", difference)
	}
}

// compactedAnswer is a response that is a Status or a list.
type compactedAnswer struct {
	metav1.Status
	Items []metav1.PartialObjectMetadata
}

func (a *compactedAnswer) String() string {
	text := fmt.Sprintf("%d %s %q, continue: %v, remaining: %v;", a.Code, a.Reason, a.Message, a.Continue != "",
		a.RemainingItemCount != nil)
	for _, item := range a.Items {
		text += " " + item.Name
	}
	return text
}

func (c *compaction) get(ctx context.Context, query string) (*compactedAnswer, error) {
	answer, err := c.exchange(ctx, query)
	if err != nil {
		return nil, err
	}
	decoded := &compactedAnswer{}
	return decoded, json.Unmarshal(answer.Body, decoded)
}

func (c *compaction) exchange(ctx context.Context, query string) (*Answer, error) {
	r := &run{server: c.server}
	return r.exchange(ctx, &Case{Method: http.MethodGet, Path: c.path + query})
}
