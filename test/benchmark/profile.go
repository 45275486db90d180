package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// Paths below the server's /debug/pprof.
const (
	profileOfWork   = "profile?seconds=2" // shorter than the only round of every work, see parse
	profileOfMemory = "heap"
)

// startProfile starts a profile that is named after a work, if profiles are enabled. The returned function waits for
// its end.
func (s *subject) startProfile(ctx context.Context, kind, name string) (wait func() error) {
	if s.profiles == "" {
		return func() error { return nil }
	}
	done := make(chan error, 1)
	go func() { done <- s.profile(ctx, kind, filepath.Join(s.profiles, fileName(name))) }()
	return func() error { return <-done }
}

// profileRound starts a profile of a work in its first round, if profiles are enabled.
func (s *subject) profileRound(ctx context.Context, r round) (wait func() error) {
	if r.index > 0 {
		return func() error { return nil }
	}
	return s.startProfile(ctx, profileOfWork, r.work.name)
}

// profile stores a response of the server's /debug/pprof in a file.
func (s *subject) profile(ctx context.Context, kind, file string) error {
	response, err := s.client.send(ctx, request{method: http.MethodGet, path: "/debug/pprof/" + kind, accept: "*/*"})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, response.Body)
	return errors.Join(err, out.Close())
}

// fileName returns a file name for a work: list-limit-500-json.pprof for "LIST limit=500, JSON".
func fileName(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	return strings.Join(words, "-") + ".pprof"
}
