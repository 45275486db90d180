package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"

	"quorate.dev/test/benchmark/floor"
	"quorate.dev/test/measure"
	"quorate.dev/test/upstream"
)

// bare is the name of the server that measures the floor.
const bare = "floor"

// bareVariable is set in the process of that server, which is this program.
const bareVariable = "QUORATE_BENCHMARK_BARE"

// startFloor starts the server of package floor. Its responses have the sizes that the results of another server have,
// which therefore measures each work first.
func startFloor(ctx context.Context, directory string, reference *Results) (*subject, error) {
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		return nil, err
	}
	certificate, key, clients := pki.ServingFiles()
	options, err := json.Marshal(floor.Options{
		Certificate: certificate, Key: key, Clients: clients, Directory: filepath.Join(directory, "member"),
	})
	if err != nil {
		return nil, err
	}
	process, address, err := startBare(ctx, string(options))
	if err != nil {
		return nil, err
	}
	_, text, _ := strings.Cut(address, ":")
	port, err := strconv.Atoi(text)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the address %q: %w", address, err), process.Stop())
	}
	admin := pki.Admin(port)
	client, err := newClient(admin)
	server := &measure.Server{
		Name: bare, Admin: admin, PIDs: []int{process.process.Process.Pid}, Processes: []measure.Stopper{process},
	}
	return &subject{
		Server: server, results: &Results{Work: map[string]Measurement{}}, client: client, reference: reference,
	}, err
}

// startBare starts the process of the server, and returns when it serves at the address.
func startBare(ctx context.Context, options string) (process *self, address string, err error) {
	if process, err = startSelf(ctx, bareVariable+"="+options); err != nil {
		return nil, "", err
	}
	if _, err := fmt.Fscanln(process.output, &address); err != nil {
		return nil, "", errors.Join(fmt.Errorf("wait for the address: %w", err), process.Stop())
	}
	return process, address, nil
}

// runBare is the main function of the process.
func runBare(ctx context.Context, text string) error {
	var options floor.Options
	if err := json.Unmarshal([]byte(text), &options); err != nil {
		return err
	}
	return floor.Run(untilInputEnds(ctx), options, func(address string) { fmt.Println(address) })
}

// setSize sets the size of the floor's responses to the mean size of our server's responses to the same work.
func (s *subject) setSize(ctx context.Context, w work) error {
	if s.reference == nil {
		return nil
	}
	size := s.reference.Work[w.name].Bytes
	path := fmt.Sprintf("%s?bytes=%d", floor.SizePath, size)
	_, _, err := s.client.do(ctx, request{method: http.MethodPost, path: path})
	return err
}
