package upstream

import (
	"context"
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
	if err := poll(
		ctx, func(ctx context.Context) bool { return answers(ctx, http.DefaultClient, s.URL+"/healthz") },
	); err != nil {
		t.Fatalf("the S3 server does not answer: %v", err)
	}
	return s
}

// S3 returns the path of the S3 server of tools/s3. It is built at most once for each version of its module.
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
