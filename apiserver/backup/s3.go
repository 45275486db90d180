package backup

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Environment variables with the credentials, as in the AWS command line.
const (
	accessKeyVariable    = "AWS_ACCESS_KEY_ID"
	secretKeyVariable    = "AWS_SECRET_ACCESS_KEY"
	sessionTokenVariable = "AWS_SESSION_TOKEN"
)

// Parts of an upload. S3 has at most 10,000 parts, enough for 640 GiB.
const (
	partSize    = 64 << 20
	partTimeout = 10 * time.Minute // to receive the header of a response
)

// s3Options are an S3 bucket and how to reach it.
type s3Options struct {
	endpoint  string // URL
	bucket    string
	region    string
	caFile    string // authority of the endpoint's certificate; default: those of the system
	pathStyle bool   // the bucket is in the path of URLs, not in the host name
}

// bucket stores files as objects.
type bucket struct {
	client *minio.Client
	name   string
}

func openBucket(o s3Options) (*bucket, error) {
	endpoint, err := url.Parse(o.endpoint)
	if err != nil || endpoint.Host == "" || endpoint.Scheme != "https" && endpoint.Scheme != "http" {
		return nil, fmt.Errorf("the S3 endpoint %q is not an http or https URL", o.endpoint)
	}
	if os.Getenv(accessKeyVariable) == "" || os.Getenv(secretKeyVariable) == "" {
		return nil, fmt.Errorf("the S3 credentials are missing: set %s and %s", accessKeyVariable, secretKeyVariable)
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	if o.pathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(os.Getenv(accessKeyVariable), os.Getenv(secretKeyVariable), os.Getenv(sessionTokenVariable)),
		Secure: endpoint.Scheme == "https", Region: o.region, BucketLookup: lookup, Transport: transport,
		MaxRetries: 5,
	})
	if err != nil {
		return nil, fmt.Errorf("S3 client: %w", err)
	}
	return &bucket{client, o.bucket}, nil
}

func (o s3Options) transport() (*http.Transport, error) {
	transport, err := minio.DefaultTransport(true)
	if err != nil {
		return nil, err
	}
	transport.ResponseHeaderTimeout = partTimeout
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if o.caFile == "" {
		return transport, nil
	}
	text, err := os.ReadFile(o.caFile)
	if err != nil {
		return nil, err
	}
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !transport.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
		return nil, errors.New("the authority of the S3 endpoint is not a PEM certificate")
	}
	return transport, nil
}

func (b *bucket) put(ctx context.Context, name string, content io.Reader, size int64) error {
	_, err := b.client.PutObject(ctx, b.name, name, content, size, minio.PutObjectOptions{
		PartSize: partSize, ContentType: "application/octet-stream", NumThreads: 1,
	})
	return b.explain("upload", name, err)
}

// create relies on conditional writes. Storage that has none replaces the file of another process that writes at the same time.
func (b *bucket) create(ctx context.Context, name string, content []byte) error {
	options := minio.PutObjectOptions{ContentType: "application/json"}
	options.SetMatchETagExcept("*")
	_, err := b.client.PutObject(ctx, b.name, name, bytes.NewReader(content), int64(len(content)), options)
	switch minio.ToErrorResponse(err).Code {
	case minio.PreconditionFailed:
		return errExists
	case minio.NotImplemented:
		return b.put(ctx, name, bytes.NewReader(content), int64(len(content)))
	}
	return b.explain("upload", name, err)
}

func (b *bucket) get(ctx context.Context, name string) (io.ReadCloser, error) {
	object, err := b.client.GetObject(ctx, b.name, name, minio.GetObjectOptions{})
	if err != nil {
		return nil, b.explain("download", name, err)
	}
	if _, err := object.Stat(); err != nil {
		object.Close()
		if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
			return nil, errNotFound
		}
		return nil, b.explain("download", name, err)
	}
	return object, nil
}

func (b *bucket) remove(ctx context.Context, name string) error {
	return b.explain("delete", name, b.client.RemoveObject(ctx, b.name, name, minio.RemoveObjectOptions{}))
}

func (b *bucket) find(ctx context.Context, directory string) ([]string, error) {
	options := minio.ListObjectsOptions{Recursive: true}
	if directory != "." {
		options.Prefix = directory + "/"
	}
	var found []string
	for object := range b.client.ListObjectsIter(ctx, b.name, options) {
		if object.Err != nil {
			return nil, b.explain("list", "", object.Err)
		}
		found = append(found, object.Key)
	}
	slices.Sort(found)
	return found, nil
}

func (b *bucket) location(name string) string { return "s3://" + path.Join(b.name, name) }

func (b *bucket) explain(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, b.location(name), err)
}
