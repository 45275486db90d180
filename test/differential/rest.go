package differential

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/bits"
	"regexp"
	"strings"
	"time"
)

// Account marks keys as compared as part of a script.
func (r *Recorder) Account(histories map[string][]Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range histories {
		r.accounted[key] = true
	}
}

// Rest summarizes the writes to keys that no script accounts for: leases and records of the servers, and leaked
// objects. Keys that differ only in values that servers have chosen are merged.
func (r *Recorder) Rest(ctx context.Context) (map[string]string, error) {
	writes, err := r.Since(ctx, 0)
	if err != nil {
		return nil, err
	}
	last := map[string]Write{}
	for _, w := range writes {
		last[w.Key] = w
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := map[string]*leftover{}
	n := newNormalizer(&Script{}, nil, time.Now(), nil)
	for key, w := range last {
		if !r.accounted[key] && !spurious.Match(w.Value) {
			general := n.plain(identity.ReplaceAllString(key, "apiserver-<random>"))
			if sums[general] == nil {
				sums[general] = &leftover{}
			}
			sums[general].add(w)
		}
	}
	texts := map[string]string{}
	for key, sum := range sums {
		texts[key] = sum.text()
	}
	return texts, nil
}

// identity matches the identity of a running API server.
var identity = regexp.MustCompile(`\bapiserver-[a-z0-9]{26}\b`)

// spurious are reasons of events of the IP repair controller that depend on timing. The controller may run while a
// request is being refused, or before kube-apiserver has observed the owner of an address.
var spurious = regexp.MustCompile("IPAddressWrongReference|ClusterIPNotAllocated")

// leftover summarizes the remaining values of merged keys.
type leftover struct {
	left int   // number of keys that have a value
	ttl  int64 // time to live of their leases
	set  int   // number of allocated bits
}

func (l *leftover) add(w Write) {
	if w.Value == nil {
		return
	}
	l.left++
	l.ttl = max(l.ttl, w.TTL)
	l.set += allocated(w)
}

func (l *leftover) text() string {
	return fmt.Sprintf("%d left, for %d s, %d numbers allocated", l.left, l.ttl, l.set)
}

// allocated returns the number of allocated values in a range.
func allocated(w Write) int {
	if !strings.HasPrefix(w.Key, "/registry/ranges/") {
		return 0
	}
	content, _, err := storedJSON(w.Value)
	if err != nil {
		return 0
	}
	data, _ := lookup(parse(content), []string{"data"}).(string)
	bitmap, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return 0
	}
	set := 0
	for _, b := range bitmap {
		set += bits.OnesCount8(b)
	}
	return set
}
