package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/measure"
	"quorate.dev/test/measure/samples"
)

// encryptionOnly is the value of --work that measures only encryption at rest.
const encryptionOnly = "encryption"

const (
	secretsPath = "/api/v1/namespaces/" + namespace + "/secrets"
	secretCount = 20000
	secretSize  = 2000 // bytes of data
)

// providers are the providers of an EncryptionConfiguration that are measured. The first one does not encrypt: the rows
// of the other providers are compared with its rows.
var providers = []string{"identity", "aesgcm", "aescbc", "secretbox"}

// encryptions returns the works for all providers.
func encryptions() []work {
	var all []work
	for _, provider := range providers {
		all = append(all, createSecrets(provider), restarts(provider))
	}
	return all
}

func createSecrets(provider string) work {
	return work{
		name: "create a Secret of 2 KB, encryption: " + provider, promise: 1.0 / 1.7, parallel: 16,
		count: secretCount, request: createSecret,
	}
}

// restarts returns the work whose cost is a restart of the API server and a list of all Secrets. The work has no
// request to repeat. Each round is a restart.
func restarts(provider string) work {
	return work{name: "start with 20,000 Secrets, encryption: " + provider, promise: 1.0 / 1.5, parallel: 1, count: 1}
}

func createSecret(i int) request {
	body := samples.Protobuf(&core.Secret{
		TypeMeta:   meta.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("secret-%05d", i)},
		Data:       map[string][]byte{"key": []byte(strings.Repeat("0123456789", secretSize/10))},
	})
	return request{http.MethodPost, secretsPath, asProtobuf, asProtobuf, body}
}

// runEncryptions measures servers with each provider. It takes about seven minutes.
func (o *options) runEncryptions(ctx context.Context, directory string, p plan, report *Report) error {
	for _, provider := range providers {
		flags, err := encryptionFlags(filepath.Join(directory, provider), provider)
		if err != nil {
			return err
		}
		if err := o.with(flags, flags).runSteps(
			ctx, filepath.Join(directory, provider), p.encryptionSteps(provider), report,
		); err != nil {
			return err
		}
	}
	return nil
}

// encryptionFlags writes the configuration and returns the flags of a server that encrypts Secrets.
func encryptionFlags(directory, provider string) ([]string, error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	settings := "{}"
	if provider != "identity" {
		settings = "{keys: [{name: key, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}]}"
	}
	file := filepath.Join(directory, "encryption.yaml")
	configuration := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n" +
		"resources: [{resources: [secrets], providers: [{" + provider + ": " + settings + "}]}]\n"
	return []string{"--encryption-provider-config=" + file}, os.WriteFile(file, []byte(configuration), 0o600)
}

// encryptionSteps returns the steps for servers that encrypt.
func (p plan) encryptionSteps(provider string) []step {
	steps := []step{
		func(ctx context.Context, s *subject) error { return s.settle(ctx) },
		func(ctx context.Context, s *subject) error { return s.warmUp(ctx) },
	}
	steps = append(steps, p.measuring([]work{createSecrets(provider)})...)
	w, all := restarts(provider), courses{}
	for i := range p.rounds {
		steps = append(steps, func(ctx context.Context, s *subject) error {
			if err := s.restart(ctx, all.of(s)); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			p.summarize(s, round{w, i, p.rounds}, all.of(s))
			return nil
		})
	}
	return steps
}

// restart restarts the API server, but not kube-apiserver's etcd, measures it until a list of all Secrets has been
// read, and adds the round to the course.
func (s *subject) restart(ctx context.Context, c *course) error {
	s.client.close()
	if s.tokenClient != nil { // it is nil since the first round
		s.tokenClient.close()
		s.tokenClient = nil
	}
	if err := s.Processes[0].Stop(); err != nil {
		return err
	}
	others := s.PIDs[1:]
	before, err := measure.CPU(others)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := s.Relaunch(ctx); err != nil {
		return err
	}
	if s.client, err = newClient(s.Admin); err != nil {
		return err
	}
	_, size, err := s.client.do(ctx, read(secretsPath+"?resourceVersion=0", asProtobuf)(0))
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := measure.CPU(s.PIDs)
	if err != nil {
		return err
	}
	c.add(&tally{latencies: []time.Duration{took}, bytes: size}, after-before)
	return nil
}
