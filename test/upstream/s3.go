package upstream

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Credentials and bucket of StartS3.
const (
	S3AccessKey = "quorate"
	S3SecretKey = "quorate-secret"
	S3Bucket    = "backups"
)

// S3Server is a running S3 server.
type S3Server struct {
	URL       string
	Directory string // contains the objects of the bucket as files
}

// StartS3 starts the S3 server of tools/s3, which stops when the test ends.
func StartS3(t testing.TB) S3Server {
	t.Helper()
	NeedsProcesses(t)
	binary, err := S3(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, data := listener.Addr().String(), t.TempDir()
	listener.Close()
	server := exec.Command(binary, address, data)
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	s := S3Server{URL: "http://" + address, Directory: filepath.Join(data, "objects", S3Bucket)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		response, err := http.Get(s.URL + "/healthz")
		if err == nil {
			response.Body.Close()
			return s
		}
		time.Sleep(20 * time.Millisecond) // polling interval
	}
	t.Fatal(fmt.Errorf("the S3 server does not answer: %w", ctx.Err()))
	return s
}

// S3 returns the path of the S3 server of tools/s3, built at most once per version of its module.
func S3(ctx context.Context) (string, error) {
	if path, ok := prebuilt("s3"); ok {
		return path, nil
	}
	workspace, err := inspect(ctx)
	if err != nil {
		return "", err
	}
	workspace.root = filepath.Join(workspace.root, "tools", "s3")
	var inputs [][]byte
	for _, name := range []string{"go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(workspace.root, name))
		if err != nil {
			return "", err
		}
		inputs = append(inputs, text)
	}
	return workspace.buildOnce(ctx, "s3-"+digest(inputs...), ".", "-s -w")
}
