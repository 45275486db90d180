package check

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const (
	requestTimeout = 3 * time.Second
	// slots is the number of objects in use at the same time. A new object replaces an object after slotUses operations,
	// or after slotUnknowns operations with an unknown outcome, each of which doubles the search space of the check.
	slots         = 6
	slotUses      = 80
	slotUnknowns  = 3
	longestPause  = 25 * time.Millisecond
	listPageLimit = 3
)

// operation is one request about one object, with its result.
type operation struct {
	Client int
	Input  input
	Output output
	Call   time.Duration // time of the request since the start of the record
	Return time.Duration
}

// list is the result of a list of all objects.
type list struct {
	AtLeast  int64 // lowest permitted revision: acknowledged before the list began, or requested
	Exactly  int64 // requested revision with resourceVersionMatch=Exact; 0: none
	Revision int64
	Values   map[string]string // by key
}

// Record holds the observations of all clients.
type Record struct {
	begin time.Time

	mu           sync.Mutex
	operations   map[string][]operation // by key
	lists        []list
	acknowledged int64 // highest acknowledged revision
	slots        [slots]slot
	faults       []error // faults that a client noticed without the checks

	chains []*chain
}

type slot struct{ generation, uses, unknowns int }

// NewRecord returns an empty record. The times in it count from now.
func NewRecord() *Record { return &Record{begin: time.Now(), operations: map[string][]operation{}} }

// fault records a response that no correct server sends.
func (h *Record) fault(format string, arguments ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Errorf(format, arguments...))
}

// key returns the name of the object in a random slot, and replaces the object if it was used enough.
func (h *Record) key(random *rand.Rand) string {
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

func (h *Record) add(o operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.Output.result == unknown {
		var i, generation int
		if _, err := fmt.Sscanf(o.Input.Key, "object-%d-%d", &i, &generation); err == nil &&
			h.slots[i].generation == generation {
			h.slots[i].unknowns++
		}
		if o.Input.Kind == get {
			return // a get without a response shows nothing
		}
	}
	h.operations[o.Input.Key] = append(h.operations[o.Input.Key], o)
	h.acknowledged = max(h.acknowledged, o.Output.Revision)
}

// Work starts clients that write and read until ctx ends. They finish operations that have begun. The returned group
// waits for the clients.
func (s *Site) Work(ctx context.Context, load Load, seed uint64) *sync.WaitGroup {
	g := &sync.WaitGroup{}
	for i := range load.Writers {
		c := &client{Site: s, load: load, id: i, random: choices(seed, uint64(firstWriter+i))}
		g.Go(func() { c.run(ctx, c.write) })
	}
	for i := range load.Readers {
		c := &client{Site: s, load: load, id: load.Writers + i, random: choices(seed, uint64(firstReader+i))}
		g.Go(func() { c.run(ctx, c.read) })
	}
	return g
}

// client sends one request at a time.
type client struct {
	*Site
	load   Load
	id     int
	random *rand.Rand
	writes int
}

func (c *client) run(ctx context.Context, act func(context.Context)) {
	for Pause(ctx, time.Duration(c.random.Int64N(int64(longestPause)))) {
		act(context.WithoutCancel(ctx))
	}
}

// request returns a request to a random server. It is never retried, because the first attempt may have taken effect.
func (c *client) request(verb string, name ...string) *rest.Request {
	return c.Clients[c.random.IntN(len(c.Clients))].Verb(verb).AbsPath(append([]string{c.Objects.path()},
		name...)...).MaxRetries(0)
}

// do sends a request, records the operation, and returns the object that was read or written.
func (c *client) do(ctx context.Context, in input, request *rest.Request) (*Object, result) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := operation{Client: c.id, Input: in, Call: time.Since(c.Record.begin)}
	answer := request.Do(ctx)
	o.Return = time.Since(c.Record.begin)
	object := &Object{}
	err := answer.Error()
	if in.Kind != remove && in.Kind != removeExact && err == nil {
		err = decode(answer, object)
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
	c.Record.add(o)
	return object, o.Output.result
}

// outcome returns the result that an error implies, and whether the operation is recorded. It is not recorded if the
// request was certainly not executed.
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
		return conflict, kind == update || kind == removeExact // without a precondition, the server gave up before the write
	case apierrors.IsTooManyRequests(err), errors.As(err, &dial) && dial.Op == "dial":
		return unknown, false
	}
	return unknown, true
}

// revisionOf returns the revision of an object, or 0 for an object that was not read.
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
	key := c.Record.key(c.random)
	object, read := c.do(ctx, input{Kind: get, Key: key}, c.request("GET", key))
	if read == unknown {
		return
	}
	to := c.value()
	if read == absent {
		c.do(ctx, input{Kind: create, Key: key, To: to}, c.request("POST").Body(encode(c.Objects.object(key, to))))
		return
	}
	from := object.Data["value"]
	switch choice := c.random.IntN(10); {
	case choice < 5:
		object.Data["value"] = to
		c.do(ctx, input{Kind: update, Key: key, From: from, To: to}, c.request("PUT", key).Body(encode(object)))
	case choice < 7:
		merge := fmt.Appendf(nil, `{"data":{"value":%q}}`, to)
		c.do(ctx, input{Kind: patch, Key: key, To: to}, c.request("PATCH", key).SetHeader("Content-Type",
			string(types.MergePatchType)).Body(merge))
	case choice < 8:
		c.do(ctx, input{Kind: create, Key: key, To: to}, c.request("POST").Body(encode(c.Objects.object(key, to))))
	case choice < 9:
		c.do(ctx, input{Kind: remove, Key: key}, c.request("DELETE", key))
	default:
		exactly := &meta.DeleteOptions{Preconditions: meta.NewRVDeletionPrecondition(object.ResourceVersion).Preconditions}
		c.do(ctx, input{Kind: removeExact, Key: key, From: from}, c.request("DELETE", key).Body(encode(exactly)))
	}
}

func (c *client) read(ctx context.Context) {
	if c.random.IntN(4) > 0 {
		key := c.Record.key(c.random)
		c.do(ctx, input{Kind: get, Key: key}, c.request("GET", key))
		return
	}
	c.list(ctx)
}

// ask returns the options of the next list: its consistency, and the maximum number of objects in a page. Without
// Consistencies, the list is a consistent read.
func (c *client) ask() (options meta.ListOptions, l *list) {
	c.Record.mu.Lock()
	acknowledged := c.Record.acknowledged
	c.Record.mu.Unlock()
	options = meta.ListOptions{LabelSelector: selector}
	if c.random.IntN(2) == 0 {
		options.Limit = listPageLimit
	}
	l = &list{AtLeast: acknowledged, Values: map[string]string{}}
	if !c.load.Consistencies {
		return options, l
	}
	switch c.random.IntN(6) {
	case 0: // any revision is permitted
		options.ResourceVersion, l.AtLeast = "0", 0
	case 1:
		options.ResourceVersion = strconv.FormatInt(acknowledged, 10)
		options.ResourceVersionMatch = meta.ResourceVersionMatchNotOlderThan
	case 2:
		options.ResourceVersion, l.Exactly = strconv.FormatInt(acknowledged, 10), acknowledged
		options.ResourceVersionMatch = meta.ResourceVersionMatchExact
	}
	if acknowledged == 0 {
		options.ResourceVersion, options.ResourceVersionMatch, l.Exactly = "", "", 0
	}
	return options, l
}

// list lists all objects, with a limit in pages, each page from a random server. It returns false if a request fails or
// the pages have different revisions; the list is then not recorded.
func (c *client) list(ctx context.Context) bool {
	options, l := c.ask()
	for {
		page, err := c.page(ctx, options)
		if err != nil {
			return false
		}
		revision, err := strconv.ParseInt(page.ResourceVersion, 10, 64)
		if err != nil || l.Revision != 0 && l.Revision != revision {
			c.Record.fault("a page is of revision %q, one before of %d", page.ResourceVersion, l.Revision)
			return false
		}
		l.Revision = revision
		for _, object := range page.Items {
			l.Values[object.Name] = object.Data["value"]
		}
		if page.Continue == "" {
			break
		}
		options = meta.ListOptions{LabelSelector: selector, Limit: options.Limit, Continue: page.Continue}
	}
	c.Record.mu.Lock()
	defer c.Record.mu.Unlock()
	c.Record.lists = append(c.Record.lists, *l)
	return true
}

func (c *client) page(ctx context.Context, options meta.ListOptions) (*objectList, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	page := &objectList{}
	return page, decode(c.request("GET").VersionedParams(&options, scheme.ParameterCodec).Do(ctx), page)
}
