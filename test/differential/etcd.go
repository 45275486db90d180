package differential

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// Write is one change of a key.
type Write struct {
	Key      string
	Value    []byte // nil: the key was deleted
	TTL      int64  // time to live of the key's lease in seconds; 0: the key has no lease
	Revision int64
	At       time.Time // when the recorder received it
	// Encrypted is the prefix of an encrypted value, for which Value is the decrypted value.
	Encrypted string
}

// Recorder records all writes of a server to its etcd.
type Recorder struct {
	client *clientv3.Client
	ended  chan struct{} // closed when the watch has ended
	// decrypt returns the decrypted value and the prefix of an encrypted one. It must be set before the first call of
	// Since; nil decrypts nothing.
	decrypt func(Write) ([]byte, string)
	leases  map[clientv3.LeaseID]int64 // granted TTL in seconds

	mu        sync.Mutex
	writes    []Write // ascending revisions
	revision  int64
	moved     chan struct{}   // closed and replaced when the revision increases
	accounted map[string]bool // keys that were compared as part of a script
}

// StartRecorder records all writes, beginning at revision 1.
func StartRecorder(ctx context.Context, endpoint string) (*Recorder, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), Context: ctx})
	if err != nil {
		return nil, err
	}
	r := &Recorder{
		client: client, ended: make(chan struct{}), leases: map[clientv3.LeaseID]int64{}, moved: make(chan struct{}),
		accounted: map[string]bool{},
	}
	go r.record(ctx, client.Watch(ctx, "", clientv3.WithPrefix(), clientv3.WithRev(1)))
	return r, nil
}

// Stop stops the recording.
func (r *Recorder) Stop() error {
	err := r.client.Close()
	<-r.ended
	return err
}

func (r *Recorder) record(ctx context.Context, responses clientv3.WatchChan) {
	defer close(r.ended)
	for response := range responses {
		var writes []Write
		for _, event := range response.Events {
			kv := event.Kv
			writes = append(writes, Write{
				Key: string(kv.Key), Value: kv.Value, TTL: r.granted(ctx, clientv3.LeaseID(kv.Lease)),
				Revision: kv.ModRevision, At: time.Now(),
			})
		}
		r.mu.Lock()
		r.writes = append(r.writes, writes...)
		r.revision = response.Header.Revision
		close(r.moved)
		r.moved = make(chan struct{})
		r.mu.Unlock()
	}
}

// granted returns the time to live with which a lease was granted, or -1 if the lease has expired.
func (r *Recorder) granted(ctx context.Context, lease clientv3.LeaseID) int64 {
	if lease == clientv3.NoLease {
		return 0
	}
	if seconds, known := r.leases[lease]; known {
		return seconds
	}
	r.leases[lease] = -1
	if answer, err := r.client.TimeToLive(ctx, lease); err == nil && answer.GrantedTTL > 0 {
		r.leases[lease] = answer.GrantedTTL
	}
	return r.leases[lease]
}

// Put stores a value under a key.
func (r *Recorder) Put(ctx context.Context, key string, value []byte) error {
	_, err := r.client.Put(ctx, key, string(value))
	return err
}

// Now returns etcd's revision.
func (r *Recorder) Now(ctx context.Context) (int64, error) {
	response, err := r.client.Get(ctx, "/")
	if err != nil {
		return 0, err
	}
	return response.Header.Revision, nil
}

// Since returns the writes after a revision and before this call.
func (r *Recorder) Since(ctx context.Context, revision int64) ([]Write, error) {
	now, err := r.Now(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	for r.revision < now {
		moved := r.moved
		r.mu.Unlock()
		select {
		case <-moved:
		case <-r.ended:
			return nil, fmt.Errorf("the recording ended at revision %d", r.revision)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		r.mu.Lock()
	}
	defer r.mu.Unlock()
	first, _ := slices.BinarySearchFunc(r.writes, revision+1, func(w Write, revision int64) int {
		return int(w.Revision - revision)
	})
	writes := slices.Clone(r.writes[first:])
	for i, w := range writes {
		if r.decrypt != nil && w.Value != nil {
			writes[i].Value, writes[i].Encrypted = r.decrypt(w)
		}
	}
	return writes, nil
}

// Histories returns the writes of a script: to keys of its namespace, of objects that its responses show as written,
// and of addresses of its Services.
func Histories(script *Script, answers []Answer, writes []Write) map[string][]Write {
	written := writtenUIDs(script, answers)
	namespace := "/" + script.namespace()
	holder := regexp.MustCompile(script.namespace() + `[^a-z0-9-]`)
	ofScript := func(w Write) bool {
		switch {
		case eventName.MatchString(w.Key):
			return false // a controller in the server has recorded the event, at a time that differs
		case strings.HasPrefix(w.Key, addresses):
			return holder.Match(w.Value)
		}
		return strings.HasSuffix(w.Key, namespace) || strings.Contains(w.Key, namespace+"/") ||
			slices.ContainsFunc(written, func(uid []byte) bool { return bytes.Contains(w.Value, uid) })
	}
	histories := map[string][]Write{}
	held := map[string]bool{} // keys whose last value the script has written
	for _, w := range writes {
		if held[w.Key] = ofScript(w) || held[w.Key] && !taken(w); held[w.Key] {
			histories[w.Key] = append(histories[w.Key], w)
		}
	}
	return histories
}

// addresses is the prefix of the addresses of Services. A script may allocate an address that another script has
// released.
const addresses = "/registry/ipaddresses/"

// taken reports whether another script may have made a write.
func taken(w Write) bool { return strings.HasPrefix(w.Key, addresses) && w.Value != nil }

// writtenUIDs returns the UIDs in responses to successful writes.
func writtenUIDs(script *Script, answers []Answer) [][]byte {
	var uids [][]byte
	for i, c := range script.Cases {
		if !slices.Contains([]string{"POST", "PUT", "PATCH"}, c.Method) || answers[i].Code/100 != 2 {
			continue
		}
		var object struct {
			Metadata struct {
				UID               string `json:"uid"`
				CreationTimestamp string `json:"creationTimestamp"`
			} `json:"metadata"`
		}
		if json.Unmarshal(answers[i].Body, &object) == nil && object.Metadata.UID != "" {
			uids = append(uids, []byte(object.Metadata.UID))
		}
	}
	return uids
}

// revisited are the keys that controllers in the servers also write, at times that differ. Only the last value is
// compared.
var revisited = []string{
	"/registry/apiextensions.k8s.io/", "/registry/apiregistration.k8s.io/", "/registry/flowschemas/",
}

// HistoryTexts returns histories as text, by key. Keys that differ only in values that the server has chosen are
// merged, in the order of their first writes.
func (n *normalizer) HistoryTexts(histories map[string][]Write) map[string]string {
	texts := map[string]string{}
	inOrder := func(a, b string) int { return cmp.Compare(histories[a][0].Revision, histories[b][0].Revision) }
	for _, key := range slices.SortedFunc(maps.Keys(histories), inOrder) {
		writes := histories[key]
		if slices.ContainsFunc(revisited, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			writes = writes[len(writes)-1:]
		}
		shown := make([]string, len(writes))
		for i, w := range writes {
			var b strings.Builder
			n.writeStored(&b, w)
			shown[i] = b.String()
		}
		if strings.HasPrefix(key, addresses) {
			shown = mergeRetries(shown)
		}
		texts[n.plain(key)] += strings.Join(shown, "")
	}
	return texts
}

// mergeRetries merges repeated allocations of an address that are separated by a release. kube-apiserver allocates
// again if its cached Service was stale, which depends on the speed of its watch.
func mergeRetries(writes []string) []string {
	var merged []string
	for _, write := range writes {
		if last := len(merged); last >= 2 && merged[last-1] == deleted && merged[last-2] == write {
			merged = merged[:last-1]
			continue
		}
		merged = append(merged, write)
	}
	return merged
}

// deleted is the text for the deletion of a key.
const deleted = "DELETE\n"

func (n *normalizer) writeStored(b *strings.Builder, w Write) {
	n.clock.now, n.reference = w.At, nil
	switch {
	case w.Value == nil:
		b.WriteString(deleted)
		return
	case w.TTL != 0:
		fmt.Fprintf(b, "PUT for %d s: ", w.TTL)
	default:
		b.WriteString("PUT: ")
	}
	b.WriteString(w.Encrypted)
	content, form, err := storedJSON(w.Value)
	if err != nil {
		fmt.Fprintf(b, "%v: %q\n", err, w.Value)
		return
	}
	b.WriteString(form + "\n")
	if form == inOrder {
		b.WriteString(n.plain(string(content)) + "\n")
	}
	b.WriteString(n.show(parse(content), false))
}

// storedPrefix is the prefix of objects stored as protobuf.
var storedPrefix = []byte("k8s\x00")

// storedJSON returns stored bytes as JSON, with their format. Values with equal content in the canonical form have
// equal bytes.
func storedJSON(value []byte) (content []byte, form string, err error) {
	if bytes.HasPrefix(value, cborPrefix) {
		return storedCBOR(value)
	}
	if !bytes.HasPrefix(value, storedPrefix) {
		return value, jsonForm(value), nil
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(value[len(storedPrefix):]); err != nil {
		return nil, "", err
	}
	scheme, err := kinds()
	if err != nil {
		return nil, "", err
	}
	kind := schema.FromAPIVersionAndKind(envelope.APIVersion, envelope.Kind)
	serializer := protobuf.NewSerializer(scheme, scheme)
	object, _, err := serializer.Decode(value, &kind, nil)
	if err != nil {
		return nil, "", fmt.Errorf("%v: %w", kind, err)
	}
	object.GetObjectKind().SetGroupVersionKind(kind)
	again, err := runtime.Encode(serializer, object)
	if err != nil {
		return nil, "", err
	}
	form = fmt.Sprintf("protobuf %q %q", envelope.ContentEncoding, envelope.ContentType)
	if !bytes.Equal(again, value) {
		form += fmt.Sprintf(", not canonical: %d bytes, of which %d are understood", len(value), len(again))
	}
	content, err = json.Marshal(object)
	return content, form, err
}

// inOrder returns JSON without sorting keys, so that the order of keys is also compared.
const inOrder = "JSON in the order of the type's fields"

func jsonForm(value []byte) string {
	var object any
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	if decoder.Decode(&object) != nil {
		return "no JSON"
	}
	var again bytes.Buffer
	_ = json.NewEncoder(&again).Encode(object) // cannot fail, because the value was decoded from JSON
	if bytes.Equal(again.Bytes(), value) {
		return "JSON in canonical form"
	}
	return inOrder
}
