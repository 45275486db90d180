package registry

import (
	"context"
	"testing"

	"quorate.dev/apiserver/watchcache"
)

// A request that ends while no worker is deleting an object must not look as if all objects had been deleted.
func TestFeedReportsWhatItHasNotSent(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	entries := make(chan *watchcache.Entry)
	if feed(ended, entries, make([]*watchcache.Entry, 1)) {
		t.Error("an entry that no worker has received counts as sent")
	}
	if _, open := <-entries; open {
		t.Error("the workers would wait forever")
	}
	if !feed(ended, make(chan *watchcache.Entry), nil) {
		t.Error("an empty collection is not deleted completely")
	}
}
