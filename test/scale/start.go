package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"quorate.dev/test/measure"
)

// serviceRange has enough addresses for all Services. The standard flags of test/upstream have a small range.
const serviceRange = "--service-cluster-ip-range=10.0.0.0/16"

// startServer starts a server with the memory limit of the options. The returned function releases the cgroup after the
// server was stopped.
func (o *options) startServer(
	ctx context.Context, start starter, directory string, flags []string,
) (server *measure.Server, release func() error, err error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, nil, err
	}
	settings := measure.Options{Directory: directory, Flags: append([]string{serviceRange}, flags...)}
	if release, err = o.limit(&settings); err != nil {
		return nil, nil, err
	}
	if server, err = start(ctx, settings); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the server: %w", err), release())
	}
	return server, release, nil
}
