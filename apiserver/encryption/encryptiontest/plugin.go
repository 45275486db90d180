// Package encryptiontest runs a KMS plugin for tests.
package encryptiontest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kmsv1 "k8s.io/kms/apis/v1beta1"
	kmsv2 "k8s.io/kms/apis/v2"
)

// Plugin is a KMS plugin for versions 1 and 2 of the API on a unix socket. It derives its keys from their IDs.
type Plugin struct {
	kmsv2.UnimplementedKeyManagementServiceServer

	socket  string
	key     atomic.Pointer[string]
	decrypt atomic.Int64
	server  *grpc.Server // nil while the plugin is down
}

// Start runs a plugin, which encrypts with the key of the given ID, until the test ends.
func Start(t testing.TB, key string) *Plugin {
	t.Helper()
	directory, err := os.MkdirTemp("", "kms") // names of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	p := &Plugin{socket: filepath.Join(directory, "socket")}
	p.Rotate(key)
	p.Up(t)
	t.Cleanup(func() {
		p.Down()
		_ = os.RemoveAll(directory)
	})
	return p
}

// Endpoint returns the plugin's address in an EncryptionConfiguration.
func (p *Plugin) Endpoint() string { return "unix://" + p.socket }

// Up makes the plugin listen; Start calls it, and tests call it after Down.
func (p *Plugin) Up(t testing.TB) {
	t.Helper()
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.server = grpc.NewServer()
	kmsv2.RegisterKeyManagementServiceServer(p.server, p)
	kmsv1.RegisterKeyManagementServiceServer(p.server, version1{plugin: p})
	go func(server *grpc.Server) { _ = server.Serve(listener) }(p.server)
}

// Down closes the socket and all connections.
func (p *Plugin) Down() {
	if p.server != nil {
		p.server.Stop()
		p.server = nil
	}
}

// Rotate changes the key that Encrypt uses. Decrypt accepts earlier keys too.
func (p *Plugin) Rotate(key string) { p.key.Store(&key) }

// Decryptions returns the number of calls of Decrypt.
func (p *Plugin) Decryptions() int64 { return p.decrypt.Load() }

// Status implements kmsv2.KeyManagementServiceServer.
func (p *Plugin) Status(context.Context, *kmsv2.StatusRequest) (*kmsv2.StatusResponse, error) {
	return &kmsv2.StatusResponse{Version: "v2", Healthz: "ok", KeyId: *p.key.Load()}, nil
}

// Encrypt implements kmsv2.KeyManagementServiceServer.
func (p *Plugin) Encrypt(_ context.Context, request *kmsv2.EncryptRequest) (*kmsv2.EncryptResponse, error) {
	key := *p.key.Load()
	sealed, err := seal(key, request.GetPlaintext())
	return &kmsv2.EncryptResponse{Ciphertext: sealed, KeyId: key}, err
}

// Decrypt implements kmsv2.KeyManagementServiceServer.
func (p *Plugin) Decrypt(_ context.Context, request *kmsv2.DecryptRequest) (*kmsv2.DecryptResponse, error) {
	p.decrypt.Add(1)
	plain, err := open(request.GetKeyId(), request.GetCiphertext())
	return &kmsv2.DecryptResponse{Plaintext: plain}, err
}

// version1 serves version 1 of the API. It always uses one key, because requests of version 1 do not name a key.
type version1 struct {
	kmsv1.UnimplementedKeyManagementServiceServer
	plugin *Plugin
}

const keyOfVersion1 = "1"

func (version1) Version(context.Context, *kmsv1.VersionRequest) (*kmsv1.VersionResponse, error) {
	return &kmsv1.VersionResponse{Version: "v1beta1", RuntimeName: "test", RuntimeVersion: "1"}, nil
}

func (version1) Encrypt(_ context.Context, request *kmsv1.EncryptRequest) (*kmsv1.EncryptResponse, error) {
	sealed, err := seal(keyOfVersion1, request.GetPlain())
	return &kmsv1.EncryptResponse{Cipher: sealed}, err
}

func (v version1) Decrypt(_ context.Context, request *kmsv1.DecryptRequest) (*kmsv1.DecryptResponse, error) {
	v.plugin.decrypt.Add(1)
	plain, err := open(keyOfVersion1, request.GetCipher())
	return &kmsv1.DecryptResponse{Plain: plain}, err
}

func newCipher(key string) (cipher.AEAD, error) {
	hash := sha256.Sum256([]byte(key))
	block, err := aes.NewCipher(hash[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

func seal(key string, plain []byte) ([]byte, error) {
	aead, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, plain, nil), nil //nolint:gosec // the nonce is random
}

func open(key string, sealed []byte) ([]byte, error) {
	aead, err := newCipher(key)
	if err != nil {
		return nil, err
	}
	plain, err := aead.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "the ciphertext is not of this key")
	}
	return plain, nil
}
