package jwttest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"
	externaljwt "k8s.io/externaljwt/apis/v1"
)

// Signer signs service-account tokens for API servers that connect to its Unix socket. The caller must Close it.
type Signer struct {
	externaljwt.UnimplementedExternalJWTSignerServer
	server *grpc.Server
	// Lifetime is the maximum lifetime of a token in seconds.
	Lifetime int64

	mu sync.Mutex
	// keys are the keys that verify tokens. The last key signs.
	keys []signerKey
	// number is the number of keys created so far.
	number int
}

type signerKey struct {
	id      string
	private *ecdsa.PrivateKey
	changed time.Time
}

// StartSigner starts a signer on a Unix socket.
func StartSigner(socket string, lifetime int64) (*Signer, error) {
	s := &Signer{server: grpc.NewServer(), Lifetime: lifetime}
	if err := s.Rotate(0); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	externaljwt.RegisterExternalJWTSignerServer(s.server, s)
	go func() { _ = s.server.Serve(listener) }()
	return s, nil
}

// Close stops the signer.
func (s *Signer) Close() { s.server.Stop() }

// Rotate creates the key that signs from now on, and keeps the given number of former keys, which still verify tokens.
func (s *Signer) Rotate(kept int) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	s.keys = append(s.keys[max(len(s.keys)-kept, 0):], signerKey{fmt.Sprintf("signer-%d", s.number), key, time.Now()})
	return nil
}

// Sign implements externaljwt.ExternalJWTSignerServer.
func (s *Signer) Sign(_ context.Context, request *externaljwt.SignJWTRequest) (*externaljwt.SignJWTResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.keys[len(s.keys)-1]
	header := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"alg":"ES256","typ":"JWT","kid":%q}`, key.id))
	hash := sha256.Sum256([]byte(header + "." + request.Claims))
	r, v, err := ecdsa.Sign(rand.Reader, key.private, hash[:])
	if err != nil {
		return nil, err
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return &externaljwt.SignJWTResponse{Header: header, Signature: base64.RawURLEncoding.EncodeToString(signature)}, nil
}

// FetchKeys implements externaljwt.ExternalJWTSignerServer. Its hint makes callers fetch the keys every second.
func (s *Signer) FetchKeys(context.Context, *externaljwt.FetchKeysRequest) (*externaljwt.FetchKeysResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	response := &externaljwt.FetchKeysResponse{RefreshHintSeconds: 1}
	for i := range s.keys {
		der, err := x509.MarshalPKIXPublicKey(s.keys[i].private.Public())
		if err != nil {
			return nil, err
		}
		response.DataTimestamp = timestamppb.New(s.keys[i].changed)
		response.Keys = append(response.Keys, &externaljwt.Key{KeyId: s.keys[i].id, Key: der})
	}
	return response, nil
}

// Metadata implements externaljwt.ExternalJWTSignerServer.
func (s *Signer) Metadata(context.Context, *externaljwt.MetadataRequest) (*externaljwt.MetadataResponse, error) {
	return &externaljwt.MetadataResponse{MaxTokenExpirationSeconds: s.Lifetime}, nil
}
