package encryption

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	kjson "sigs.k8s.io/json"
)

// Retired holds the schemes whose keys API servers no longer have, newest first. Backups that contain no keys need
// them: without the key that a rotation has replaced, the encrypted objects of an earlier backup could not be read
// after a restore.
//
// Invariant: every scheme has a key, so that schemes of KMS plugins, whose keys are in the plugin, are never in the
// list.
type Retired []Scheme

// ParseRetired returns the list that Data has encoded. Empty data is an empty list. Unknown fields are errors, because
// users may edit the Secret.
func ParseRetired(data []byte) (r Retired, err error) {
	if len(data) == 0 {
		return nil, nil
	}
	strict, err := kjson.UnmarshalStrict(data, &r)
	if err := errors.Join(append(strict, err)...); err != nil {
		return nil, fmt.Errorf("parse the retired encryption keys: %w", err)
	}
	return r, nil
}

// Data returns the JSON encoding of the list, which ParseRetired reads.
func (r Retired) Data() []byte {
	data, err := json.Marshal(r)
	if err != nil { // impossible for plain structs
		panic(err)
	}
	return data
}

// With returns the list with the scheme that a state is about to drop. A scheme whose key the state keeps, because only
// the resources have changed, is not retired.
func (r Retired) With(s State) Retired {
	former := s.Previous
	if former == nil || former.Provider.Secret == "" || former.Provider == s.Current.Provider {
		return r
	}
	if slices.ContainsFunc(r, func(other Scheme) bool { return other.Provider == former.Provider }) {
		return r
	}
	return append(Retired{*former}, r...)
}

// Needed returns the schemes whose key is in keys, in the notation of the prefix of encrypted values, such as
// "secretbox:v1:key1".
func (r Retired) Needed(keys []string) (needed Retired) {
	for _, scheme := range r {
		if slices.Contains(keys, scheme.key()) {
			needed = append(needed, scheme)
		}
	}
	return needed
}
