package hollow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/measure/samples"
	"quorate.dev/test/scale/wire"
)

const (
	leases       = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	leaseSeconds = 40 // of kubelets
)

// Reasons for which the server rejects requests for a lease.
var (
	errConflict = errors.New("the lease has changed")
	errNotFound = errors.New("the lease does not exist")
)

// lease is the lease of a node.
type lease struct {
	name     string
	revision string // "": the lease is not known yet
}

// encode returns the encoded lease, renewed now.
func (l *lease) encode(now time.Time) []byte {
	seconds, renewed := int32(leaseSeconds), meta.NewMicroTime(now)
	return samples.Protobuf(&coordination.Lease{
		TypeMeta:   meta.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
		ObjectMeta: meta.ObjectMeta{Name: l.name, Namespace: "kube-node-lease", ResourceVersion: l.revision},
		Spec: coordination.LeaseSpec{
			HolderIdentity: &l.name, LeaseDurationSeconds: &seconds, RenewTime: &renewed,
		},
	})
}

// renew updates the lease. If it is not known, renew reads it, and creates it if it does not exist.
func (n *Node) renew(ctx context.Context) error {
	if n.lease.revision == "" {
		err := n.exchangeLease(ctx, wire.Request{Method: http.MethodGet, Path: leases + "/" + n.name})
		if err != nil && !errors.Is(err, errNotFound) {
			return err
		}
	}
	r := wire.Request{Method: http.MethodPut, Path: leases + "/" + n.name, ContentType: wire.Protobuf}
	if n.lease.revision == "" {
		r.Method, r.Path = http.MethodPost, leases
	}
	r.Body = n.lease.encode(time.Now())
	err := n.exchangeLease(ctx, r)
	if err != nil {
		n.lease.revision = "" // the outcome of the write may be unknown
	}
	if errors.Is(err, errConflict) {
		return n.renew(ctx)
	}
	return err
}

// exchangeLease sends a request whose response is the lease.
func (n *Node) exchangeLease(ctx context.Context, r wire.Request) error {
	r.Accept = wire.Protobuf
	response, err := n.Do(ctx, r, 4<<10)
	switch {
	case err != nil:
		return err
	case response.Status == http.StatusNotFound:
		return errNotFound
	case response.Status == http.StatusConflict:
		return errConflict
	case response.Status >= 300:
		return statusError(r, response)
	}
	object, err := wire.ParseObject(response.Body)
	if err != nil {
		return err
	}
	revision, err := wire.Field(object, 1, 6)
	n.lease.revision = string(revision)
	return err
}

// sendStatus reports the heartbeat of the node's conditions.
func (n *Node) sendStatus(ctx context.Context) error {
	now := time.Now()
	var conditions []string
	for _, name := range []string{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		state := "False"
		if name == "Ready" {
			state = "True"
		}
		conditions = append(conditions,
			fmt.Sprintf(`{"type":%q,"status":%q,"lastHeartbeatTime":%q}`, name, state, now.UTC().Format(time.RFC3339)))
	}
	r := wire.Request{
		Method: http.MethodPatch, Path: "/api/v1/nodes/" + n.name + "/status", Accept: wire.Protobuf,
		ContentType: wire.StrategicMergePatch,
		Body: fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}},"status":{"conditions":[%s]}}`,
			wire.Sent, now.UnixNano(), strings.Join(conditions, ",")),
	}
	response, err := n.Do(ctx, r, 300)
	if err != nil {
		return err
	}
	if response.Status >= 300 {
		return statusError(r, response)
	}
	n.Statuses.Add(1)
	return nil
}

// podRequest returns the request that reports a pod as running, or removes it after its containers have stopped.
func (n *Node) podRequest(p pod) wire.Request {
	path := "/api/v1/namespaces/" + p.namespace + "/pods/" + p.name
	if p.remove {
		return wire.Request{Method: http.MethodDelete, Path: path + "?gracePeriodSeconds=0", Accept: wire.Protobuf}
	}
	return wire.Request{
		Method: http.MethodPatch, Path: path + "/status", Accept: wire.Protobuf,
		ContentType: wire.StrategicMergePatch, Body: RunningPatch(p.uid, n.ip, time.Now()),
	}
}

// RunningPatch returns the patch of the status of a pod whose container runs. uid may be "".
func RunningPatch(uid, ip string, now time.Time) []byte {
	stamp := now.UTC().Format(time.RFC3339)
	identity := ""
	if uid != "" {
		identity = fmt.Sprintf(`"uid":%q,`, uid)
	}
	var conditions []string
	for _, name := range []string{"Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		conditions = append(conditions, fmt.Sprintf(`{"type":%q,"status":"True","lastTransitionTime":%q}`, name, stamp))
	}
	return fmt.Appendf(nil, `{"metadata":{%s"annotations":{%q:"%d"}},"status":{"phase":"Running","hostIP":%q,`+
		`"podIP":%[4]q,"podIPs":[{"ip":%[4]q}],"startTime":%[5]q,"conditions":[%[6]s],"containerStatuses":[{"name":"server",`+
		`"image":"registry.example.com/shop/server:1.27.4","imageID":"sha256:0","ready":true,"started":true,`+
		`"restartCount":0,"state":{"running":{"startedAt":%[5]q}}}]}}`,
		identity, wire.Sent, now.UnixNano(), ip, stamp, strings.Join(conditions, ","))
}
