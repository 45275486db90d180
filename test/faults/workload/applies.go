package workload

import (
	"context"
	"fmt"
	"strconv"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	managers   = 3
	ownedField = "owned" // field of manager 0, which the other managers try to take
)

// applies runs field managers that apply one ConfigMap with server-side apply. Each manager owns a field whose number
// grows. The check requires that no manager changes or loses the field of another manager, and that no other manager
// takes ownedField from manager 0 without force.
type applies struct {
	crew
	fields    [managers]stage
	uncertain [managers]map[int]bool // numbers that were applied with an unknown outcome, which may take effect later
}

func field(manager int) string { return fmt.Sprintf("manager-%d", manager) }

func (w *applies) Start(ctx context.Context) error {
	for manager := range managers {
		w.uncertain[manager] = map[int]bool{}
	}
	err := eventually(ctx, func(ctx context.Context) error { return w.apply(ctx, w.clients[0], 0, 0, "0") })
	for manager := range managers {
		w.work(ctx, manager, w.act)
	}
	w.work(ctx, managers, func(ctx context.Context, c *client) {
		_ = w.read(ctx, c.any()) // Check reads the final state, so an error here is ignored
	})
	return err
}

// apply sends an apply request of a manager with its field, and with ownedField unless owned is empty.
func (w *applies) apply(ctx context.Context, server kubernetes.Interface, manager, number int, owned string) error {
	data := fmt.Sprintf("%q:%q", field(manager), strconv.Itoa(number))
	if owned != "" {
		data += fmt.Sprintf(",%q:%q", ownedField, owned)
	}
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{%s}}`, data)
	_, err := server.CoreV1().ConfigMaps("default").Patch(ctx, "applied", types.ApplyPatchType, []byte(body),
		meta.PatchOptions{FieldManager: field(manager)})
	return err
}

func (w *applies) act(ctx context.Context, c *client) {
	if c.id > 0 && c.random.IntN(4) == 0 {
		w.take(ctx, c)
		return
	}
	w.mu.Lock()
	w.fields[c.id].tried++
	number := w.fields[c.id].tried
	w.mu.Unlock()
	owned := ""
	if c.id == 0 {
		owned = "0"
	}
	_, err := request(ctx, func(ctx context.Context) (any, error) {
		return nil, w.apply(ctx, c.any(), c.id, number, owned)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.fields[c.id].known = number
	case !isRefused(err):
		w.uncertain[c.id][number] = true
	}
}

// take tries to apply ownedField as another manager than 0. The server must respond with a conflict.
func (w *applies) take(ctx context.Context, c *client) {
	_, err := request(ctx, func(ctx context.Context) (any, error) { return nil, w.apply(ctx, c.any(), c.id, 0, "1") })
	switch {
	case err == nil:
		w.observe(fmt.Errorf("applies: %s took the field of %s without force", field(c.id), field(0)))
	case apierrors.IsConflict(err):
		w.observe(nil)
	}
}

// read reads the ConfigMap and checks that each field has a number that its manager may have applied last.
func (w *applies) read(ctx context.Context, server kubernetes.Interface) error {
	w.mu.Lock()
	var atLeast [managers]int
	for manager := range managers {
		atLeast[manager] = w.fields[manager].known
	}
	w.mu.Unlock()
	got, err := request(ctx, func(ctx context.Context) (*core.ConfigMap, error) {
		return server.CoreV1().ConfigMaps("default").Get(ctx, "applied", meta.GetOptions{})
	})
	if apierrors.IsNotFound(err) {
		w.observe(fmt.Errorf("applies: the ConfigMap is gone"))
	}
	if err != nil {
		return err
	}
	if got.Data[ownedField] != "0" {
		w.observe(fmt.Errorf("applies: %s has changed from 0 to %q", ownedField, got.Data[ownedField]))
	}
	for manager := range managers {
		w.observe(w.compare(got, manager, atLeast[manager]))
	}
	return nil
}

func (w *applies) compare(got *core.ConfigMap, manager, atLeast int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	number, _ := strconv.Atoi(got.Data[field(manager)]) // 0 if it was never applied
	if w.uncertain[manager][number] {
		return nil
	}
	if number < atLeast || number > w.fields[manager].tried {
		return fmt.Errorf("applies: the field of manager %d is %q, the manager has applied %d and tried %d", manager,
			got.Data[field(manager)], atLeast, w.fields[manager].tried)
	}
	entries := 0
	for _, entry := range got.ManagedFields {
		if entry.Manager == field(manager) {
			entries++
		}
	}
	if entries > 1 || atLeast > 0 && entries == 0 {
		return fmt.Errorf("applies: manager %d has %d entries in managedFields", manager, entries)
	}
	return nil
}

func (w *applies) Check(ctx context.Context) []error {
	failures := w.everyServer(ctx, w.read)
	return append(w.found(), failures...)
}
