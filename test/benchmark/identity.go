package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/apiserver/authentication/jwt/jwttest"
	"quorate.dev/test/measure"
)

// identity is an administrator with a token of an OpenID Connect provider, which runs in this process.
type identity struct {
	provider *jwttest.Provider
	token    string
	flags    []string // flags for both servers
}

// startIdentity starts the provider. It creates the directory, and a file with the provider's certificate authority in
// it.
func startIdentity(directory string) (*identity, error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	provider, err := jwttest.Start()
	if err != nil {
		return nil, err
	}
	i := &identity{provider: provider}
	authority := filepath.Join(directory, "provider-ca.crt")
	if err := os.WriteFile(authority, []byte(provider.CA()), 0o600); err != nil {
		return nil, err
	}
	claims := provider.Standard("benchmark", "admin").With("groups", []string{"system:masters"})
	i.token, err = provider.Sign(claims)
	i.flags = []string{
		"--oidc-issuer-url=" + provider.URL(), "--oidc-client-id=benchmark", "--oidc-ca-file=" + authority,
		"--oidc-groups-claim=groups", "--oidc-signing-algs=ES256",
	}
	return i, err
}

// client returns a client that has the token instead of a certificate, once the server accepts the token.
func (i *identity) client(ctx context.Context, admin *rest.Config) (*client, error) {
	c, err := newClient(rest.AnonymousClientConfig(admin))
	if err != nil {
		return nil, err
	}
	c.token = i.token
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, _, err := c.do(ctx, request{method: http.MethodGet, path: "/api/v1/namespaces", accept: asJSON})
		if err == nil {
			return c, nil
		}
		if measure.Pause(ctx, 100*time.Millisecond) != nil {
			return nil, fmt.Errorf("the token is not accepted: %w", err)
		}
	}
}
