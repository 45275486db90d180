package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestArchiveIsGenerated checks that the archive is up to date with the Kubernetes module.
func TestArchiveIsGenerated(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("generates all documents")
	}
	output := filepath.Join(t.TempDir(), "builtin.zip")
	if err := run(output); err != nil {
		t.Fatal(err)
	}
	made, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile("../builtin.zip")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(made, committed) {
		t.Error("builtin.zip is out of date: go generate ./apiserver/openapi")
	}
}

func TestMinorVersion(t *testing.T) {
	t.Parallel()
	for directory, want := range map[string]string{
		"/modules/k8s.io/kubernetes@v1.36.3": "1.36", "/home/me/kubernetes": "unversioned",
	} {
		if got := minor(directory); got != want {
			t.Errorf("%s: got %s, want %s", directory, got, want)
		}
	}
}

// TestCBORIsDropped removes the media types of a feature that is off by default.
func TestCBORIsDropped(t *testing.T) {
	t.Parallel()
	document := object{
		"consumes": []any{"application/json", "application/cbor", "application/apply-patch+cbor"},
		"content":  object{"application/json": object{}, "application/cbor-seq": object{}},
	}
	want := object{"consumes": []any{"application/json"}, "content": object{"application/json": object{}}}
	if dropCBOR(document); !reflect.DeepEqual(document, want) {
		t.Errorf("got %v, want %v", document, want)
	}
}

// TestIncompleteSources generates from documents of which a part is missing, as after a change of upstream's generator.
func TestIncompleteSources(t *testing.T) {
	t.Parallel()
	const paths = `"/apis/apps/v1/deployments": {"parameters": []}`
	const info = `"info": {"title": "t", "version": "v"}`
	const empty = `{"openapi": "3.0.0", ` + info + `, "paths": {}}`
	const swagger = `{"swagger": "2.0", ` + info + `, "paths": {` + paths + `}, "definitions": {}, "parameters": {}}`
	for _, test := range []struct {
		name  string
		files map[string]string
		err   string
	}{
		{"no documents", nil, "list documents"},
		{"no version 2", map[string]string{"v3/api_openapi.json": empty}, "swagger.json"},
		{"no JSON", map[string]string{"v3/api_openapi.json": `{`}, "decode"},
		{"no paths", map[string]string{"v3/api_openapi.json": empty, "swagger.json": `{}`}, "paths: not a JSON object"},
		{
			"no definitions", map[string]string{"v3/api_openapi.json": empty, "swagger.json": `{"paths": {}}`},
			"definitions: not a JSON object",
		},
		{"no sample", map[string]string{"v3/api_openapi.json": empty, "swagger.json": swagger}, "not a JSON object"},
		{"no parameters", map[string]string{
			"v3/apis__apps__v1_openapi.json": `{"openapi": "3.0.0", ` + info + `, "paths": {` + paths + `}}`,
			"swagger.json":                   swagger,
		}, "no parameters of"},
	} {
		directory := t.TempDir()
		for name, content := range test.files {
			file := filepath.Join(directory, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := archive(directory, "1.36"); err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got the error %v, want %q", test.name, err, test.err)
		}
	}
}

// TestResourcesOfDocuments selects the resources of the default documents and of extension servers.
func TestResourcesOfDocuments(t *testing.T) {
	t.Parallel()
	all := []string{
		"apps/v1/deployments", "resource.k8s.io/v1beta1/devices", "apiextensions.k8s.io/v1/customresourcedefinitions",
	}
	keep := func(serves func(string) bool) []string {
		return slices.DeleteFunc(slices.Clone(all), func(resource string) bool { return !serves(resource) })
	}
	if got := keep(stable); !slices.Equal(got, []string{all[0], all[2]}) {
		t.Errorf("by default: %v", got)
	}
	if got := keep(ofExtensions); !slices.Equal(got, all[2:]) {
		t.Errorf("of extension servers: %v", got)
	}
}
