package main

import (
	"context"
	_ "embed"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"go.etcd.io/etcd/api/v3/version"

	"quorate.dev/apiserver"
	"quorate.dev/apiserver/config"
	"quorate.dev/terminal"
)

// release is the version in the file VERSION, from which images, bundle, chart and binaries take theirs.
//
//go:embed VERSION
var release string

// printVersion prints one line for each version.
func printVersion(context.Context, []string) error {
	out := terminal.Stdout()
	fmt.Fprintf(out, "Quorate     v%s\n", strings.TrimSpace(release))
	fmt.Fprintf(out, "Kubernetes  %s\n", apiserver.Version(&config.Config{}).GitVersion)
	fmt.Fprintf(out, "etcd        v%s\n", version.Version)
	fmt.Fprintf(out, "Go          %s %s/%s\n", strings.TrimPrefix(runtime.Version(), "go"), runtime.GOOS, runtime.GOARCH)
	if commit := commit(); commit != "" {
		fmt.Fprintf(out, "commit      %s\n", commit)
	}
	return nil
}

// commit returns the commit that the binary was built from, or "" if it is unknown.
func commit() string {
	info, found := debug.ReadBuildInfo()
	if !found {
		return ""
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	if settings["vcs.modified"] == "true" {
		return settings["vcs.revision"] + ", modified"
	}
	return settings["vcs.revision"]
}
