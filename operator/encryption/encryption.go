// Package encryption renders the EncryptionConfiguration of a cluster, in each stage of a change. Its functions are
// pure, except that WithKey creates random keys.
//
// A change of the key, the provider or the encrypted resources goes through the stages of package rotation. In
// TrustBoth all API servers can decrypt values of the next scheme, but still write with the current one. In Reissue
// they write with the next scheme, which is then the current one, and still decrypt values of the previous scheme.
// After DropOld, the configuration has only the new scheme.
//
// Invariant: every configuration contains the identity provider for all resources, so that values which were stored
// without encryption are always readable. It is the first provider, which writes, for resources that the current scheme
// does not encrypt.
package encryption

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Kinds of providers, with the names that they have in an EncryptionConfiguration.
const (
	Secretbox = "secretbox"
	AESCBC    = "aescbc"
	KMS       = "kms"
)

const keySize = 32 // bytes

// Provider encrypts values with one key or one KMS plugin. The zero value stores values without encryption.
type Provider struct {
	Kind     string        `json:"kind,omitempty"`
	Name     string        `json:"name,omitempty"`   // name of the key or KMS plugin; stored in the prefix of each value
	Secret   string        `json:"secret,omitempty"` // the key in base64; "" for KMS
	Endpoint string        `json:"endpoint,omitempty"`
	Timeout  time.Duration `json:"timeout,omitempty"`
	HostPath string        `json:"hostPath,omitempty"` // directory of the node that contains the plugin's socket
}

// Scheme defines which resources are encrypted, and by which provider.
type Scheme struct {
	Resources []string  `json:"resources,omitempty"`
	Provider  Provider  `json:"provider,omitzero"`
	Created   time.Time `json:"created,omitzero"`
}

// State is the content of the Secret with the encryption keys: the scheme with which API servers write and, while a
// change is in progress, either the next scheme (in stage TrustBoth) or the previous scheme (in stage Reissue).
//
// Invariant: Next and Previous are never both set.
type State struct {
	Current  Scheme  `json:"current,omitzero"`
	Next     *Scheme `json:"next,omitempty"`
	Previous *Scheme `json:"previous,omitempty"`
}

// Parse returns the state that Data has encoded. Without data it returns the state without encryption. It is strict,
// because users may edit the Secret: a misspelled field is an error.
func Parse(data []byte) (s State, err error) {
	if len(data) == 0 {
		return s, nil
	}
	// Without strict decoding, a key in a field with another name or another letter case would be ignored.
	strict, err := kjson.UnmarshalStrict(data, &s)
	if err := errors.Join(append(strict, err)...); err != nil {
		return s, fmt.Errorf("parse the encryption keys: %w", err)
	}
	return s, nil
}

// Data returns the JSON encoding of the state, which Parse reads.
func (s State) Data() []byte {
	data, err := json.Marshal(s)
	if err != nil { // impossible for plain structs
		panic(err)
	}
	return data
}

// Changing reports whether a change is in progress.
func (s State) Changing() bool { return s.Next != nil || s.Previous != nil }

// Active reports whether API servers need an EncryptionConfiguration.
func (s State) Active() bool {
	return s.Changing() || len(s.Current.Resources) > 0
}

// Same reports whether two schemes are equal except for the keys that the operator creates: the name and the secret of
// a provider other than KMS, and the creation time. The order of the resources is irrelevant.
func (s Scheme) Same(other Scheme) bool {
	a, b := s.Provider, other.Provider
	if a.Kind != KMS {
		a.Name, a.Secret, b.Name, b.Secret = "", "", "", ""
	}
	return a == b && slices.Equal(slices.Sorted(slices.Values(s.Resources)), slices.Sorted(slices.Values(other.Resources)))
}

// WithKey returns the scheme with a key. It takes the key and the creation time from former if both have the same kind
// of provider and fresh is false; otherwise it creates a key that is named after the time. Schemes that encrypt
// nothing, and KMS providers, need no key.
func (s Scheme) WithKey(former Scheme, fresh bool, now time.Time) (Scheme, error) {
	s.Created = now
	switch {
	case len(s.Resources) == 0, s.Provider.Kind == KMS:
		return s, nil
	case !fresh && former.Provider.Kind == s.Provider.Kind:
		s.Provider, s.Created = former.Provider, former.Created
		return s, nil
	}
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return s, err
	}
	s.Provider.Name, s.Provider.Secret = fmt.Sprintf("key%d", now.UnixNano()), base64.StdEncoding.EncodeToString(key)
	return s, nil
}

// Promote returns the state with the next scheme as the current one and the current scheme as the previous one. It does
// nothing if there is no next scheme, so that repeating it is harmless.
func (s State) Promote() State {
	if s.Next == nil {
		return s
	}
	former := s.Current
	return State{Current: *s.Next, Previous: &former}
}

// Drop returns the state without the previous scheme.
func (s State) Drop() State {
	s.Previous = nil
	return s
}

// Restored returns the encryption state of a cluster that is restored from a backup. s is the state of the original
// cluster, and keys are the keys that encrypt values in the backup, in the notation of the prefix of encrypted values,
// such as "secretbox:v1:key1". The result is the first of the following that has all keys: the scheme of the new
// cluster's spec, if it uses a KMS plugin; s; a state with the one or two schemes of s and retired that the backup was
// encrypted with. If none has all keys, missing lists the keys that are not available. Without keys, the result is the
// state without encryption.
func (s State) Restored(keys []string, spec Scheme, retired Retired) (restored State, missing []string) {
	if len(keys) == 0 {
		return State{}, nil
	}
	if other := (State{Current: spec}); spec.Provider.Kind == KMS && len(other.missing(keys)) == 0 {
		return other, nil
	}
	missing = s.missing(keys)
	if len(missing) == 0 {
		return s, nil
	}
	// A backup has the keys of at most two schemes, because only the current and the previous scheme of a state encrypt
	// values.
	schemes := append(s.schemes(), retired...)
	found := map[string]bool{} // several schemes with different resources can have one key
	used := slices.DeleteFunc(schemes, func(scheme Scheme) bool {
		key := scheme.key()
		unused := found[key] || !slices.Contains(keys, key)
		found[key] = true
		return unused
	})
	older := State{}
	if len(used) > 0 {
		older.Current = used[0]
	}
	if len(used) > 1 {
		older.Previous = &used[1]
	}
	if missing := older.missing(keys); len(missing) > 0 {
		return s, missing
	}
	return older, nil
}

// missing returns the given keys that API servers with this state do not have.
func (s State) missing(keys []string) (missing []string) {
	available := s.keys()
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return slices.Contains(available, key) })
}

// schemes returns the schemes of the state that encrypt any resource, newest first.
func (s State) schemes() (all []Scheme) {
	for _, scheme := range []*Scheme{s.Next, &s.Current, s.Previous} {
		if scheme != nil && len(scheme.Resources) > 0 {
			all = append(all, *scheme)
		}
	}
	return all
}

// keys returns the keys of all schemes, in the notation of the prefix of encrypted values.
func (s State) keys() (keys []string) {
	for _, scheme := range s.schemes() {
		keys = append(keys, scheme.key())
	}
	return keys
}

// key returns the key of a scheme that encrypts values, in the notation of the prefix of encrypted values.
func (s Scheme) key() string {
	if s.Provider.Kind == KMS {
		return "kms:v2:" + s.Provider.Name
	}
	return s.Provider.Kind + ":v1:" + s.Provider.Name
}

// MissingKeys returns the sorted names of keys that API servers with the given EncryptionConfiguration use but the
// state does not contain, for example because the Secret was restored from an old copy. If all is false, the result
// contains only keys that API servers encrypt with; if all is true, also keys that they only decrypt with. A
// configuration that cannot be parsed counts as a configuration without keys.
func (s State) MissingKeys(configuration []byte, all bool) []string {
	var content apiserverv1.EncryptionConfiguration
	if err := yaml.Unmarshal(configuration, &content); err != nil {
		return nil
	}
	var missing []string
	for _, resource := range content.Resources {
		for i, provider := range resource.Providers {
			if found := providerOf(provider); (i == 0 || all) && found.Kind != "" && !s.has(found) {
				missing = append(missing, found.Name)
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// has reports whether any scheme of the state has the key of provider p: the same kind, name and secret.
func (s State) has(p Provider) bool {
	return slices.ContainsFunc([]*Scheme{&s.Current, s.Next, s.Previous}, func(scheme *Scheme) bool {
		return scheme != nil && len(scheme.Resources) > 0 && scheme.Provider.id() == p.id() &&
			scheme.Provider.Secret == p.Secret
	})
}

// providerOf returns the kind, name and secret of the provider in an EncryptionConfiguration. It returns the zero value
// for the identity provider.
func providerOf(c apiserverv1.ProviderConfiguration) Provider {
	switch {
	case c.AESCBC != nil && len(c.AESCBC.Keys) > 0:
		return Provider{Kind: AESCBC, Name: c.AESCBC.Keys[0].Name, Secret: c.AESCBC.Keys[0].Secret}
	case c.Secretbox != nil && len(c.Secretbox.Keys) > 0:
		return Provider{Kind: Secretbox, Name: c.Secretbox.Keys[0].Name, Secret: c.Secretbox.Keys[0].Secret}
	case c.KMS != nil:
		return Provider{Kind: KMS, Name: c.KMS.Name}
	}
	return Provider{}
}

// Affected returns the resources that any scheme of the state encrypts. In a change, the stored objects of these
// resources are rewritten. Specific entries precede wildcards.
func (s State) Affected() []string {
	all := slices.Clone(s.Current.Resources)
	for _, other := range []*Scheme{s.Next, s.Previous} {
		if other != nil {
			all = append(all, other.Resources...)
		}
	}
	slices.SortFunc(all, bySpecificity)
	return slices.Compact(all)
}

// bySpecificity orders entries of resources before the wildcards that contain them, because the first entry in an
// EncryptionConfiguration that matches a resource applies to it.
func bySpecificity(a, b string) int {
	rank := func(resource string) int {
		switch {
		case resource == "*.*":
			return 2
		case strings.HasPrefix(resource, "*."):
			return 1
		}
		return 0
	}
	if order := rank(a) - rank(b); order != 0 {
		return order
	}
	return strings.Compare(a, b)
}

// covers reports whether the scheme encrypts every resource that an entry matches. A nil scheme covers nothing.
func (s *Scheme) covers(entry string) bool {
	if s == nil {
		return false
	}
	_, group, _ := strings.Cut(entry, ".")
	return slices.Contains(s.Resources, entry) || slices.Contains(s.Resources, "*.*") ||
		entry != "*.*" && slices.Contains(s.Resources, "*."+group)
}

// Uncovered returns those entries of s.Resources that the scheme other does not encrypt.
func (s Scheme) Uncovered(other Scheme) []string {
	return slices.DeleteFunc(slices.Clone(s.Resources), other.covers)
}

// Configuration returns the EncryptionConfiguration in YAML, or nil if API servers need none.
func (s State) Configuration() ([]byte, error) {
	if !s.Active() {
		return nil, nil
	}
	content := apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserverv1.SchemeGroupVersion.String(), Kind: "EncryptionConfiguration"},
	}
	for _, entry := range s.Affected() {
		content.Resources = append(content.Resources, apiserverv1.ResourceConfiguration{
			Resources: []string{entry}, Providers: s.providers(entry),
		})
	}
	return yaml.Marshal(content)
}

// providers returns the providers of one entry of resources. API servers write with the first provider, and read with
// all of them. The identity provider is the first one if the current scheme does not encrypt the entry, and the last
// one otherwise.
func (s State) providers(entry string) []apiserverv1.ProviderConfiguration {
	identity := apiserverv1.ProviderConfiguration{Identity: &apiserverv1.IdentityConfiguration{}}
	var all []apiserverv1.ProviderConfiguration
	if !s.Current.covers(entry) {
		all = append(all, identity)
	}
	var names []string
	for _, scheme := range []*Scheme{&s.Current, s.Next, s.Previous} {
		if scheme == nil || len(scheme.Resources) == 0 || slices.Contains(names, scheme.Provider.id()) {
			continue
		}
		names = append(names, scheme.Provider.id())
		all = append(all, scheme.Provider.configuration())
	}
	if s.Current.covers(entry) {
		all = append(all, identity)
	}
	return all
}

func (p Provider) id() string { return p.Kind + "/" + p.Name }

func (p Provider) configuration() apiserverv1.ProviderConfiguration {
	keys := []apiserverv1.Key{{Name: p.Name, Secret: p.Secret}}
	switch p.Kind {
	case AESCBC:
		return apiserverv1.ProviderConfiguration{AESCBC: &apiserverv1.AESConfiguration{Keys: keys}}
	case KMS:
		return apiserverv1.ProviderConfiguration{KMS: &apiserverv1.KMSConfiguration{
			APIVersion: "v2", Name: p.Name, Endpoint: p.Endpoint, Timeout: &metav1.Duration{Duration: p.Timeout},
		}}
	}
	return apiserverv1.ProviderConfiguration{Secretbox: &apiserverv1.SecretboxConfiguration{Keys: keys}}
}
