package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typed "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	candidates    = 3
	leaseDuration = 3 * time.Second
	renewDeadline = 2 * time.Second
	retryPeriod   = 300 * time.Millisecond
	// granularity is the resolution of times in the records that candidates compare. A candidate does not notice a renewal
	// in the same second as the previous one, and then counts the lease duration from the previous one.
	granularity = time.Second
)

// election runs candidates of client-go's leader election, each through one server. The check looks at the acknowledged
// writes of the Lease in the order of their revisions. When the holder changes, leaseTransitions must have grown, and
// the last write of the previous holder must have been sent at least a lease duration (less granularity) before the new
// holder's write was acknowledged.
type election struct {
	crew
	writes []leaseWrite
}

// leaseWrite is an acknowledged write of the Lease.
type leaseWrite struct {
	holder      string
	transitions int32
	revision    int64
	sent        time.Time
	returned    time.Time
}

func (w *election) Start(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.Discard()) // discard the log entry of each failure
	for candidate := range candidates {
		server := w.clients[candidate%len(w.clients)]
		elector, err := w.elector(server, fmt.Sprintf("candidate-%d", candidate))
		if err != nil {
			return err
		}
		w.running.Go(func() {
			for ctx.Err() == nil {
				elector.Run(ctx)
			}
		})
	}
	return nil
}

func (w *election) elector(server kubernetes.Interface, name string) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: meta.ObjectMeta{Namespace: "default", Name: "election"}, Client: &leaseRecorder{server, w},
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: name,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
}

// leaseRecorder is a client of Leases that records acknowledged writes.
type leaseRecorder struct {
	server kubernetes.Interface
	*election
}

func (r *leaseRecorder) Leases(namespace string) typed.LeaseInterface {
	return &leaseClient{r.server.CoordinationV1().Leases(namespace), r.election}
}

type leaseClient struct {
	typed.LeaseInterface
	*election
}

func (c *leaseClient) Create(
	ctx context.Context, lease *coordination.Lease, options meta.CreateOptions,
) (*coordination.Lease, error) {
	sent := time.Now()
	got, err := c.LeaseInterface.Create(ctx, lease, options)
	return got, c.record(sent, lease, got, err)
}

func (c *leaseClient) Update(
	ctx context.Context, lease *coordination.Lease, options meta.UpdateOptions,
) (*coordination.Lease, error) {
	sent := time.Now()
	got, err := c.LeaseInterface.Update(ctx, lease, options)
	return got, c.record(sent, lease, got, err)
}

func (w *election) record(sent time.Time, lease, got *coordination.Lease, err error) error {
	if err != nil {
		return err
	}
	revision, err := strconv.ParseInt(got.ResourceVersion, 10, 64)
	if err != nil {
		return err
	}
	w.observe(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, leaseWrite{
		*lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions, revision, sent, time.Now(),
	})
	return nil
}

func (w *election) Check(context.Context) []error {
	slices.SortFunc(w.writes, func(a, b leaseWrite) int { return cmp.Compare(a.revision, b.revision) })
	faults := w.found()
	for i := 1; i < len(w.writes); i++ {
		if err := w.writes[i].follows(w.writes[i-1]); err != nil {
			faults = append(faults, fmt.Errorf("election: revision %d: %w", w.writes[i].revision, err))
		}
	}
	return faults
}

// follows returns an error if the write cannot follow the earlier write before. Writes with an unknown outcome may have
// happened between them.
func (w leaseWrite) follows(before leaseWrite) error {
	switch {
	case w.revision == before.revision:
		return fmt.Errorf("%s and %s have both written it", before.holder, w.holder)
	case w.transitions < before.transitions:
		return fmt.Errorf("%s counts %d transitions after %d", w.holder, w.transitions, before.transitions)
	case w.holder == before.holder:
		return nil
	case w.transitions == before.transitions:
		return fmt.Errorf("%s follows %s without a transition", w.holder, before.holder)
	case w.returned.Sub(before.sent) < leaseDuration-granularity:
		return fmt.Errorf("%s follows %s, which renewed its lease only %v before", w.holder, before.holder,
			w.returned.Sub(before.sent))
	}
	return nil
}
