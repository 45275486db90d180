package pki

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"slices"
)

// Keys are the keys that sign and verify service-account tokens: the signer and, during a rotation, its successor or
// its predecessor. The methods return changed copies.
type Keys struct {
	Signer   Pair   // Signer.Certificate is the public key
	Next     *Pair  // tokens of this key are accepted, and it becomes the signer next; nil: none
	Previous []byte // PEM public keys of former signers whose tokens are still accepted; nil: none
}

// Keys of the data in which Keys are stored. Pods mount the first two, which belong to the signer; service-account.pub
// contains all public keys that verify tokens.
const (
	verifyingKey      = "service-account.pub"
	signingKey        = "service-account.key"
	nextVerifyingKey  = "next.pub"
	nextSigningKey    = "next.key"
	previousVerifying = "previous.pub"
)

// ParseKeys returns the keys that the data of a Secret contains. It does not validate them; Check does.
func ParseKeys(data map[string][]byte) Keys {
	k := Keys{Signer: Pair{Certificate: data[verifyingKey], Key: data[signingKey]}, Previous: data[previousVerifying]}
	if len(data[nextVerifyingKey]) > 0 {
		k.Next = &Pair{Certificate: data[nextVerifyingKey], Key: data[nextSigningKey]}
	}
	// service-account.pub contains all verifying keys; the signer's is the first.
	if block, rest := pem.Decode(data[verifyingKey]); block != nil && len(bytes.TrimSpace(rest)) > 0 {
		k.Signer.Certificate = pem.EncodeToMemory(block)
	}
	return k
}

// RestoredKeys returns the keys that a backup contains, as its private key and all PEM public keys. A backup that was
// created during a rotation has several public keys. Tokens of all of them are accepted until the restored cluster
// resumes the rotation and drops the keys other than the signer's.
func RestoredKeys(backup Pair) Keys {
	k := Keys{Signer: backup}
	if block, rest := pem.Decode(backup.Certificate); block != nil {
		k.Signer.Certificate, k.Previous = pem.EncodeToMemory(block), bytes.TrimSpace(rest)
		if len(k.Previous) > 0 {
			k.Previous = append(k.Previous, '\n')
		}
	}
	return k
}

// Data returns the data of the Secret in which the keys are stored.
func (k Keys) Data() map[string][]byte {
	data := map[string][]byte{verifyingKey: k.Verifying(), signingKey: k.Signer.Key}
	if k.Next != nil {
		data[nextVerifyingKey], data[nextSigningKey] = k.Next.Certificate, k.Next.Key
	}
	if len(k.Previous) > 0 {
		data[previousVerifying] = k.Previous
	}
	return data
}

// Verifying returns the PEM public keys whose tokens are accepted, the signer's first.
func (k Keys) Verifying() []byte {
	all := slices.Clone(k.Signer.Certificate)
	if k.Next != nil {
		all = append(all, k.Next.Certificate...)
	}
	return append(all, k.Previous...)
}

// Add returns the keys with a successor of the signer.
func (k Keys) Add(next Pair) Keys {
	k.Next = &next
	return k
}

// Promote returns the keys with the successor as the signer. It discards the private key of the former signer. Without
// a successor, Promote does nothing.
func (k Keys) Promote() Keys {
	if k.Next != nil {
		k.Previous, k.Signer, k.Next = k.Signer.Certificate, *k.Next, nil
	}
	return k
}

// Drop returns the keys without the predecessor. While there is a successor, Drop does nothing.
func (k Keys) Drop() Keys {
	if k.Next == nil {
		k.Previous = nil
	}
	return k
}

// KeyIDs returns the key IDs (kid) of PEM public keys, in order, as API servers publish them in their JSON web key set.
// The ID is derived as in k8s.io/kubernetes/pkg/serviceaccount.
func KeyIDs(public []byte) []string {
	var ids []string
	for block, rest := pem.Decode(public); block != nil; block, rest = pem.Decode(rest) {
		sum := sha256.Sum256(block.Bytes)
		ids = append(ids, base64.RawURLEncoding.EncodeToString(sum[:]))
	}
	return ids
}
