package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
)

// continueToken is the position at which a limited list continues. It has kube-apiserver's format, so that either
// server can continue a list.
type continueToken struct {
	APIVersion string `json:"v"`
	// Revision is the revision of the whole list; -1: continue at the current revision (see storedError).
	Revision int64 `json:"rv"`
	// Start is the key to continue at, relative to the collection.
	Start string `json:"start"`
}

const (
	continueVersion = "meta.k8s.io/v1"
	latestRevision  = -1
	// firstKeyAfter is appended to a key to get the first key after it in byte order.
	firstKeyAfter = "\u0000"
)

var (
	errTokenInvalid = errors.New("continue key is not valid")
	errTokenVersion = errors.New("continue key is not valid: incorrect encoded start resourceVersion (version " +
		"meta.k8s.io/v1)")
)

// encodeContinue returns the token that continues at key, which must be in collection. slash is the beginning of the
// key in the token.
func encodeContinue(key, collection, slash string, revision int64) (string, error) {
	start, ok := strings.CutPrefix(key, collection)
	if !ok {
		return "", fmt.Errorf("key %q is not in %q", key, collection)
	}
	encoded, err := json.Marshal(continueToken{APIVersion: continueVersion, Revision: revision, Start: slash + start})
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(encoded), nil
}

// decodeContinue returns the key and revision to continue at. It mirrors storage.DecodeContinue, including the error
// texts. The token comes from the client, so that it can have any content: one that points outside the collection is
// refused.
func decodeContinue(token, collection string) (key string, revision int64, err error) {
	data, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", 0, fmt.Errorf("%w: %w", errTokenInvalid, err)
	}
	var c continueToken
	if err := json.Unmarshal(data, &c); err != nil {
		return "", 0, fmt.Errorf("%w: %w", errTokenInvalid, err)
	}
	if c.APIVersion != continueVersion {
		return "", 0, fmt.Errorf("continue key is not valid: server does not recognize this encoded version %v", c.APIVersion)
	}
	if c.Revision == 0 {
		return "", 0, errTokenVersion
	}
	if c.Start == "" {
		return "", 0, errors.New("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")
	}
	// "a/../../b" must not leave the collection.
	start := "/" + strings.TrimPrefix(c.Start, "/")
	if path.Clean(start) != start {
		return "", 0, fmt.Errorf("%w: %v", errTokenInvalid, c.Start)
	}
	// kube-apiserver accepts every negative revision as the current one.
	return collection + start[1:], max(c.Revision, latestRevision), nil
}
