package workload

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// serviceRange is the servers' flag --service-cluster-ip-range. It contains few addresses, so that each is allocated
// many times.
const serviceRange = "10.0.0.0/27"

// services creates and deletes Services with cluster IPs and node ports. The check requires that no two Services have
// the same address or node port, and that an IPAddress that refers to the Service exists for each of its addresses.
type services struct {
	crew
}

const serviceClients = 3

func (w *services) Start(ctx context.Context) error {
	for id := range serviceClients {
		generation := 0
		w.work(ctx, id, func(ctx context.Context, c *client) {
			generation++
			w.live(ctx, c, fmt.Sprintf("service-%d-%d", id, generation))
		})
	}
	w.work(ctx, serviceClients, func(ctx context.Context, c *client) {
		_, _ = w.read(ctx, c.any()) // Check reads the final state, so an error here is ignored
	})
	return nil
}

// live creates a Service and deletes it.
func (w *services) live(ctx context.Context, c *client, name string) {
	object := &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: name}, Spec: core.ServiceSpec{
			Type: core.ServiceTypeNodePort, Ports: []core.ServicePort{{Port: 80}},
		},
	}
	_, err := request(ctx, func(ctx context.Context) (*core.Service, error) {
		return c.any().CoreV1().Services("default").Create(ctx, object, meta.CreateOptions{})
	})
	if isRefused(err) {
		return
	}
	_ = c.pause(ctx)
	_, _ = request(ctx, func(ctx context.Context) (any, error) { // if the Service is not deleted, the check includes it
		return nil, c.any().CoreV1().Services("default").Delete(ctx, name, meta.DeleteOptions{})
	})
}

// read lists all Services and records a fault if any address or node port occurs twice.
func (w *services) read(ctx context.Context, server kubernetes.Interface) (*core.ServiceList, error) {
	list, err := request(ctx, func(ctx context.Context) (*core.ServiceList, error) {
		return server.CoreV1().Services(meta.NamespaceAll).List(ctx, meta.ListOptions{})
	})
	if err != nil {
		return nil, err
	}
	w.observe(distinct(list))
	return list, nil
}

func distinct(list *core.ServiceList) error {
	owners := map[string]string{}
	for _, service := range list.Items {
		taken := []string{service.Spec.ClusterIP}
		for _, port := range service.Spec.Ports {
			if port.NodePort != 0 {
				taken = append(taken, fmt.Sprint(port.NodePort))
			}
		}
		for _, value := range taken {
			if value == "" || value == core.ClusterIPNone {
				continue
			}
			if owner, ok := owners[value]; ok {
				return fmt.Errorf("services: %s and %s have both %s at revision %s", owner, service.Name,
					value, list.ResourceVersion)
			}
			owners[value] = service.Name
		}
	}
	return nil
}

// Check compares the addresses of all Services with the IPAddresses.
func (w *services) Check(ctx context.Context) []error {
	failures := w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
		list, err := w.read(ctx, server)
		if err != nil {
			return err
		}
		addresses, err := server.NetworkingV1().IPAddresses().List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		holders := map[string]string{}
		for _, address := range addresses.Items {
			holders[address.Name] = address.Spec.ParentRef.Name
		}
		for _, service := range list.Items {
			if ip := service.Spec.ClusterIP; ip != "" && ip != core.ClusterIPNone && holders[ip] != service.Name {
				return fmt.Errorf("services: the address %s of %s is held by %q", ip, service.Name, holders[ip])
			}
		}
		return nil
	})
	return append(w.found(), failures...)
}
