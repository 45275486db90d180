package observed

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/parallel"
)

// Encryption is the EncryptionConfiguration that one replica uses.
type Encryption struct {
	Hash string // in the notation of EncryptionHash; "": the replica has none
	Err  error  // why Hash is unknown
}

// EncryptionHash returns the hash of an EncryptionConfiguration as in the metrics of a replica that uses it.
func EncryptionHash(content []byte) string {
	if content == nil {
		return ""
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(content))
}

// Encryptions reads the hash of the configuration of all pods concurrently. The result has the order of s.Pods.
func (s *State) Encryptions(ctx context.Context, probe Probe) []Encryption {
	all := make([]Encryption, len(s.Pods))
	parallel.Each(len(s.Pods), func(i int) { all[i] = probe.encryption(ctx, &s.Pods[i]) })
	return all
}

// lastEncryptionConfig begins the line of the metric that contains the hash. kube-apiserver has the same metric.
const lastEncryptionConfig = "apiserver_encryption_config_controller_last_config_info{"

func (p Probe) encryption(ctx context.Context, pod *corev1.Pod) (e Encryption) {
	if pod.Status.PodIP == "" {
		return Encryption{Err: errNoAddress}
	}
	err := p.get(ctx, pod, "/metrics", func(response *http.Response) (err error) {
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		e.Hash, err = parseEncryption(response.Body)
		return err
	})
	if err != nil {
		e.Err = fmt.Errorf("request metrics: %w", err)
	}
	return e
}

// probeTimeout limits a request to one API server. The check of etcd in /readyz takes up to two seconds.
const probeTimeout = 4 * time.Second

// get requests a path of the API server in a pod, and calls read with the response.
func (p Probe) get(ctx context.Context, pod *corev1.Pod, path string, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	// A transport changes its TLS configuration in its first request, so transports must not share one.
	transport := &http.Transport{TLSClientConfig: p.Serving.Clone(), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	url := "https://" + address(pod, desired.SecurePort) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	return read(response)
}

// parseEncryption returns the hash in the metrics of an API server, or "" if they contain none.
func parseEncryption(metrics io.Reader) (hash string, err error) {
	lines := bufio.NewScanner(metrics)
	for lines.Scan() {
		if labels, ok := strings.CutPrefix(lines.Text(), lastEncryptionConfig); ok {
			_, value, _ := strings.Cut(","+labels, `,hash="`) // the comma distinguishes hash from apiserver_id_hash
			hash, _, _ = strings.Cut(value, `"`)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read metrics: %w", err)
	}
	return hash, nil
}
