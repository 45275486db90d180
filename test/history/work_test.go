package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	requestTimeout = 3 * time.Second
	// slots are objects in use at the same time. A new object replaces one after a number of operations, or after a few of
	// unknown outcome, each of which doubles the search space.
	slots         = 6
	slotUses      = 80
	slotUnknowns  = 3
	longestPause  = 25 * time.Millisecond
	listPageLimit = 3
)

// operation is one request about one object.
type operation struct {
	Client int
	Input  input
	Output output
	Call   time.Duration // since the start
	Return time.Duration
}

// list is a consistent list of all objects.
type list struct {
	AtLeast  int64 // revision of a write that had been acknowledged when the list began
	Revision int64
	Values   map[string]string // by key
}

// record has all observations of clients.
type record struct {
	seed  uint64
	begin time.Time

	mu           sync.Mutex
	operations   map[string][]operation // by key
	lists        []list
	acknowledged int64 // highest revision
	slots        [slots]slot

	chains []*chain
}

type slot struct{ generation, uses, unknowns int }

func newRecord(seed uint64) *record {
	return &record{seed: seed, begin: time.Now(), operations: map[string][]operation{}}
}

// key chooses an object.
func (h *record) key(random *rand.Rand) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := random.IntN(slots)
	s := &h.slots[i]
	if s.uses >= slotUses || s.unknowns >= slotUnknowns {
		*s = slot{generation: s.generation + 1}
	}
	s.uses++
	return fmt.Sprintf("object-%d-%d", i, s.generation)
}

func (h *record) add(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.Output.result == unknown {
		var i, generation int
		if _, err := fmt.Sscanf(o.Input.Key, "object-%d-%d", &i, &generation); err == nil &&
			h.slots[i].generation == generation {
			h.slots[i].unknowns++
		}
		if o.Input.Kind == get {
			return // it proves nothing
		}
	}
	h.operations[o.Input.Key] = append(h.operations[o.Input.Key], o)
	h.acknowledged = max(h.acknowledged, o.Output.Revision)
}

// work starts clients that write and read until ctx ends.
func (r *replicas) work(ctx context.Context, h *record, p plan, seed uint64) *group {
	g := &group{}
	for i := range p.writers {
		c := &client{replicas: r, record: h, id: i, random: choices(seed, uint64(firstWriter+i))}
		g.Go(func() { c.run(ctx, c.write) })
	}
	for i := range p.readers {
		c := &client{replicas: r, record: h, id: p.writers + i, random: choices(seed, uint64(firstReader+i))}
		g.Go(func() { c.run(ctx, c.read) })
	}
	return g
}

// client runs one operation at a time.
type client struct {
	*replicas
	record *record
	id     int
	random *rand.Rand
	writes int
}

func (c *client) run(ctx context.Context, act func(context.Context)) {
	for pause(ctx, time.Duration(c.random.Int64N(int64(longestPause)))) {
		act(c.Context()) // a started operation is finished
	}
}

// request returns a request through any of the replicas. It is never retried: the first attempt may have taken effect.
func (c *client) request(verb string) *rest.Request {
	return c.clients[c.random.IntN(count)].Verb(verb).Namespace(namespace).Resource("configmaps").MaxRetries(0)
}

// do runs and records an operation, and returns the object that was read or written.
func (c *client) do(ctx context.Context, in input, request *rest.Request) (*core.ConfigMap, result) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := operation{Client: c.id, Input: in, Call: time.Since(c.record.begin)}
	answer := request.Do(ctx)
	o.Return = time.Since(c.record.begin)
	object := &core.ConfigMap{}
	err := answer.Error()
	if in.Kind != remove && in.Kind != removeExact && err == nil {
		err = answer.Into(object)
	}
	var counts bool
	if o.Output.result, counts = outcome(in.Kind, err); !counts {
		return nil, o.Output.result
	}
	if err == nil {
		o.Output.Revision = revisionOf(object)
	}
	if in.Kind == get {
		o.Output.Value = object.Data["value"]
	}
	c.record.add(o)
	return object, o.Output.result
}

// outcome returns the result that an error implies. The operation is not recorded if it was certainly not sent.
func outcome(kind kind, err error) (answer result, counts bool) {
	var dial *net.OpError
	switch {
	case err == nil:
		return done, true
	case apierrors.IsNotFound(err):
		return absent, true
	case apierrors.IsAlreadyExists(err):
		return present, true
	case apierrors.IsConflict(err):
		return conflict, kind == update || kind == removeExact // otherwise the server returned before the write
	case apierrors.IsTooManyRequests(err), errors.As(err, &dial) && dial.Op == "dial":
		return unknown, false
	}
	return unknown, true
}

// revisionOf returns 0 for an object that was not read.
func revisionOf(object meta.Object) int64 {
	revision, _ := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	return revision
}

func (c *client) value() string {
	c.writes++
	return fmt.Sprintf("%d-%d", c.id, c.writes)
}

// write reads an object and chooses an operation that fits its state.
func (c *client) write(ctx context.Context) {
	key := c.record.key(c.random)
	object, read := c.do(ctx, input{Kind: get, Key: key}, c.request("GET").Name(key))
	if read == unknown {
		return
	}
	to := c.value()
	if read == absent {
		c.do(ctx, input{Kind: create, Key: key, To: to}, c.request("POST").Body(configMap(key, to)))
		return
	}
	from := object.Data["value"]
	switch choice := c.random.IntN(10); {
	case choice < 5:
		object.Data["value"] = to
		c.do(ctx, input{Kind: update, Key: key, From: from, To: to}, c.request("PUT").Name(key).Body(object))
	case choice < 7:
		merge := fmt.Appendf(nil, `{"data":{"value":%q}}`, to)
		c.do(ctx, input{Kind: patch, Key: key, To: to}, c.request("PATCH").Name(key).SetHeader("Content-Type",
			string(types.MergePatchType)).Body(merge))
	case choice < 8:
		c.do(ctx, input{Kind: create, Key: key, To: to}, c.request("POST").Body(configMap(key, to)))
	case choice < 9:
		c.do(ctx, input{Kind: remove, Key: key}, c.request("DELETE").Name(key))
	default:
		exactly := &meta.DeleteOptions{Preconditions: meta.NewRVDeletionPrecondition(object.ResourceVersion).Preconditions}
		c.do(ctx, input{Kind: removeExact, Key: key, From: from}, c.request("DELETE").Name(key).Body(exactly))
	}
}

func (c *client) read(ctx context.Context) {
	if c.random.IntN(4) > 0 {
		key := c.record.key(c.random)
		c.do(ctx, input{Kind: get, Key: key}, c.request("GET").Name(key))
		return
	}
	var limit int64
	if c.random.IntN(2) == 0 {
		limit = listPageLimit
	}
	c.list(ctx, limit)
}

// list lists all objects, in pages if there is a limit, each from any replica. A list that fails is ignored.
func (c *client) list(ctx context.Context, limit int64) {
	c.record.mu.Lock()
	l := list{AtLeast: c.record.acknowledged, Values: map[string]string{}}
	c.record.mu.Unlock()
	options := meta.ListOptions{LabelSelector: "history=true", Limit: limit}
	for {
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		page := &core.ConfigMapList{}
		err := c.request("GET").VersionedParams(&options, scheme.ParameterCodec).Do(limited).Into(page)
		cancel()
		if err != nil {
			return
		}
		revision, err := strconv.ParseInt(page.ResourceVersion, 10, 64)
		if err != nil || l.Revision != 0 && l.Revision != revision {
			c.Errorf("a page is of revision %q, one before of %d", page.ResourceVersion, l.Revision)
			return
		}
		l.Revision = revision
		for _, object := range page.Items {
			l.Values[object.Name] = object.Data["value"]
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	c.record.mu.Lock()
	defer c.record.mu.Unlock()
	c.record.lists = append(c.record.lists, l)
}
