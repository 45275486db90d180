package upstream

import (
	"context"
	"os"
	"path/filepath"
)

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
