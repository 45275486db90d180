package storage_test

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// TestCreationByShim creates paths with a server whose responses have neither an ID of the cluster nor the revision
// of the write, like kine's response to the creation of a key that existed before.
func TestCreationByShim(t *testing.T) {
	for name, c := range map[string]struct {
		lag  int64 // difference between the revision of the write and the revision in the response
		then func(context.Context, clientv3.KV) error
	}{
		"behind": {lag: 1},
		"ahead":  {lag: -3},
		"modified since": {lag: 1, then: func(ctx context.Context, client clientv3.KV) error {
			_, err := client.Put(ctx, "/registry/pods/a", "2")
			return err
		}},
		"deleted since": {lag: 2, then: func(ctx context.Context, client clientv3.KV) error {
			_, err := client.Delete(ctx, "/registry/pods/a")
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			client := etcdtest.Client(t)
			etcd := client.KV
			var want int64
			client.KV = &transactions{KV: client.KV,
				commit: func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
					response, err := txn.Commit()
					if err != nil {
						return nil, err
					}
					want = response.Header.Revision
					response.Header.ClusterId, response.Header.Revision = 0, want-c.lag
					if c.then != nil {
						err = c.then(ctx, etcd)
					}
					return response, err
				}}
			for range 3 { // earlier revisions
				if _, err := etcd.Put(t.Context(), "/registry/pods/other", "1"); err != nil {
					t.Fatal(err)
				}
			}
			got, err := storage.New(client, "/registry").Create(t.Context(), "pods/a", []byte("1"), 0)
			if err != nil || got != want {
				t.Errorf("revision %d, want %d: %v", got, want, err)
			}
		})
	}
}
