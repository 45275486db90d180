package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
)

// continueToken is where a limited list goes on: kube-apiserver's own format, so that a client may be served by
// either server.
type continueToken struct {
	APIVersion string `json:"v"`
	// Revision of the list; -1: continue with what is there now.
	Revision int64 `json:"rv"`
	// Start is the key to go on with, relative to the collection.
	Start string `json:"start"`
}

const (
	continueVersion = "meta.k8s.io/v1"
	latestRevision  = -1
	firstKeyAfter   = "\u0000"
)

var (
	errTokenInvalid = errors.New("continue key is not valid")
	errTokenVersion = errors.New("continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")
)

// encodeContinue makes the token that goes on at key, which lies in collection.
func encodeContinue(key, collection string, revision int64) (string, error) {
	start, ok := strings.CutPrefix(key, collection)
	if !ok {
		return "", fmt.Errorf("key %q is not in %q", key, collection)
	}
	encoded, err := json.Marshal(continueToken{APIVersion: continueVersion, Revision: revision, Start: "/" + start})
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(encoded), nil
}

// decodeContinue returns the key and revision to go on with. A token that leads out of the collection is refused.
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
	// Resolving the key must not leave the collection.
	start := "/" + strings.TrimPrefix(c.Start, "/")
	if path.Clean(start) != start {
		return "", 0, fmt.Errorf("%w: %v", errTokenInvalid, c.Start)
	}
	// Every negative revision stands for the present one.
	return collection + start[1:], max(c.Revision, latestRevision), nil
}
