package main

import (
	"context"
	"time"

	"quorate.dev/test/measure"
)

// subject is a running server with the clients that send work to it: kube-apiserver with its etcd, Quorate, or the
// floor.
type subject struct {
	*measure.Server
	results *Results
	client  *client
	// tokenClient authenticates with a token of an OpenID Connect provider instead of a certificate.
	tokenClient *client
	profiles    string // directory for profiles; "": no profiles are taken
	// reference has the sizes of responses; nil unless the subject is the floor.
	reference *Results
}

// startSubject starts a server with measure.StartPeer or measure.StartOurs.
func startSubject(
	ctx context.Context, start func(context.Context, measure.Options) (*measure.Server, error), directory string,
	flags []string,
) (*subject, error) {
	server, err := start(ctx, measure.Options{Directory: directory, Flags: flags})
	if err != nil {
		return nil, err
	}
	client, err := newClient(server.Admin)
	results := &Results{Ready: server.Ready, Work: map[string]Measurement{}}
	return &subject{Server: server, results: results, client: client}, err
}

func (s *subject) stop() error {
	s.client.close()
	if s.tokenClient != nil {
		s.tokenClient.close()
	}
	return s.Stop()
}

// settle waits, at most ten seconds, until the server is idle: it uses at most 2% of one processor during a second.
func (s *subject) settle(ctx context.Context) error {
	for range 10 {
		used, err := s.timed(func() error { return measure.Pause(ctx, time.Second) })
		if err != nil {
			return err
		}
		if used <= 20*time.Millisecond {
			return nil
		}
	}
	return nil // after ten seconds, the server will not become more idle
}
