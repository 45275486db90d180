package limits

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// webhook is an authorization webhook that answers when it is released.
type webhook struct {
	active, most atomic.Int64
	release      chan struct{}
}

func (w *webhook) ServeHTTP(response http.ResponseWriter, r *http.Request) {
	review := &authorization.SubjectAccessReview{}
	if err := json.NewDecoder(r.Body).Decode(review); err != nil {
		http.Error(response, err.Error(), http.StatusBadRequest)
		return
	}
	if review.Spec.User == "system:anonymous" {
		active := w.active.Add(1)
		for most := w.most.Load(); active > most && !w.most.CompareAndSwap(most, active); {
			most = w.most.Load()
		}
		<-w.release
		w.active.Add(-1)
	}
	review.Status = authorization.SubjectAccessReviewStatus{Allowed: false}
	response.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(response).Encode(review)
}

// TestAnonymousClientsCannotFloodAuthorization sends requests without credentials while the authorization webhook does
// not answer: the calls that wait for it are bounded by the seats of the priority level, and the other requests are
// refused.
func TestAnonymousClientsCannotFloodAuthorization(t *testing.T) {
	hook := &webhook{release: make(chan struct{})}
	listener := httptest.NewServer(hook)
	defer listener.Close()
	file := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	config := api.NewConfig()
	config.Clusters["webhook"] = &api.Cluster{Server: listener.URL}
	config.AuthInfos["server"] = &api.AuthInfo{}
	config.Contexts["webhook"] = &api.Context{Cluster: "webhook", AuthInfo: "server"}
	config.CurrentContext = "webhook"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	const requests, seats = 200, 60
	s := start(t, []string{
		"--authorization-mode=Webhook", "--authorization-webhook-config-file=" + file, "--authorization-webhook-version=v1",
		"--max-requests-inflight=40", "--max-mutating-requests-inflight=20",
	})
	var finished atomic.Int64
	var running sync.WaitGroup
	defer running.Wait()
	defer close(hook.release)
	for i := range requests {
		running.Go(func() {
			_, _, _ = get(t.Context(), s.anonymous(), fmt.Sprintf("%s/api/v1/namespaces/default/configmaps/%d", s.Admin.Host, i))
			finished.Add(1)
		})
	}
	await(t, "all requests wait for the webhook, wait for a seat, or are refused", func(context.Context) bool {
		waiting := s.metric(t, "apiserver_flowcontrol_current_inqueue_requests")
		return hook.active.Load()+finished.Load()+int64(waiting) >= requests
	})
	t.Logf("%d concurrent calls of the webhook", hook.most.Load())
	if most := hook.most.Load(); most > seats {
		t.Errorf("%d concurrent calls of the webhook by clients without credentials; the server has %d seats", most, seats)
	}
}
