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

// Account says that these keys were compared with a script.
func (r *Recorder) Account(histories map[string][]Write) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range histories {
		r.accounted[key] = true
	}
}

// Rest sums up what was written under keys that no script accounts for: what servers keep for themselves, tell of
// themselves, and forgot to remove. Keys that differ only in what servers choose are one.
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

// identity is that of a running server.
var identity = regexp.MustCompile(`\bapiserver-[a-z0-9]{26}\b`)

// spurious are reasons of events by which the repair of addresses comments on requests that are being refused, or on
// addresses whose holders kube-apiserver learns of later than of their Services, if it looks in that moment.
var spurious = regexp.MustCompile("IPAddressWrongReference|ClusterIPNotAllocated")

// leftover is what is left of keys that are one.
type leftover struct {
	left int   // keys that have a value
	ttl  int64 // of the leases of them
	set  int   // bits of an allocation
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

// allocated counts what is taken of a range of numbers.
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
