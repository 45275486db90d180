package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/test/upstream"
)

const hostileManifest = `{"formatVersion":1,"file":"snapshot.db","storedBytes":1000,"storedSHA256":"00"}`

// page writes one page of a listing.
func page(w io.Writer, truncated bool, keys ...string) {
	fmt.Fprintf(w, `<ListBucketResult><IsTruncated>%t</IsTruncated><NextContinuationToken>more</NextContinuationToken>`,
		truncated)
	for _, key := range keys {
		fmt.Fprintf(w, `<Contents><Key>%s</Key><Size>1</Size></Contents>`, key)
	}
	fmt.Fprint(w, `</ListBucketResult>`)
}

// endless writes a text again and again until the client is gone.
func endless(w io.Writer, text string) {
	block := []byte(strings.Repeat(text, 1+64<<10/len(text)))
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// object writes an object with headers that may be wrong.
func object(w http.ResponseWriter, size int, content string) {
	w.Header().Set("Etag", `"00"`)
	w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
	w.Header().Set("Content-Length", fmt.Sprint(size))
	_, _ = io.WriteString(w, content)
}

// TestHostileServerOfS3 checks that no response of an S3 server lasts forever, fills the memory or the disk, or
// passes as a backup, and that no redirect is followed.
func TestHostileServerOfS3(t *testing.T) {
	var followed, keys atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	defer elsewhere.Close()
	defer debug.SetGCPercent(debug.SetGCPercent(10)) // so that garbage hardly counts as growth of the heap
	isManifest := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, format.ManifestFile) }
	for name, serve := range map[string]http.HandlerFunc{
		"pages without end": func(w http.ResponseWriter, _ *http.Request) {
			names := make([]string, 1000)
			for i := range names {
				names[i] = fmt.Sprintf("%d/%s", keys.Add(1), format.ManifestFile)
			}
			page(w, true, names...)
		},
		"empty pages without end":             func(w http.ResponseWriter, _ *http.Request) { page(w, true) },
		"pages of other programs without end": func(w http.ResponseWriter, _ *http.Request) { page(w, true, "other") },
		"a page without end": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "<ListBucketResult>")
			endless(w, "<Contents><Key>a</Key></Contents>")
		},
		"a name without end": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "<ListBucketResult><Contents><Key>")
			endless(w, "a")
		},
		"an error without end": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			endless(w, "<Error>")
		},
		"a manifest without end": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("list-type") {
				page(w, false, "a/"+format.ManifestFile)
				return
			}
			object(w, 1<<40, "")
			endless(w, " ")
		},
		"a snapshot without end": func(w http.ResponseWriter, r *http.Request) {
			if isManifest(r) {
				object(w, len(hostileManifest), hostileManifest)
				return
			}
			object(w, 1<<40, "")
			endless(w, "a")
		},
		"a snapshot that ends early": func(w http.ResponseWriter, r *http.Request) {
			if isManifest(r) {
				object(w, len(hostileManifest), hostileManifest)
				return
			}
			object(w, 1000, "short")
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"not XML": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte{0xff}, 1000)) },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(serve)
			defer server.Close()
			t.Setenv(accessKeyVariable, upstream.S3AccessKey)
			t.Setenv(secretKeyVariable, upstream.S3SecretKey)
			opened, err := openBucket(s3Options{endpoint: server.URL, bucket: "backups", region: "us-east-1", pathStyle: true})
			if err != nil {
				t.Fatal(err)
			}
			opened.listTimeout = 300 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			before := allocated()
			if strings.Contains(name, "snapshot") {
				d := download{store: opened, path: "a", scratch: t.TempDir(), expected: expectation{unverified: true}, log: t.Logf}
				_, _, err = d.fetch(ctx)
			} else {
				var found []entry
				if found, err = list(ctx, opened, t.Logf); err == nil && name == "a manifest without end" && len(found) == 0 {
					err = format.ErrManifest // list logs this error
				}
			}
			if err == nil || errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
				t.Errorf("got %v", err)
			}
			t.Logf("%.300v", err)
			if grown := allocated() - before; grown > 64<<20 {
				t.Errorf("the heap has grown by %d MiB", grown>>20)
			}
		})
	}
	if followed.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// allocated returns the size of the heap, including garbage that has not been collected.
func allocated() int64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
