// Command s3 serves a directory through the S3 API, for tests of backups: go run -C tools/s3 . ADDRESS DIRECTORY. The
// access key is "quorate", the secret key is "quorate-secret", and the bucket "backups" exists.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want ADDRESS and DIRECTORY, got %d arguments", len(args))
	}
	address, directory := args[0], args[1]
	objects, sidecar := filepath.Join(directory, "objects"), filepath.Join(directory, "metadata")
	for _, d := range []string{filepath.Join(objects, "backups"), sidecar} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	attributes, err := meta.NewSideCar(sidecar)
	if err != nil {
		return err
	}
	backend, err := posix.New(objects, attributes, posix.PosixOpts{SideCarDir: sidecar})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess: "quorate", RootUserSecret: "quorate-secret", Ports: []string{address},
		MaxConnections: 100, MaxRequests: 100, MultipartMaxParts: 10000, Quiet: true, HealthPath: "/healthz",
	})
}
