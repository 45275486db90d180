package leadership_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/leadership"
)

const (
	leases     = "/apis/coordination.k8s.io/v1/leases"
	candidates = "/apis/coordination.k8s.io/v1beta1/leasecandidates"
	// own is the path of the Lease of the controller itself.
	own = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leader-election-controller"
)

// server is an API server with the controller's own Lease and no other objects.
type server struct {
	mu    sync.Mutex
	lease *coordinationv1.Lease
	// listed receives the path of each list.
	listed chan string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch path := r.URL.Path; {
	case r.URL.Query().Get("sendInitialEvents") == "true":
		respond(w, http.StatusUnprocessableEntity, apierrors.NewInvalid(schema.GroupKind{}, "", nil).ErrStatus)
	case r.URL.Query().Get("watch") != "":
		s.mu.Unlock()
		<-r.Context().Done()
		s.mu.Lock()
	case path == leases && r.Method == http.MethodGet:
		respond(w, http.StatusOK, coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		s.listed <- path
	case path == candidates:
		respond(w, http.StatusOK, coordinationv1beta1.LeaseCandidateList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
		s.listed <- path
	case r.Method == http.MethodPost || r.Method == http.MethodPut:
		lease := &coordinationv1.Lease{}
		if err := json.NewDecoder(r.Body).Decode(lease); err != nil {
			respond(w, http.StatusBadRequest, apierrors.NewBadRequest(err.Error()).ErrStatus)
			return
		}
		s.lease = lease
		respond(w, http.StatusOK, lease)
	case path == own && s.lease != nil:
		respond(w, http.StatusOK, s.lease)
	default:
		respond(w, http.StatusNotFound,
			apierrors.NewNotFound(coordinationv1.Resource("leases"), "leader-election-controller").ErrStatus)
	}
}

func respond(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that is gone needs no response.
	_ = json.NewEncoder(w).Encode(object)
}

func timers() config.Leadership {
	return config.Leadership{
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
	}
}

// TestRun: the leader reads all Leases and candidates, and releases its own Lease when it stops.
func TestRun(t *testing.T) {
	t.Parallel()
	s := &server{listed: make(chan string, 100)}
	address := httptest.NewServer(s)
	defer address.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	client := &rest.Config{Host: address.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	go func() { done <- leadership.Run(ctx, client, timers()) }()
	for missing := map[string]bool{leases: true, candidates: true}; len(missing) > 0; {
		select {
		case path := <-s.listed:
			delete(missing, path)
		case err := <-done:
			t.Fatalf("Run returned early: %v", err)
		}
	}
	s.mu.Lock()
	if s.lease == nil || ptr.Deref(s.lease.Spec.HolderIdentity, "") == "" ||
		ptr.Deref(s.lease.Spec.LeaseDurationSeconds, 0) != 15 {
		t.Errorf("got the lease %+v", s.lease)
	}
	s.mu.Unlock()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if holder := ptr.Deref(s.lease.Spec.HolderIdentity, ""); holder != "" {
		t.Errorf("the lease is still held by %s", holder)
	}
}

func TestRunNeedsAClient(t *testing.T) {
	t.Parallel()
	err := leadership.Run(t.Context(), &rest.Config{Host: "https://a:b:c"}, timers())
	if err == nil || !strings.HasPrefix(err.Error(), "create the client of coordinated leader election: ") {
		t.Errorf("got %v", err)
	}
}
