package filters

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// heldAuthorizer counts the calls that wait in it.
type heldAuthorizer struct {
	active, most atomic.Int64
	release      chan struct{}
}

func (a *heldAuthorizer) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	active := a.active.Add(1)
	for most := a.most.Load(); active > most && !a.most.CompareAndSwap(most, active); {
		most = a.most.Load()
	}
	<-a.release
	a.active.Add(-1)
	return authorizer.DecisionNoOpinion, "", nil
}

// TestAuthorizationTakesSeats sends requests that an authorizer decides slowly. Those that have no seat are rejected
// without a call of the authorizer; they also are when an extension API server owns their path.
func TestAuthorizationTakesSeats(t *testing.T) {
	delegate := func(context.Context, string) http.Handler { return http.NotFoundHandler() }
	for name, change := range map[string]func(*Options){
		"limits":    func(o *Options) { o.MaxRequestsInFlight = 3 },
		"delegated": func(o *Options) { o.MaxRequestsInFlight, o.Delegate = 3, delegate },
		"fairness":  fair(t, append(suggested(), narrow()...)...),
	} {
		t.Run(name, func(t *testing.T) {
			const requests, seats = 40, 4
			slow := &heldAuthorizer{release: make(chan struct{})}
			f := start(t, false, func(o *Options) { change(o); o.Authorizer = slow },
				func(http.ResponseWriter, *http.Request) {})
			if name == "fairness" {
				close(slow.release)
				eventuallyTrue(t, func() bool {
					response, _ := f.get(t, "GET", podsPath, "alice")
					return response.Header.Get(schemaHeader) == "schema-uid"
				})
				slow.release = make(chan struct{})
			}
			var refused atomic.Int64
			var sent sync.WaitGroup
			for range requests {
				sent.Go(func() {
					if f.code(t, podsPath, "alice") == http.StatusTooManyRequests {
						refused.Add(1)
					}
				})
			}
			eventuallyTrue(t, func() bool { return slow.active.Load()+refused.Load() == requests })
			if most := slow.most.Load(); most > seats {
				t.Errorf("%d requests were authorized concurrently", most)
			}
			close(slow.release)
			sent.Wait()
		})
	}
}

// TestDelegatedRequestsHoldNoSeat has an extension API server respond slowly.
func TestDelegatedRequestsHoldNoSeat(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := start(t, false, func(o *Options) {
		o.MaxRequestsInFlight = 1
		o.Delegate = func(_ context.Context, path string) http.Handler {
			if path == podsPath {
				return http.NotFoundHandler()
			}
			return nil
		}
	}, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == podsPath {
			entered <- struct{}{}
			<-release
		}
	})
	var sent sync.WaitGroup
	defer sent.Wait()
	defer close(release)
	for range 3 {
		sent.Go(func() { f.get(t, "GET", podsPath, "alice") })
		<-entered
	}
	if code := f.code(t, "/api/v1/nodes", "bob"); code != http.StatusOK {
		t.Errorf("a request of this server: %d", code)
	}
}
