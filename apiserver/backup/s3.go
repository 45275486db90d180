package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/transport"
)

// These are the environment variables with the credentials, as in the AWS command line.
const (
	accessKeyVariable    = "AWS_ACCESS_KEY_ID"
	secretKeyVariable    = "AWS_SECRET_ACCESS_KEY"
	sessionTokenVariable = "AWS_SESSION_TOKEN"
)

// An upload has parts of partSize bytes. S3 accepts at most 10,000 parts, enough for about 640 GiB.
const (
	partSize    = 64 << 20
	partTimeout = 10 * time.Minute // time to wait for the header of a response
)

// These limits bound what an S3 server may respond.
const (
	// pageSize is the number of keys that a request for a page of a listing asks for.
	pageSize = 250
	// maxDocument bounds every response that is not the content of an object, in bytes. A page has up to pageSize
	// keys of up to 1,024 bytes, each of which takes up to 6 bytes in XML. The client needs about 15 bytes of memory
	// for each byte of a page with short keys.
	maxDocument = 2 << 20
	// maxFiles bounds the number of files in one listing.
	maxFiles = 100_000
	// listTimeout bounds a listing with all its pages, including objects that are not parts of backups.
	listTimeout = 30 * time.Minute
)

// s3Options describes an S3 bucket and how to reach it.
type s3Options struct {
	endpoint  string // URL
	bucket    string
	region    string
	caFile    string // authority of the endpoint's certificate; default: the system's authorities
	pathStyle bool   // set if the bucket is in the path of URLs, not in the host name
}

// bucket is a store of files as S3 objects.
type bucket struct {
	operations  operations
	name        string
	listTimeout time.Duration
}

// operations are the methods of minio.Client that a bucket uses. A bucket does not hold the client itself: bucket is
// stored in an interface, so the linker would keep all methods of the client, and with them a megabyte of its
// dependencies.
type operations struct {
	put    func(context.Context, string, string, io.Reader, int64, minio.PutObjectOptions) (minio.UploadInfo, error)
	get    func(context.Context, string, string, minio.GetObjectOptions) (*minio.Object, error)
	remove func(context.Context, string, string, minio.RemoveObjectOptions) error
	list   func(context.Context, string, minio.ListObjectsOptions) iter.Seq[minio.ObjectInfo]
}

func openBucket(o s3Options) (*bucket, error) {
	endpoint, err := url.Parse(o.endpoint)
	if err != nil || endpoint.Host == "" || endpoint.Scheme != "https" && endpoint.Scheme != "http" {
		return nil, fmt.Errorf("the S3 endpoint %q is not an http or https URL", o.endpoint)
	}
	if os.Getenv(accessKeyVariable) == "" || os.Getenv(secretKeyVariable) == "" {
		return nil, fmt.Errorf("the S3 credentials are missing: set %s and %s", accessKeyVariable, secretKeyVariable)
	}
	connections, err := o.transport()
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	if o.pathStyle {
		lookup = minio.BucketLookupPath
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds: credentials.NewStaticV4(os.Getenv(accessKeyVariable), os.Getenv(secretKeyVariable),
			os.Getenv(sessionTokenVariable)),
		Secure: endpoint.Scheme == "https", Region: o.region, BucketLookup: lookup, Transport: documents{connections},
		MaxRetries: 5,
	})
	if err != nil {
		return nil, fmt.Errorf("S3 client: %w", err)
	}
	use := operations{
		put: client.PutObject, get: client.GetObject, remove: client.RemoveObject, list: client.ListObjectsIter,
	}
	return &bucket{use, o.bucket, listTimeout}, nil
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
	_, err := b.operations.put(ctx, b.name, name, content, size, minio.PutObjectOptions{
		PartSize: partSize, ContentType: "application/octet-stream", NumThreads: 1,
	})
	return b.explain("upload", name, err)
}

// documents is a transport that limits the size of all responses except the contents of objects.
type documents struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (d documents) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	if r.Method == http.MethodGet && !query.Has("list-type") && !query.Has("location") {
		return d.RoundTripper.RoundTrip(r)
	}
	return transport.LimitSize(d.RoundTripper, maxDocument).RoundTrip(r)
}

// create implements store with a conditional write. Storage without conditional writes replaces the file of another
// process that creates it at the same time.
func (b *bucket) create(ctx context.Context, name string, content []byte) error {
	options := minio.PutObjectOptions{ContentType: "application/json"}
	options.SetMatchETagExcept("*")
	_, err := b.operations.put(ctx, b.name, name, bytes.NewReader(content), int64(len(content)), options)
	switch minio.ToErrorResponse(err).Code {
	case minio.PreconditionFailed:
		return errExists
	case minio.NotImplemented:
		return b.put(ctx, name, bytes.NewReader(content), int64(len(content)))
	}
	return b.explain("upload", name, err)
}

func (b *bucket) get(ctx context.Context, name string) (io.ReadCloser, error) {
	object, err := b.operations.get(ctx, b.name, name, minio.GetObjectOptions{})
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
	return b.explain("delete", name, b.operations.remove(ctx, b.name, name, minio.RemoveObjectOptions{}))
}

// find implements store. It also fails if the listing has no end: minio's iterator ends without an error when its
// context ends.
func (b *bucket) find(ctx context.Context, directory string) ([]string, error) {
	options := minio.ListObjectsOptions{Recursive: true, MaxKeys: pageSize}
	if directory != "." {
		options.Prefix = directory + "/"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.listTimeout,
		fmt.Errorf("the listing has not ended after %s", b.listTimeout))
	defer cancel()
	var found []string
	for object := range b.operations.list(ctx, b.name, options) {
		if object.Err != nil {
			return nil, b.explain("list", "", cmp.Or(context.Cause(ctx), object.Err))
		}
		if directory == "." && !isPart(object.Key) {
			continue // other programs may have millions of files in the bucket
		}
		if found = append(found, object.Key); len(found) > maxFiles {
			return nil, b.explain("list", "", fmt.Errorf("there are more than %d files", maxFiles))
		}
	}
	if err := context.Cause(ctx); err != nil {
		return nil, b.explain("list", "", err)
	}
	slices.Sort(found)
	return found, nil
}

// isPart reports whether a file has the name of a manifest or snapshot.
func isPart(file string) bool {
	name := path.Base(file)
	return name == format.ManifestFile || format.IsSnapshot(strings.TrimSuffix(name, partialSuffix))
}

func (b *bucket) location(name string) string { return "s3://" + path.Join(b.name, name) }

func (b *bucket) explain(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, b.location(name), err)
}
