package workload

import (
	"context"
	"fmt"
	"sync"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	appendClients = 3
	listLength    = 40 // number of elements that the clients try to append to one list
	// firstElement is in each list from the start, because an empty list is not stored and nothing can be appended to it.
	firstElement = "first"
)

// appends appends elements to lists with JSON patches: to the pull secrets of ServiceAccounts. The patches have no
// precondition, so that a server repeats them after a conflict, and each has a different effect if it is applied twice.
// The check requires that each element occurs once if its patch was acknowledged, at most once if the patch had no
// response, and never if the patch was rejected; and that an element which was acknowledged before another one was sent
// precedes that one.
type appends struct {
	crew
	lock  sync.Mutex
	now   int      // logical time: the number of beginnings and ends of requests
	lists []string // names of the ServiceAccounts
	all   map[string]*element
	order []*element // by the beginning
}

// element is an element that a client has tried to append.
type element struct {
	name, list   string
	began, ended int // logical times; ended is 0 without a response
	refused      bool
}

func (w *appends) Start(ctx context.Context) error {
	w.all = map[string]*element{}
	for id := range appendClients {
		w.work(ctx, id, func(ctx context.Context, c *client) {
			w.append(ctx, c)
			if c.random.IntN(4) == 0 {
				w.lock.Lock()
				list := w.lists[c.random.IntN(len(w.lists))]
				w.lock.Unlock()
				_ = w.read(ctx, c.any(), list) // Check reads the final state, so an error here is ignored
			}
		})
	}
	return nil
}

// append sends one patch. The client of a list's first element creates the ServiceAccount.
func (w *appends) append(ctx context.Context, c *client) {
	e, first := w.begin()
	if first {
		_, _ = request(ctx, func(ctx context.Context) (*core.ServiceAccount, error) { // if it fails, the patches are rejected
			return c.any().CoreV1().ServiceAccounts("default").Create(ctx, &core.ServiceAccount{
				ObjectMeta: meta.ObjectMeta{Name: e.list}, ImagePullSecrets: []core.LocalObjectReference{{Name: firstElement}},
			}, meta.CreateOptions{})
		})
	}
	server := c.any()
	_, err := request(ctx, func(ctx context.Context) (*core.ServiceAccount, error) {
		patch := fmt.Sprintf(`[{"op":"add","path":"/imagePullSecrets/-","value":{"name":%q}}]`, e.name)
		return server.CoreV1().ServiceAccounts("default").Patch(ctx, e.list, types.JSONPatchType,
			[]byte(patch), meta.PatchOptions{})
	})
	w.end(e, err)
}

// begin returns the next element, and reports whether it is the first element of its list.
func (w *appends) begin() (e *element, first bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	number := len(w.order)
	if first = number%listLength == 0; first {
		w.lists = append(w.lists, fmt.Sprintf("appends-%d", number/listLength))
	}
	w.now++
	e = &element{name: fmt.Sprintf("element-%d", number), list: w.lists[len(w.lists)-1], began: w.now}
	w.all[e.name] = e
	w.order = append(w.order, e)
	return e, first
}

func (w *appends) end(e *element, err error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.now++; err == nil {
		e.ended = w.now
	}
	e.refused = isRefused(err)
}

// read reads a list from a server and records an observation.
func (w *appends) read(ctx context.Context, server kubernetes.Interface, list string) error {
	w.lock.Lock()
	w.now++
	began := w.now
	w.lock.Unlock()
	account, err := request(ctx, func(ctx context.Context) (*core.ServiceAccount, error) {
		return server.CoreV1().ServiceAccounts("default").Get(ctx, list, meta.GetOptions{})
	})
	if err != nil {
		return err
	}
	var names []string
	for _, reference := range account.ImagePullSecrets {
		if reference.Name != firstElement {
			names = append(names, reference.Name)
		}
	}
	w.observe(w.compare(list, names, began))
	return nil
}

// compare returns an error if no correct server can have the given elements in a list, read by a request that began at
// a logical time.
func (w *appends) compare(list string, names []string, began int) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	present := map[string]bool{}
	latest := 0 // the latest beginning of an element so far
	for _, name := range names {
		e := w.all[name]
		switch {
		case e == nil || e.list != list:
			return fmt.Errorf("appends: %s has %s, which no client has appended", list, name)
		case present[name]:
			return fmt.Errorf("appends: %s has %s twice", list, name)
		case e.refused:
			return fmt.Errorf("appends: %s has %s, whose patch was rejected", list, name)
		case e.ended != 0 && e.ended < latest:
			return fmt.Errorf("appends: %s has %s behind an element that was sent after its acknowledgement", list, name)
		}
		present[name] = true
		latest = max(latest, e.began)
	}
	for _, e := range w.order {
		if e.list == list && e.ended != 0 && e.ended < began && !present[e.name] {
			return fmt.Errorf("appends: %s lacks %s, which was acknowledged", list, e.name)
		}
	}
	return nil
}

// Check reads all lists through all servers. A list whose ServiceAccount does not exist must have no acknowledged
// element.
func (w *appends) Check(ctx context.Context) []error {
	failures := w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
		for _, list := range w.lists {
			err := w.read(ctx, server, list)
			if apierrors.IsNotFound(err) {
				err = w.compare(list, nil, w.now+1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return append(w.found(), failures...)
}
