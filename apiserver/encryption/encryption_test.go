package encryption_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/component-base/metrics/legacyregistry"

	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/encryption/encryptiontest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

const patience = time.Minute

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// These are the providers of the tests, each with its key. Keys with other names have other secrets.
func aescbc(name string) string    { return withKey("aescbc", name) }
func aesgcm(name string) string    { return withKey("aesgcm", name) }
func secretbox(name string) string { return withKey("secretbox", name) }

func withKey(provider, name string) string {
	secret := strings.Repeat(name[:1], 42) + "8=" // 32 bytes
	return fmt.Sprintf(`{%s: {keys: [{name: %s, secret: %s}]}}`, provider, name, secret)
}

func kms(version string, plugin *encryptiontest.Plugin) string {
	return fmt.Sprintf(`{kms: {apiVersion: %s, name: plugin, endpoint: %q, timeout: 10s}}`, version, plugin.Endpoint())
}

const identity = "{identity: {}}"

// configuration returns a file that encrypts Secrets with providers, and the custom resource widgets with secretbox.
func configuration(providers ...string) string {
	return "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n" +
		"- resources: [secrets]\n  providers: [" + strings.Join(providers, ", ") + "]\n" +
		"- resources: [widgets.example.com]\n  providers: [" + secretbox("custom") + "]\n"
}

func write(t testing.TB, file, content string) string {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	return file
}

func load(t testing.TB, content string) *encryption.Configuration {
	t.Helper()
	file := write(t, filepath.Join(t.TempDir(), "encryption.yaml"), content)
	loaded := must[*encryption.Configuration](t)(encryption.Load(t.Context(), encryption.Options{File: file}))
	t.Cleanup(loaded.Close)
	return loaded
}

// catalogs returns catalogs with Secrets and Pods.
func catalogs() *resource.CatalogHolder {
	holder := &resource.CatalogHolder{}
	holder.Publish(resource.NewCatalog(
		&resource.Definition{Plural: "secrets", StoragePath: "secrets"},
		&resource.Definition{Plural: "pods", StoragePath: "pods"}))
	return holder
}

func newStore(client *clientv3.Client, configuration *encryption.Configuration) *storage.Store {
	s := storage.New(client, "/registry")
	s.Encrypt(configuration.Storage(catalogs()))
	return s
}

func stored(t testing.TB, client *clientv3.Client, key string) []byte {
	t.Helper()
	return must[*clientv3.GetResponse](t)(client.Get(t.Context(), key)).Kvs[0].Value
}

func TestProviders(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.KMSv1, true)
	plugin := encryptiontest.Start(t, "1")
	for name, c := range map[string]struct {
		provider, prefix string
		authenticated    bool // the provider authenticates the key in etcd
	}{
		"identity":  {identity, "plain", false},
		"aescbc":    {aescbc("one"), "k8s:enc:aescbc:v1:one:", false},
		"aesgcm":    {aesgcm("one"), "k8s:enc:aesgcm:v1:one:", true},
		"secretbox": {secretbox("one"), "k8s:enc:secretbox:v1:one:", false},
		"kms":       {kms("v2", plugin), "k8s:enc:kms:v2:plugin:", true},
		"kms v1":    {kms("v1", plugin), "k8s:enc:kms:v1:plugin:", true},
	} {
		t.Run(name, func(t *testing.T) {
			client := etcdtest.Client(t)
			path, other := "secrets/default/a", "secrets/other/a"
			s := newStore(client, load(t, configuration(c.provider)))
			testValues(t, s, path)
			sealed := stored(t, client, "/registry/"+path)
			if !bytes.HasPrefix(sealed, []byte(c.prefix)) || (name != "identity" && bytes.Contains(sealed, []byte("plain"))) {
				t.Errorf("stored as %q, want the prefix %s", sealed, c.prefix)
			}
			must[*clientv3.PutResponse](t)(client.Put(t.Context(), "/registry/"+other, string(sealed)))
			_, err := s.Get(t.Context(), other)
			var unreadable *storage.TransformError
			if c.authenticated != errors.As(err, &unreadable) {
				t.Errorf("reading a value that was copied from another key: %v", err)
			}
		})
	}
}

// testValues writes a value in every way, and reads it in every way.
func testValues(t *testing.T, s *storage.Store, path string) {
	ctx := t.Context()
	before := must[int64](t)(s.Revision(ctx))
	stream := must[*storage.WatchStream](t)(s.Watch(ctx, before))
	defer stream.Close()
	created := must[int64](t)(s.Create(ctx, path, []byte("plain one"), 0))
	updated := must[int64](t)(s.Update(ctx, path, created, []byte("plain two"), time.Minute))
	var conflict *storage.ConflictError
	if _, err := s.Delete(ctx, path, created); !errors.As(err, &conflict) || string(conflict.Current.Data) != "plain two" {
		t.Errorf("conflict: %v, %+v", err, conflict)
	}
	got := must[storage.Value](t)(s.Get(ctx, path))
	page := must[storage.Page](t)(s.List(ctx, path, storage.ListOptions{Revision: created}))
	if string(got.Data) != "plain two" || got.Stale || len(page.Values) != 1 ||
		string(page.Values[0].Data) != "plain one" {
		t.Errorf("got %+v, listed %+v", got, page)
	}
	must[int64](t)(s.Delete(ctx, path, updated))
	if events := receive(t, s, stream, 3); string(events[1].Data) != "plain two" || events[2].Data != nil {
		t.Errorf("watched %+v", events)
	}
	history := must[*storage.WatchStream](t)(s.History(ctx, "secrets/", before))
	defer history.Close()
	if events := receive(t, s, history, 3); string(events[1].Previous) != "plain one" ||
		string(events[2].Previous) != "plain two" {
		t.Errorf("history: %+v", events)
	}
	must[int64](t)(s.Create(ctx, path, []byte("plain three"), 0))
}

// receive returns the decrypted events of a stream.
func receive(t *testing.T, s *storage.Store, stream *storage.WatchStream, count int) (events []storage.Event) {
	t.Helper()
	for len(events) < count {
		batch := must[storage.Batch](t)(stream.Next(t.Context()))
		events = append(events, batch.Events...)
	}
	if err := s.Decrypt(t.Context(), events); err != nil {
		t.Fatal(err)
	}
	return events
}

// A value that is read with another provider or key than a write would use is stale.
func TestRotation(t *testing.T) {
	client, plugin := etcdtest.Client(t), encryptiontest.Start(t, "1")
	path := "secrets/default/rotated"
	must[int64](t)(newStore(client, load(t, configuration(identity))).Create(t.Context(), path, []byte("plain"), 0))
	for _, step := range []struct {
		providers []string
		prefix    string
	}{
		{[]string{aescbc("one"), identity}, "k8s:enc:aescbc:v1:one:"},
		{[]string{aescbc("two"), aescbc("one")}, "k8s:enc:aescbc:v1:two:"},
		{[]string{kms("v2", plugin), aescbc("two")}, "k8s:enc:kms:v2:plugin:"},
		{[]string{identity, kms("v2", plugin)}, "plain"},
	} {
		s := newStore(client, load(t, configuration(step.providers...)))
		for _, stale := range []bool{true, false} {
			got := must[storage.Value](t)(s.Get(t.Context(), path))
			if string(got.Data) != "plain" || got.Stale != stale {
				t.Errorf("%s: got %q, stale: %t, want %t", step.prefix, got.Data, got.Stale, stale)
			}
			must[int64](t)(s.Update(t.Context(), path, got.Revision, got.Data, 0))
		}
		if sealed := stored(t, client, "/registry/"+path); !bytes.HasPrefix(sealed, []byte(step.prefix)) {
			t.Errorf("stored as %q, want the prefix %s", sealed, step.prefix)
		}
	}
}

func TestResources(t *testing.T) {
	client := etcdtest.Client(t)
	all := "\n- resources: ['*.']\n  providers: [" + aesgcm("core") +
		"]\n- resources: ['*.*']\n  providers: [" + aesgcm("all") + "]\n"
	s := newStore(client, load(t, configuration(aescbc("one"))+all))
	for path, prefix := range map[string]string{
		"secrets/ns/a": "k8s:enc:aescbc:v1:one:", "example.com/widgets/ns/a": "k8s:enc:secretbox:v1:custom:",
		"pods/ns/a": "k8s:enc:aesgcm:v1:core:", "example.com/gadgets/ns/a": "k8s:enc:aesgcm:v1:all:",
		"ranges/servicenodeports": "plain", "masterleases/192.0.2.1": "plain",
	} {
		must[int64](t)(s.Create(t.Context(), path, []byte("plain"), 0))
		if sealed := stored(t, client, "/registry/"+path); !bytes.HasPrefix(sealed, []byte(prefix)) {
			t.Errorf("%s is stored as %q, want the prefix %s", path, sealed, prefix)
		}
		if got := must[storage.Value](t)(s.Get(t.Context(), path)); string(got.Data) != "plain" {
			t.Errorf("%s: got %q", path, got.Data)
		}
	}
}

// A value that was damaged in etcd is an error of its object alone, even if upstream's transformer panics.
func TestMalformedValues(t *testing.T) {
	client, plugin := etcdtest.Client(t), encryptiontest.Start(t, "1")
	s := newStore(client, load(t, configuration(aescbc("one"), aesgcm("one"), secretbox("one"), kms("v2", plugin))))
	for _, prefix := range []string{
		"", "k8s:enc:", "k8s:enc:unknown:v1:", "k8s:enc:aescbc:v1:", "k8s:enc:aescbc:v1:one:", "k8s:enc:aesgcm:v1:one:",
		"k8s:enc:secretbox:v1:one:", "k8s:enc:kms:v2:plugin:", "k8s:enc:kms:v2:other:",
	} {
		for length := range 50 {
			must[*clientv3.PutResponse](t)(client.Put(t.Context(), "/registry/secrets/a", prefix+strings.Repeat("x", length)))
			var unreadable *storage.TransformError
			if _, err := s.Get(t.Context(), "secrets/a"); !errors.As(err, &unreadable) ||
				unreadable.Key != "/registry/secrets/a" {
				t.Errorf("%s and %d bytes: %v", prefix, length, err)
			}
		}
	}
	page := must[storage.Page](t)(s.List(t.Context(), "secrets/", storage.ListOptions{Unreadable: true}))
	if len(page.Values) != 1 || page.Values[0].Err == nil {
		t.Errorf("listed %+v", page)
	}
	for revision, want := range map[int64]bool{page.Values[0].Revision - 1: false, page.Values[0].Revision: true} {
		if deleted, err := s.DeleteUnreadable(t.Context(), "secrets/a", revision); deleted != want || err != nil {
			t.Errorf("revision %d: deleted: %v, %v", revision, deleted, err)
		}
	}
}

func TestConfigurationErrors(t *testing.T) {
	plugin := encryptiontest.Start(t, "1")
	for content, want := range map[string]string{
		"":                     "error while parsing file: error while loading file: encryption provider configuration file",
		"{}":                   "error while parsing file: error decoding encryption provider configuration file",
		configuration():        "resources[0].providers: Required value",
		configuration("{}"):    "provider does not contain any of the expected providers",
		configuration("{x: }"): `unknown field "resources[0].providers[0].x"`,
		configuration("{aescbc: {keys: [{name: a, secret: YQ==}]}}"): "secret is not of the expected length",
		configuration(kms("v1", plugin)): "error while building transformers: KMSv1 is " +
			"deprecated and will only receive security updates",
	} {
		file := write(t, filepath.Join(t.TempDir(), "encryption.yaml"), content)
		_, err := encryption.Load(t.Context(), encryption.Options{File: file})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwant %s", content, err, want)
		}
	}
	_, err := encryption.Load(t.Context(), encryption.Options{File: "/nowhere"})
	if err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("missing file: %v", err)
	}
}

// TestReload changes the file to a valid configuration, and then to an invalid one.
func TestReload(t *testing.T) {
	client, plugin := etcdtest.Client(t), encryptiontest.Start(t, "1")
	file := write(t, filepath.Join(t.TempDir(), "encryption.yaml"), configuration(aescbc("one"), identity))
	loaded := must[*encryption.Configuration](t)(encryption.Load(t.Context(), encryption.Options{
		File: file, Reload: true, Server: "reloaded", Interval: 10 * time.Millisecond,
	}))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var notified atomic.Int32
	go func() {
		loaded.Run(ctx, func() { notified.Add(1) })
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		loaded.Close()
	})
	checks := loaded.Checks()
	if len(checks) != 1 || checks[0].Name != "kms-providers" || checks[0].Run(t.Context()) != nil {
		t.Fatalf("checks: %v", checks)
	}
	s := newStore(client, loaded)
	must[int64](t)(s.Create(t.Context(), "secrets/a", []byte("plain"), 0))
	isStale := func() bool { return must[storage.Value](t)(s.Get(t.Context(), "secrets/a")).Stale }
	write(t, file, configuration(kms("v2", plugin), aescbc("one")))
	await(t, "the new file", isStale)
	must[int64](t)(s.Create(t.Context(), "secrets/b", []byte("plain"), 0))
	if sealed := stored(t, client, "/registry/secrets/b"); !bytes.HasPrefix(sealed, []byte("k8s:enc:kms:v2:")) {
		t.Errorf("stored as %q after the reload", sealed)
	}
	if err := checks[0].Run(t.Context()); err != nil {
		t.Errorf("health: %v", err)
	}
	write(t, file, configuration("{x: }"))
	await(t, "the failure to load the next file", func() bool { return reloads(t, "failure") > 0 })
	if got := must[storage.Value](t)(s.Get(t.Context(), "secrets/b")); string(got.Data) != "plain" || got.Stale ||
		reloads(t, "success") != 1 {
		t.Errorf("after a file that is not valid: %+v, %v reloads", got, reloads(t, "success"))
	}
	if got := notified.Load(); got != 1 {
		t.Errorf("got %d notifications of one change", got)
	}
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true,
		func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// reloads returns the value of a counter of upstream's metrics of reloads.
func reloads(t *testing.T, status string) (count float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "apiserver_encryption_config_controller_automatic_reloads_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "status" && label.GetValue() == status {
					count += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return count
}

// TestPluginDown starts without the KMS plugin. When the plugin appears, values can be written; when it goes away,
// they can still be read.
func TestPluginDown(t *testing.T) {
	client, plugin := etcdtest.Client(t), encryptiontest.Start(t, "1")
	plugin.Down()
	impatient := strings.Replace(configuration(kms("v2", plugin)), "timeout: 10s", "timeout: 200ms", 1)
	loaded := load(t, impatient)
	s, check := newStore(client, loaded), loaded.Checks()[0]
	var unreadable *storage.TransformError
	if _, err := s.Create(t.Context(), "secrets/a", []byte("plain"), 0); !errors.As(err, &unreadable) ||
		errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("writing without the plugin: %v", err)
	}
	if check.Name != "kms-providers" || check.Run(t.Context()) == nil {
		t.Errorf("%s passes without the plugin", check.Name)
	}
	plugin.Up(t)
	await(t, "the plugin", func() bool { return check.Run(t.Context()) == nil })
	must[int64](t)(s.Create(t.Context(), "secrets/a", []byte("plain"), 0))
	plugin.Down()
	if got := must[storage.Value](t)(s.Get(t.Context(), "secrets/a")); string(got.Data) != "plain" {
		t.Errorf("without the plugin, got %q", got.Data)
	}
	again := load(t, impatient)
	restarted := newStore(client, again)
	if _, err := restarted.Get(t.Context(), "secrets/a"); !errors.As(err, &unreadable) {
		t.Errorf("reading without the plugin after a restart: %v", err)
	}
	plugin.Up(t)
	plugin.Rotate("2")
	await(t, "the restarted store", func() bool {
		_ = again.Checks()[0].Run(t.Context()) // calls the plugin
		got, err := restarted.Get(t.Context(), "secrets/a")
		return err == nil && string(got.Data) == "plain" && got.Stale
	})
}

// TestMalformedErrors: with the feature gate AllowUnsafeMalformedObjectDeletion, a value that cannot be decrypted has
// kube-apiserver's error, with or without a file. Other values are read and written as without the gate.
func TestMalformedErrors(t *testing.T) {
	encrypted := load(t, configuration(aescbc("one"))).Storage(catalogs())
	for name, test := range map[string]struct {
		encryption *storage.Encryption
		prefix     string // prefix of the stored value
	}{
		"without a file": {nil, ""}, "with a file": {encrypted, "k8s:enc:aescbc:v1:one:"},
	} {
		t.Run(name, func(t *testing.T) {
			transformer := encryption.Malformed(test.encryption).For("secrets/a")
			of := value.DefaultContext("/registry/secrets/a")
			sealed := must[[]byte](t)(transformer.TransformToStorage(t.Context(), []byte("plain"), of))
			if !strings.HasPrefix(string(sealed), test.prefix) {
				t.Errorf("stored as %q", sealed)
			}
			plain, stale, err := transformer.TransformFromStorage(t.Context(), sealed, of)
			if string(plain) != "plain" || stale || err != nil {
				t.Errorf("got %q, stale is %t, %v", plain, stale, err)
			}
			const want = "data from the storage is not transformable revision=0: "
			_, _, err = transformer.TransformFromStorage(t.Context(), []byte("k8s:enc:unknown:v1:x"), of)
			if err == nil || !strings.HasPrefix(err.Error(), want) || errors.Unwrap(err) == nil {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
	if encryption.Malformed(nil).Remote || !encryption.Malformed(&storage.Encryption{Remote: true}).Remote {
		t.Error("Malformed changes whether the transformers are remote")
	}
}
