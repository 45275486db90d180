package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// client sends requests over one HTTP/2 connection, and reads and discards the responses. It does as little work as
// possible, because it shares the machine with the server.
type client struct {
	host     string
	http     *http.Client
	encoding string // encoding of responses that the client accepts
	known    string // entity tag of the last response, if it had one
	token    string // bearer token; "": the client has a certificate
}

func newClient(admin *rest.Config) (*client, error) {
	tls, err := rest.TLSConfigFor(admin)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: tls, ForceAttemptHTTP2: true, DisableCompression: true}
	return &client{host: admin.Host, http: &http.Client{Transport: transport}, encoding: "identity"}, nil
}

// compressed returns the same client, but it accepts compressed responses and does not decompress them.
func (c *client) compressed() *client {
	other := *c
	other.encoding = "gzip"
	return &other
}

func (c *client) close() { c.http.CloseIdleConnections() }

// send returns the response, whose body the caller must close. A status other than 2xx is an error.
func (c *client) send(ctx context.Context, r request) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, r.method, c.host+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept-Encoding", c.encoding)
	request.Header.Set("Accept", r.accept)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	if r.contentType != "" {
		request.Header.Set("Content-Type", r.contentType)
	}
	if c.known != "" {
		request.Header.Set("If-None-Match", c.known)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices && response.StatusCode != http.StatusNotModified {
		defer response.Body.Close()
		problem, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		if response.StatusCode == http.StatusTooManyRequests {
			return nil, fmt.Errorf("%s %s: %w: %s", r.method, r.path, errTooMany, problem)
		}
		return nil, fmt.Errorf("%s %s: %s: %s", r.method, r.path, response.Status, problem)
	}
	if response.ProtoMajor != 2 {
		response.Body.Close()
		return nil, fmt.Errorf("%s %s: answered over %s", r.method, r.path, response.Proto)
	}
	return response, nil
}

// do sends a request, and returns the time until the last byte of the response and the number of bytes in it.
func (c *client) do(ctx context.Context, r request) (time.Duration, int64, error) {
	begin := time.Now()
	response, err := c.send(ctx, r)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	size, err := io.Copy(io.Discard, response.Body)
	return time.Since(begin), size, err
}

// get sends a GET request and decodes the JSON response.
func (c *client) get(ctx context.Context, path string, into any) error {
	return c.getAs(ctx, path, asJSON, into)
}

func (c *client) getAs(ctx context.Context, path, accept string, into any) error {
	response, err := c.send(ctx, request{method: http.MethodGet, path: path, accept: accept})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var body io.Reader = response.Body
	if response.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(body); err != nil {
			return err
		}
	}
	return json.NewDecoder(body).Decode(into)
}
