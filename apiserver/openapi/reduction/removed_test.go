package reduction

import (
	"maps"
	"reflect"
	"slices"
	"testing"
)

// TestRemovedV3 derives the document of a removed version from the document of the stable version.
func TestRemovedV3(t *testing.T) {
	t.Parallel()
	const stable = "apis/storage.k8s.io/v1"
	text := `{
		"paths": {
			"/apis/storage.k8s.io/v1/": {"get": {"tags": ["storage_v1"], "operationId": "getStorageV1APIResources"}},
			"/apis/storage.k8s.io/v1/storageclasses": {},
			"/apis/storage.k8s.io/v1/volumeattributesclasses": {"get": {
				"operationId": "listStorageV1VolumeAttributesClass",
				"schema": {"$ref": "#/components/schemas/io.k8s.api.storage.v1.VolumeAttributesClassList"},
				"x-kubernetes-group-version-kind": {"group": "storage.k8s.io", "kind": "VolumeAttributesClass", "version": "v1"}
			}}
		},
		"components": {"schemas": {
			"io.k8s.api.storage.v1.StorageClass": {}, "io.k8s.api.storage.v1.VolumeAttributesClassList": {}
		}}
	}`
	want := decode(t, `{
		"paths": {
			"/apis/storage.k8s.io/v1beta1/": {"get": {"tags": ["storage_v1beta1"], "operationId": "getStorageV1beta1APIResources"}},
			"/apis/storage.k8s.io/v1beta1/volumeattributesclasses": {"get": {
				"operationId": "listStorageV1beta1VolumeAttributesClass",
				"schema": {"$ref": "#/components/schemas/io.k8s.api.storage.v1beta1.VolumeAttributesClassList"},
				"x-kubernetes-group-version-kind": {
					"group": "storage.k8s.io", "kind": "VolumeAttributesClass", "version": "v1beta1"
				}
			}}
		},
		"components": {"schemas": {"io.k8s.api.storage.v1beta1.VolumeAttributesClassList": {}}}
	}`)
	documents := map[string]Object{stable: decode(t, text)}
	if err := AddRemovedV3(documents); err != nil {
		t.Fatal(err)
	}
	if got := documents["apis/storage.k8s.io/v1beta1"]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := documents[stable]; !reflect.DeepEqual(got, decode(t, text)) {
		t.Errorf("the stable document has changed: %v", got)
	}
}

// TestRemovedV2 adds removed versions to the version 2 document, and changes nothing else in it.
func TestRemovedV2(t *testing.T) {
	t.Parallel()
	document := decode(t, `{
		"paths": {"/apis/storage.k8s.io/v1/volumeattributesclasses": {
			"get": {"$ref": "#/definitions/io.k8s.api.storage.v1.VolumeAttributesClass"},
			"delete": {"$ref": "#/definitions/DeleteOptions"}
		}},
		"definitions": {
			"io.k8s.api.storage.v1.VolumeAttributesClass": {}, "io.k8s.api.storage.v1.StorageClass": {},
			"DeleteOptions": {"kinds": [{"group": "storage.k8s.io", "version": "v1"}]}
		},
		"parameters": {}
	}`)
	options := document["definitions"].(Object)["DeleteOptions"]
	if err := AddRemovedV2(document); err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string][]string{
		"paths": {
			"/apis/storage.k8s.io/v1/volumeattributesclasses", "/apis/storage.k8s.io/v1beta1/volumeattributesclasses",
		},
		"definitions": {
			"DeleteOptions", "io.k8s.api.storage.v1.StorageClass", "io.k8s.api.storage.v1.VolumeAttributesClass",
			"io.k8s.api.storage.v1beta1.VolumeAttributesClass",
		},
	} {
		if got := slices.Sorted(maps.Keys(document[member].(Object))); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", member, got, want)
		}
	}
	if got := document["definitions"].(Object)["DeleteOptions"]; !reflect.DeepEqual(got, options) {
		t.Errorf("the options have changed: %v", got)
	}
}
