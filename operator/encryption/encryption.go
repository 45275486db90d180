// Package encryption renders the EncryptionConfiguration of a cluster in each stage of a change. Its functions are pure.
//
// A change of the key, the provider or the resources goes through the stages of package rotation: in TrustBoth all API
// servers can read what the next scheme writes, in Reissue they write it and still read what the former one wrote, and
// after DropOld only the new scheme is left. Plain values are always readable.
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

// Kinds of providers.
const (
	Secretbox = "secretbox"
	AESCBC    = "aescbc"
	KMS       = "kms"
)

const keySize = 32 // bytes

// Provider encrypts values. The zero value stores plain values.
type Provider struct {
	Kind     string        `json:"kind,omitempty"`
	Name     string        `json:"name,omitempty"`   // of the key or of the plugin, stored with every value
	Secret   string        `json:"secret,omitempty"` // base64; not of KMS
	Endpoint string        `json:"endpoint,omitempty"`
	Timeout  time.Duration `json:"timeout,omitempty"`
	HostPath string        `json:"hostPath,omitempty"` // directory of the node with the socket
}

// Scheme defines which resources are encrypted, and how.
type Scheme struct {
	Resources []string  `json:"resources,omitempty"`
	Provider  Provider  `json:"provider,omitzero"`
	Created   time.Time `json:"created,omitzero"`
}

// State is the scheme in use and, during a change, the next or the former one.
type State struct {
	Current  Scheme  `json:"current,omitzero"`
	Next     *Scheme `json:"next,omitempty"`
	Previous *Scheme `json:"previous,omitempty"`
}

// Parse returns a stored state. No data is the state without encryption.
func Parse(data []byte) (s State, err error) {
	if len(data) == 0 {
		return s, nil
	}
	// A key in a field of another name, or of another letter case, would be ignored.
	strict, err := kjson.UnmarshalStrict(data, &s)
	if err := errors.Join(append(strict, err)...); err != nil {
		return s, fmt.Errorf("parsing the encryption keys: %w", err)
	}
	return s, nil
}

// Data returns the state as Parse reads it.
func (s State) Data() []byte {
	data, err := json.Marshal(s)
	if err != nil { // impossible for plain structs
		panic(err)
	}
	return data
}

// Changing reports whether a change is in progress.
func (s State) Changing() bool { return s.Next != nil || s.Previous != nil }

// Active reports whether API servers need a configuration.
func (s State) Active() bool {
	return s.Changing() || len(s.Current.Resources) > 0
}

// Same reports whether two schemes differ at most in keys that the operator creates.
func (s Scheme) Same(other Scheme) bool {
	a, b := s.Provider, other.Provider
	if a.Kind != KMS {
		a.Name, a.Secret, b.Name, b.Secret = "", "", "", ""
	}
	return a == b && slices.Equal(slices.Sorted(slices.Values(s.Resources)), slices.Sorted(slices.Values(other.Resources)))
}

// WithKey returns the scheme with a key: that of former if it has the same provider and fresh is false, otherwise a new
// one, named after the time.
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

// Promote returns the state with the next scheme as the current one.
func (s State) Promote() State {
	if s.Next == nil {
		return s
	}
	former := s.Current
	return State{Current: *s.Next, Previous: &former}
}

// Drop returns the state without the former scheme.
func (s State) Drop() State {
	s.Previous = nil
	return s
}

// Restored returns the state of a cluster that is restored from a backup whose values are encrypted with the given
// keys, such as "secretbox:v1:key1". It is the state of the former cluster, or that of the spec if its KMS plugin
// encrypted all values. missing lists the keys that neither state has.
func (s State) Restored(keys []string, spec Scheme) (restored State, missing []string) {
	if len(keys) == 0 {
		return State{}, nil
	}
	lacks := func(state State) (missing []string) {
		for _, key := range keys {
			if !slices.Contains(state.keys(), key) {
				missing = append(missing, key)
			}
		}
		return missing
	}
	if other := (State{Current: spec}); spec.Provider.Kind == KMS && len(lacks(other)) == 0 {
		return other, nil
	}
	return s, lacks(s)
}

// keys returns the keys that API servers have, as in the prefix of encrypted values.
func (s State) keys() (keys []string) {
	for _, scheme := range []*Scheme{&s.Current, s.Next, s.Previous} {
		switch {
		case scheme == nil || len(scheme.Resources) == 0:
		case scheme.Provider.Kind == KMS:
			keys = append(keys, "kms:v2:"+scheme.Provider.Name)
		default:
			keys = append(keys, scheme.Provider.Kind+":v1:"+scheme.Provider.Name)
		}
	}
	return keys
}

// Lacks returns the names of keys in an EncryptionConfiguration that the state does not have, although API servers with that
// configuration encrypt with them, sorted. With all, it includes the keys that they only decrypt with. A configuration that
// cannot be parsed has no keys.
func (s State) Lacks(configuration []byte, all bool) []string {
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

// has reports whether one of the schemes has the key of a provider.
func (s State) has(p Provider) bool {
	return slices.ContainsFunc([]*Scheme{&s.Current, s.Next, s.Previous}, func(scheme *Scheme) bool {
		return scheme != nil && len(scheme.Resources) > 0 && scheme.Provider.id() == p.id() && scheme.Provider.Secret == p.Secret
	})
}

// providerOf returns the provider of a configuration with kind, name and secret; the zero value stores plain values.
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

// Affected returns the resources whose stored objects a change rewrites.
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

// bySpecificity orders resources before the wildcards that contain them: the first entry that matches decides.
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

// covers reports whether the scheme encrypts every resource that an entry of another scheme matches.
func (s *Scheme) covers(entry string) bool {
	if s == nil {
		return false
	}
	_, group, _ := strings.Cut(entry, ".")
	return slices.Contains(s.Resources, entry) || slices.Contains(s.Resources, "*.*") ||
		entry != "*.*" && slices.Contains(s.Resources, "*."+group)
}

// Uncovered returns the entries of the scheme's resources that another scheme does not encrypt.
func (s Scheme) Uncovered(other Scheme) []string {
	return slices.DeleteFunc(slices.Clone(s.Resources), other.covers)
}

// Configuration returns the EncryptionConfiguration, or nil if none is needed.
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

// providers returns the providers of an entry of resources. The first one writes, all of them read.
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
