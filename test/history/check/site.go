package check

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// Site is the target of clients: the objects of one resource, in one namespace, through several servers.
type Site struct {
	Clients []rest.Interface // one client for each server; see NewClient
	Objects Objects
	Record  *Record
	// Drop reports whether a watcher drops an event, to test the checks. nil means never.
	Drop func() bool
}

// Load is the number of clients of each kind, and their options.
type Load struct {
	Writers, Readers, Watchers int
	// LongestWatch is the maximum duration of a watch, and of a pause between two watches.
	LongestWatch time.Duration
	// Consistencies means that lists also use the resourceVersions and matches of cached and exact reads. Otherwise all
	// lists are consistent reads.
	Consistencies bool
}

// Objects describes a resource whose objects have the field data of a ConfigMap.
type Objects struct {
	APIVersion, Kind, Resource, Namespace string
}

// ConfigMaps returns the ConfigMaps of a namespace.
func ConfigMaps(namespace string) Objects { return Objects{"v1", "ConfigMap", "configmaps", namespace} }

func (o Objects) root() string {
	if o.APIVersion == "v1" {
		return "/api/v1"
	}
	return "/apis/" + o.APIVersion
}

// path returns the URL path of the collection in the namespace.
func (o Objects) path() string { return o.root() + "/namespaces/" + o.Namespace + "/" + o.Resource }

// everywhere returns the URL path of the collection in all namespaces.
func (o Objects) everywhere() string { return o.root() + "/" + o.Resource }

const (
	label    = "history"
	selector = label + "=true"
)

// Object is an object of a Site.
type Object struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Data            map[string]string `json:"data,omitempty"`
}

type objectList struct {
	meta.ListMeta `json:"metadata"`
	Items         []Object `json:"items"`
}

func (o Objects) object(key, value string) *Object {
	return &Object{
		TypeMeta:   meta.TypeMeta{APIVersion: o.APIVersion, Kind: o.Kind},
		ObjectMeta: meta.ObjectMeta{Namespace: o.Namespace, Name: key, Labels: map[string]string{label: "true"}},
		Data:       map[string]string{"value": value},
	}
}

func encode(object any) []byte {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // such types can be encoded
	}
	return text
}

func decode(answer rest.Result, into any) error {
	text, err := answer.Raw()
	if err := answer.Error(); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

// NewClient returns a client for Site.Clients.
func NewClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.NegotiatedSerializer =
		&schema.GroupVersion{Version: "v1"}, scheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes, config.QPS = "application/json", "application/json", -1
	return rest.UnversionedRESTClientFor(config)
}

// Finish must be called after all other operations have ended. It reads everything again through each server, so that
// every lost write is noticed. It then creates an object and returns its revision, which the watchers must reach.
func (s *Site) Finish(ctx context.Context) (int64, error) {
	c := &client{Site: s, id: lastClient, random: choices(0, lastClient)}
	keys := slices.Sorted(maps.Keys(s.Record.operations))
	for i := range s.Clients {
		one := *s
		one.Clients = s.Clients[i : i+1]
		c.Site = &one
		for _, key := range keys {
			if _, result := c.do(ctx, input{Kind: get, Key: key}, c.request("GET", key)); result == unknown {
				return 0, fmt.Errorf("cannot read %s of server %d", key, i)
			}
		}
		if !c.list(ctx) {
			return 0, fmt.Errorf("cannot list the objects of server %d", i)
		}
	}
	return s.writeLast(ctx)
}

// writeLast creates the last object. It retries until ctx ends if the server rejects the object: a server measures the
// free space of its file system only from time to time, and may reject writes shortly after space was freed.
func (s *Site) writeLast(ctx context.Context) (int64, error) {
	var written Object
	for {
		err := s.createLast(ctx, &written)
		if err == nil {
			break
		}
		if !Pause(ctx, 100*time.Millisecond) {
			return 0, fmt.Errorf("the last write: %w", err)
		}
	}
	s.Record.mu.Lock()
	defer s.Record.mu.Unlock()
	if revision := revisionOf(&written); revision <= s.Record.acknowledged {
		s.Record.faults = append(s.Record.faults,
			fmt.Errorf("the last write is at revision %d; a write at %d had been acknowledged before",
				revision, s.Record.acknowledged))
	}
	return revisionOf(&written), nil
}

// createLast creates the last object, or reads the object if an earlier attempt has created it.
func (s *Site) createLast(ctx context.Context, into *Object) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object := s.Objects.object("last", "last")
	err := decode(s.Clients[0].Post().AbsPath(s.Objects.path()).Body(encode(object)).Do(ctx), into)
	if apierrors.IsAlreadyExists(err) {
		return decode(s.Clients[0].Get().AbsPath(s.Objects.path(), object.Name).Do(ctx), into)
	}
	return err
}

// Acknowledged returns the highest revision of any acknowledged write or read.
func (h *Record) Acknowledged() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acknowledged
}

// AddCopy records a list of all objects in another cluster, which was restored from a copy of this cluster. The list
// must equal the state of this cluster at revision. revision must not be less than atLeast, the highest revision that
// was acknowledged when the copy began.
func (s *Site) AddCopy(ctx context.Context, copied rest.Interface, atLeast, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	objects := &objectList{}
	request := copied.Get().AbsPath(s.Objects.path()).VersionedParams(&meta.ListOptions{LabelSelector: selector},
		scheme.ParameterCodec)
	if err := decode(request.Do(ctx), objects); err != nil {
		return fmt.Errorf("list the objects of the copy: %w", err)
	}
	l := list{AtLeast: atLeast, Revision: revision, Values: map[string]string{}}
	for _, object := range objects.Items {
		l.Values[object.Name] = object.Data["value"]
	}
	s.Record.mu.Lock()
	defer s.Record.mu.Unlock()
	s.Record.lists = append(s.Record.lists, l)
	return nil
}

// choices returns a source of random choices for one actor.
func choices(seed, actor uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, actor)) }

// Actors. The source of random choices of each client derives from the seed and the number of its actor.
const (
	firstWriter  = 1
	firstReader  = 1000
	firstWatcher = 2000
	lastClient   = 3000
)

// Pause waits for a duration or until ctx ends. It reports whether ctx is still active.
func Pause(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Summary contains the number of observations of each kind.
type Summary struct {
	Objects, Writes, Reads, Unknown, Lists, Watches, Resumed, Events int
}

// Known returns the number of operations with a known outcome.
func (s Summary) Known() int { return s.Writes + s.Reads }

func (s Summary) String() string {
	return fmt.Sprintf("%d objects, %d writes, %d reads, %d unknown outcomes, %d lists; %d watches resumed %d times, "+
		"with %d events",
		s.Objects, s.Writes, s.Reads, s.Unknown, s.Lists, s.Watches, s.Resumed, s.Events)
}

// Summary returns the number of observations in the record.
func (h *Record) Summary() Summary {
	s := Summary{Objects: len(h.operations), Lists: len(h.lists), Watches: len(h.chains)}
	for _, operations := range h.operations {
		for _, o := range operations {
			switch {
			case o.Output.result == unknown:
				s.Unknown++
			case o.Input.Kind == get:
				s.Reads++
			default:
				s.Writes++
			}
		}
	}
	for _, c := range h.chains {
		s.Events, s.Resumed = s.Events+len(c.Events), s.Resumed+c.Resumed
	}
	return s
}
