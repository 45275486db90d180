// Package snapshot saves, verifies and restores etcd snapshots.
//
// A snapshot file is a copy of a member's database followed by its SHA-256 checksum, the format of etcdctl and etcdutl.
// Save and Restore write to a temporary name and rename, so that an incomplete result never has the final name.
package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	clientsnapshot "go.etcd.io/etcd/client/v3/snapshot"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// Info describes a verified snapshot.
type Info struct {
	SizeBytes int64  `json:"sizeBytes"` // size of the file
	SHA256    string `json:"sha256"`    // SHA-256 of the database, in hexadecimal; equals the checksum in the file
	Revision  int64  `json:"revision"`  // revision of the newest change in etcd
	Keys      int    `json:"keys"`      // number of keys that exist at Revision
	Version   string `json:"version"`   // version of etcd's storage; empty before etcd 3.6
	// EncryptionKeys has the providers and keys that encrypt values at Revision, sorted, in the form of the prefix
	// that kube-apiserver stores: aescbc:v1:key1. Without these keys the values cannot be read.
	EncryptionKeys []string `json:"encryptionKeys,omitempty"`
}

// ErrChecksum is returned for a file whose checksum is missing or does not match.
var ErrChecksum = errors.New("checksum mismatch: the file is incomplete, damaged, or not an etcd snapshot")

// Save downloads a snapshot of the one member in config to a temporary file, verifies it and renames it to file.
func Save(ctx context.Context, config clientv3.Config, file string) (Info, error) {
	partial := file + ".partial"
	defer os.Remove(partial)
	if err := download(ctx, config, partial); err != nil {
		return Info{}, fmt.Errorf("download the snapshot: %w", err)
	}
	info, err := Verify(ctx, partial)
	if err != nil {
		return Info{}, fmt.Errorf("verify the snapshot: %w", err)
	}
	if err := os.Rename(partial, file); err != nil {
		return Info{}, err
	}
	return info, syncDirectory(filepath.Dir(file))
}

// stallTimeout is the time without data after which a download fails.
const stallTimeout = 30 * time.Second

// download downloads a snapshot. It fails if the member stops sending data; etcd's client would wait for a connection
// without limit.
func download(ctx context.Context, config clientv3.Config, file string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	config.DialOptions = append(slices.Clone(config.DialOptions), grpc.WithChainStreamInterceptor(failFast))
	go func() {
		for size, progress := int64(-1), time.Now(); ctx.Err() == nil; {
			// SaveWithVersion writes to this file.
			if info, err := os.Stat(file + ".part"); err == nil && info.Size() != size {
				size, progress = info.Size(), time.Now()
			}
			if time.Since(progress) > stallTimeout {
				cancel(fmt.Errorf("no data for %s", stallTimeout))
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	if _, err := clientsnapshot.SaveWithVersion(ctx, zap.NewNop(), config, file); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// failFast is a grpc.StreamClientInterceptor that makes a stream fail when there is no connection.
func failFast(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string,
	streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	return streamer(ctx, description, connection, method, append(options, grpc.WaitForReady(false))...)
}

// Verify compares a snapshot file with its checksum, checks the consistency of all database pages, and decodes every
// key.
func Verify(ctx context.Context, file string) (Info, error) {
	sum, err := verifyChecksum(ctx, file)
	if err != nil {
		return Info{}, err
	}
	info, err := inspect(ctx, file)
	info.SHA256 = sum
	return info, err
}

// checksumPart is the number of bytes that are hashed between two checks of the context.
const checksumPart = 16 << 20

// verifyChecksum returns the checksum at the end of a snapshot file. It fails if the rest of the file does not match
// it.
func verifyChecksum(ctx context.Context, file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	// Database pages are multiples of 512 bytes.
	if info.Size() <= sha256.Size || info.Size()%512 != sha256.Size {
		return "", ErrChecksum
	}
	sum := sha256.New()
	for rest := info.Size() - sha256.Size; rest > 0; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := io.CopyN(sum, f, min(rest, checksumPart))
		if err != nil {
			return "", err
		}
		rest -= n
	}
	want, err := io.ReadAll(f)
	if err != nil {
		return "", err
	}
	if !bytes.Equal(want, sum.Sum(nil)) {
		return "", ErrChecksum
	}
	return hex.EncodeToString(want), nil
}

// syncDirectory makes a rename durable.
func syncDirectory(directory string) error {
	d, err := os.Open(directory)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
