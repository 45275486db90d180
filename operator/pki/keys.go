package pki

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"slices"
)

// Keys are the signing keys of service-account tokens: the one that signs and, while it is being replaced, its successor
// or predecessor. The methods return changed copies.
type Keys struct {
	Signer   Pair   // Certificate is the public key
	Next     *Pair  // accepted and to become the signer; nil: none
	Previous []byte // public key of the former signer, which is still accepted; nil: none
}

// Keys of the data of stored Keys. Those of the signer are the ones that pods mount.
const (
	verifyingKey      = "service-account.pub"
	signingKey        = "service-account.key"
	nextVerifyingKey  = "next.pub"
	nextSigningKey    = "next.key"
	previousVerifying = "previous.pub"
)

// ParseKeys returns the keys in the data of a Secret. It does not validate them.
func ParseKeys(data map[string][]byte) Keys {
	k := Keys{Signer: Pair{Certificate: data[verifyingKey], Key: data[signingKey]}, Previous: data[previousVerifying]}
	if len(data[nextVerifyingKey]) > 0 {
		k.Next = &Pair{Certificate: data[nextVerifyingKey], Key: data[nextSigningKey]}
	}
	// The verifying keys begin with the signer's.
	if block, rest := pem.Decode(data[verifyingKey]); block != nil && len(bytes.TrimSpace(rest)) > 0 {
		k.Signer.Certificate = pem.EncodeToMemory(block)
	}
	return k
}

// RestoredKeys returns the keys of a backup: its private key and all PEM public keys. Public keys after the signer's, which
// the backup has if it was created during a rotation, are accepted until the rotation is resumed and drops them.
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

// Data returns the data to store.
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

// Verifying returns the PEM public keys that verify tokens, the signer's first.
func (k Keys) Verifying() []byte {
	all := slices.Clone(k.Signer.Certificate)
	if k.Next != nil {
		all = append(all, k.Next.Certificate...)
	}
	return append(all, k.Previous...)
}

// Add returns the keys with a successor.
func (k Keys) Add(next Pair) Keys {
	k.Next = &next
	return k
}

// Promote returns the keys with the successor as the signer. The private key of the former signer is dropped.
func (k Keys) Promote() Keys {
	if k.Next != nil {
		k.Previous, k.Signer, k.Next = k.Signer.Certificate, *k.Next, nil
	}
	return k
}

// Drop returns the keys without the former signer.
func (k Keys) Drop() Keys {
	if k.Next == nil {
		k.Previous = nil
	}
	return k
}

// KeyIDs returns the IDs of PEM public keys as API servers publish them in a JSON web key set, in order.
func KeyIDs(public []byte) []string {
	var ids []string
	for block, rest := pem.Decode(public); block != nil; block, rest = pem.Decode(rest) {
		sum := sha256.Sum256(block.Bytes)
		ids = append(ids, base64.RawURLEncoding.EncodeToString(sum[:]))
	}
	return ids
}
