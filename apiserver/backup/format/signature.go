package format

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// A signed manifest is a JSON object whose last field is the signature of all bytes before that field. The signature
// covers bytes instead of parsed values, so that a release which does not know all fields can verify the manifest
// too.

const (
	// signatureContext is signed in front of the manifest, so that the signature has no meaning elsewhere.
	signatureContext = "quorate.dev backup manifest v1\n"

	signatureField = ",\n  \"signature\": \""
	signatureEnd   = "\"\n}\n"

	// signatureLength is the number of bytes that follow the signed bytes in a signed manifest. The signature is encoded
	// in base64 with padding.
	signatureLength = len(signatureField) + (ed25519.SignatureSize+2)/3*4 + len(signatureEnd)
)

// ErrSignature is returned if no expected key has signed the manifest.
var ErrSignature = errors.New("the signature of " + ManifestFile + " is not valid")

// Text returns the content of the manifest's file, signed with the key. If the key is nil, the manifest is not signed.
func (m Manifest) Text(key ed25519.PrivateKey) ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil || key == nil {
		return append(text, '\n'), err
	}
	signed := bytes.TrimSuffix(text, []byte("\n}"))
	signature := ed25519.Sign(key, append([]byte(signatureContext), signed...))
	return fmt.Appendf(signed, "%s%s%s", signatureField, base64.StdEncoding.EncodeToString(signature), signatureEnd), nil
}

// Verify returns nil if a key has signed the content of a manifest's file, and otherwise an error that wraps
// ErrSignature.
func Verify(text []byte, key VerificationKey) error {
	public, err := key.parse()
	if err != nil {
		return err
	}
	if len(text) < signatureLength {
		return fmt.Errorf("%w: it has none", ErrSignature)
	}
	signed, end := text[:len(text)-signatureLength], text[len(text)-signatureLength:]
	end, hasField := bytes.CutPrefix(end, []byte(signatureField))
	end, hasEnd := bytes.CutSuffix(end, []byte(signatureEnd))
	if !hasField || !hasEnd {
		return fmt.Errorf("%w: it has none", ErrSignature)
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(string(end))
	if err != nil {
		return fmt.Errorf("%w: it is not base64", ErrSignature)
	}
	if !ed25519.Verify(public, append([]byte(signatureContext), signed...), signature) {
		return fmt.Errorf("%w: %s has not signed this content", ErrSignature, key)
	}
	return nil
}

// Digest returns the SHA-256 of the content of a file, in hexadecimal.
func Digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// VerificationKey is the public key that verifies the backups of a cluster: "ed25519:" and the key in base64. It is not
// a secret.
type VerificationKey string

const verificationPrefix = "ed25519:"

// Check returns an error unless the key is well-formed.
func (k VerificationKey) Check() error {
	_, err := k.parse()
	return err
}

func (k VerificationKey) parse() (ed25519.PublicKey, error) {
	text, found := strings.CutPrefix(string(k), verificationPrefix)
	key, err := base64.StdEncoding.Strict().DecodeString(text)
	// The decoder of base64 skips line breaks, which a key must not contain.
	if !found || err != nil || len(key) != ed25519.PublicKeySize || strings.ContainsAny(text, "\r\n") {
		return nil, fmt.Errorf("the verification key %q is not %q and 44 characters of base64", string(k), verificationPrefix)
	}
	return key, nil
}

// VerificationKeyOf returns the key that verifies the signatures of a signing key.
func VerificationKeyOf(key ed25519.PrivateKey) VerificationKey {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return ""
	}
	return VerificationKey(verificationPrefix + base64.StdEncoding.EncodeToString(public))
}

const privateKeyBlock = "PRIVATE KEY"

// NewSigningKey returns a new private key for manifests, as a PEM block with PKCS #8.
func NewSigningKey() ([]byte, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: privateKeyBlock, Bytes: der}), nil
}

// errSigningKey does not wrap the parser's error, because the text of the key is a secret.
var errSigningKey = errors.New("the signing key is not an Ed25519 private key in PEM and PKCS #8")

// ParseSigningKey parses a private key that NewSigningKey or "openssl genpkey -algorithm ed25519" has generated.
func ParseSigningKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != privateKeyBlock {
		return nil, errSigningKey
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errSigningKey
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, errSigningKey
	}
	return key, nil
}
