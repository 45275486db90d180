package encryption_test

import (
	"fmt"
	"strings"
	"testing"

	"quorate.dev/apiserver/encryption/encryptiontest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// benchmarked has the configurations whose costs are compared. Without a configuration, Encrypt is not called.
func benchmarked(b *testing.B) map[string]string {
	return map[string]string{
		"none": "", "identity": configuration(identity), "aescbc": configuration(aescbc("one")),
		"aesgcm": configuration(aesgcm("one")), "secretbox": configuration(secretbox("one")),
		"kms": configuration(kms("v2", encryptiontest.Start(b, "1"))),
	}
}

func benchmarkStores(b *testing.B, run func(b *testing.B, s *storage.Store)) {
	for name, content := range benchmarked(b) {
		b.Run(name, func(b *testing.B) {
			s := storage.New(etcdtest.Client(b), "/registry")
			if content != "" {
				s.Encrypt(load(b, content).Storage(catalogs()))
			}
			run(b, s)
		})
	}
}

var secret = []byte("k8s\x00" + strings.Repeat("x", 2000))

// BenchmarkUpdate writes a Secret of 2 KB.
func BenchmarkUpdate(b *testing.B) {
	benchmarkStores(b, func(b *testing.B, s *storage.Store) {
		revision := must[int64](b)(s.Create(b.Context(), "secrets/default/a", secret, 0))
		b.ReportAllocs()
		for b.Loop() {
			revision = must[int64](b)(s.Update(b.Context(), "secrets/default/a", revision, secret, 0))
		}
	})
}

// BenchmarkFill reads 5,000 Secrets of 2 KB, as a watch cache does when it starts.
func BenchmarkFill(b *testing.B) {
	const count = 5000
	benchmarkStores(b, func(b *testing.B, s *storage.Store) {
		for i := range count {
			must[int64](b)(s.Create(b.Context(), fmt.Sprintf("secrets/default/%d", i), secret, 0))
		}
		b.ReportAllocs()
		for b.Loop() {
			page := must[storage.Page](b)(s.List(b.Context(), "secrets/", storage.ListOptions{}))
			if len(page.Values) != count {
				b.Fatal(len(page.Values))
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/object")
	})
}

// BenchmarkDecrypt decrypts the event of a Secret of 2 KB.
func BenchmarkDecrypt(b *testing.B) {
	benchmarkStores(b, func(b *testing.B, s *storage.Store) {
		before := must[int64](b)(s.Revision(b.Context()))
		stream := must[*storage.WatchStream](b)(s.Watch(b.Context(), before))
		defer stream.Close()
		must[int64](b)(s.Create(b.Context(), "secrets/default/a", secret, 0))
		event := must[storage.Batch](b)(stream.Next(b.Context())).Events[0]
		b.ReportAllocs()
		for b.Loop() {
			if err := s.Decrypt(b.Context(), []storage.Event{event}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
