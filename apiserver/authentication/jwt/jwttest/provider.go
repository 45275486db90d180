// Package jwttest runs an OpenID provider and an external signer for tests, with real HTTPS, real signatures and keys
// that rotate.
package jwttest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
)

// Claims are the claims of a token.
type Claims map[string]any

// Provider is an OpenID provider. The caller must Close it.
type Provider struct {
	server *httptest.Server
	// Fetches counts the requests for the provider's keys.
	Fetches atomic.Int32

	mu sync.Mutex
	// issuer is the issuer in the discovery document.
	issuer string
	// key is the private key that signs tokens.
	key jose.JSONWebKey
	// number is the number of keys created so far.
	number int
}

// Start starts a provider on a loopback address.
func Start() (*Provider, error) {
	p := &Provider{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", p.serveConfiguration)
	mux.HandleFunc("/elsewhere/openid-configuration", p.serveConfiguration)
	mux.HandleFunc("/keys", p.serveKeys)
	p.server = httptest.NewTLSServer(mux)
	p.issuer = p.server.URL
	return p, p.Rotate()
}

// Close stops the provider.
func (p *Provider) Close() {
	p.server.CloseClientConnections()
	p.server.Close()
}

// URL returns the provider's URL, which is also the issuer unless SetIssuer has been called.
func (p *Provider) URL() string { return p.server.URL }

// SetIssuer sets the issuer in the discovery document.
func (p *Provider) SetIssuer(issuer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.issuer = issuer
}

// CA returns the provider's certificate authority in PEM.
func (p *Provider) CA() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw}))
}

// Rotate replaces the key. Tokens that were signed before become invalid when a relying party fetches the keys again.
func (p *Provider) Rotate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.number++
	p.key = jose.JSONWebKey{Key: key, KeyID: fmt.Sprintf("key-%d", p.number), Algorithm: "ES256", Use: "sig"}
	return nil
}

// Standard returns valid claims for a user and an audience.
func (p *Provider) Standard(audience, user string) Claims {
	now := time.Now()
	return Claims{
		"iss": p.URL(), "aud": audience, "sub": user,
		"iat": now.Add(-time.Minute).Unix(), "exp": now.Add(time.Hour).Unix(),
	}
}

// With returns the claims with one claim changed, or removed if value is nil.
func (c Claims) With(name string, value any) Claims {
	changed := Claims{}
	for name, value := range c {
		changed[name] = value
	}
	changed[name] = value
	if value == nil {
		delete(changed, name)
	}
	return changed
}

// Sign returns a token with the claims, signed with the current key.
func (p *Provider) Sign(claims Claims) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	key := p.key
	p.mu.Unlock()
	return sign(key, payload)
}

func sign(key jose.JSONWebKey, payload []byte) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

func (p *Provider) serveConfiguration(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	reply(w, map[string]any{
		"issuer": p.issuer, "jwks_uri": p.URL() + "/keys", "authorization_endpoint": p.URL() + "/authorize",
		"response_types_supported": []string{"id_token"}, "subject_types_supported": []string{"public"},
		"id_token_signing_alg_values_supported": []string{"ES256"},
	})
}

func (p *Provider) serveKeys(w http.ResponseWriter, _ *http.Request) {
	p.Fetches.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	reply(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.key.Public()}})
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body)
}
