package storage_test

import (
	"testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/storage"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, storage.Definitions(builtintest.NewBuilder()), []builtintest.Served{
		{
			Resource: "csidrivers", Kind: "CSIDriver", Versions: "v1",
			Stored: "csidrivers storage.k8s.io/v1", ReturnsDeleted: true,
			Columns: "AttachRequired, PodInfoOnMount, StorageCapacity, TokenRequests, RequiresRepublish, Modes, Age",
		},
		{
			Resource: "csinodes", Kind: "CSINode", Versions: "v1", Stored: "csinodes storage.k8s.io/v1",
			ReturnsDeleted: true, Columns: "Drivers, Age", Subresources: []string{"status"},
		},
		{
			Resource: "csistoragecapacities", Kind: "CSIStorageCapacity", Versions: "v1", Namespaced: true,
			Stored: "csistoragecapacities storage.k8s.io/v1", Columns: "Created At",
		},
		{
			Resource: "storageclasses", Kind: "StorageClass", Versions: "v1", ShortNames: "sc",
			Stored: "storageclasses storage.k8s.io/v1", ReturnsDeleted: true,
			Columns: "Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age",
		},
		{
			Resource: "volumeattachments", Kind: "VolumeAttachment", Versions: "v1",
			Stored: "volumeattachments storage.k8s.io/v1", ReturnsDeleted: true,
			Columns: "Attacher, PV, Node, Attached, Age", Subresources: []string{"status"},
		},
		{
			Resource: "volumeattributesclasses", Kind: "VolumeAttributesClass", Versions: "v1 v1beta1",
			ShortNames: "vac", Stored: "volumeattributesclasses storage.k8s.io/v1", ReturnsDeleted: true,
			Columns: "DriverName, Age",
		},
	})
}

const (
	class = "{apiVersion: storage.k8s.io/v1, kind: StorageClass, " +
		"metadata: {name: fast}, provisioner: csi.example.com, parameters: {type: ssd}}"
	driver = "{apiVersion: storage.k8s.io/v1, kind: CSIDriver, " +
		"metadata: {name: csi.example.com}}"
	node = "{apiVersion: storage.k8s.io/v1, kind: CSINode, " +
		"metadata: {name: one}, spec: {drivers: [{name: csi.example.com, nodeID: n1}]}}"
	capacity = "{apiVersion: storage.k8s.io/v1, kind: CSIStorageCapacity, " +
		"metadata: {name: c, namespace: default}, storageClassName: fast}"
	attributes = "{apiVersion: storage.k8s.io/v1, kind: VolumeAttributesClass, " +
		"metadata: {name: gold}, driverName: csi.example.com, parameters: {iops: '9'}}"
	attachment = `
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: a}
spec: {attacher: csi.example.com, nodeName: one, source: {persistentVolumeName: disk}}
`
)

func TestClasses(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, storage.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"a class has defaults": {
			Endpoint: "storageclasses", Object: class,
			Want: map[string]string{"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": ""},
		},
		"a class needs a provisioner": {
			Endpoint: "storageclasses", Object: class, With: "provisioner: ''", Errors: []string{"provisioner: Required value"},
		},
		"most fields of a class are immutable": {
			Endpoint: "storageclasses", Object: class,
			Update: "{provisioner: other.example.com, parameters: {type: hdd}, reclaimPolicy: Retain}",
			Errors: []string{
				"provisioner: Invalid value: null: field is immutable", "parameters: Invalid value: null: field is immutable",
				"reclaimPolicy: Invalid value: null: field is immutable",
			},
		},
		"expansion of volumes can be allowed": {
			Endpoint: "storageclasses", Object: class, Update: "allowVolumeExpansion: true",
			Want: map[string]string{"allowVolumeExpansion": "true"},
		},
		"attributes are immutable": {
			Endpoint: "volumeattributesclasses", Object: attributes, Update: "parameters: {iops: '10'}",
			Errors: []string{"parameters: Forbidden: updates to parameters are forbidden."},
		},
		"attributes are served in v1beta1": {
			Endpoint: "volumeattributesclasses", Version: "v1beta1", Object: attributes,
			With: "apiVersion: storage.k8s.io/v1beta1",
			Want: map[string]string{"apiVersion": "storage.k8s.io/v1beta1", "parameters.iops": "9"},
		},
	})
}

func TestDrivers(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, storage.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"a driver has defaults": {
			Endpoint: "csidrivers", Object: driver,
			Want: map[string]string{
				"spec.attachRequired": "true", "spec.podInfoOnMount": "false", "spec.storageCapacity": "false",
				"spec.fsGroupPolicy": "ReadWriteOnceWithFSType", "spec.volumeLifecycleModes": `["Persistent"]`,
			},
		},
		"a driver cannot change how volumes are attached": {
			Endpoint: "csidrivers", Object: driver, Update: "spec: {attachRequired: false}",
			Errors: []string{"spec.attachedRequired: Invalid value: false: field is immutable"},
		},
		"a driver can change the information about pods": {
			Endpoint: "csidrivers", Object: driver, Update: "spec: {podInfoOnMount: true}",
			Want: map[string]string{"spec.podInfoOnMount": "true"},
		},
		"drivers of a node are unique": {
			Endpoint: "csinodes", Object: node,
			With:   "spec: {drivers: [{name: csi.example.com, nodeID: n1}, {name: csi.example.com, nodeID: n2}]}",
			Errors: []string{`spec.drivers[1].name: Duplicate value: "csi.example.com"`},
		},
		"the driver of a node is immutable": {
			Endpoint: "csinodes", Object: node, Update: "spec: {drivers: [{name: csi.example.com, nodeID: n2}]}",
			Errors: []string{
				`spec.drivers: Invalid value: {"Name":"csi.example.com","NodeID":"n2","TopologyKeys":null,"Allocatable":null}: ` +
					"field is immutable",
			},
		},
		"the class of a capacity is immutable": {
			Endpoint: "csistoragecapacities", Object: capacity, Update: "storageClassName: slow",
			Errors: []string{`storageClassName: Invalid value: "slow": field is immutable`},
		},
		"a capacity can change": {
			Endpoint: "csistoragecapacities", Object: capacity, Update: "capacity: 5Gi",
			Want: map[string]string{"capacity": "5Gi"},
		},
	})
}

func TestAttachments(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, storage.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"a new attachment is not attached": {
			Endpoint: "volumeattachments", Object: attachment, With: "status: {attached: true}",
			Want: map[string]string{"status.attached": "false"},
		},
		"the spec is immutable": {
			Endpoint: "volumeattachments", Object: attachment, Update: "spec: {nodeName: two}",
			Errors: []string{"spec: Invalid value: null: field is immutable"},
		},
		"an update keeps the status": {
			Endpoint: "volumeattachments", Object: attachment,
			Update: "{metadata: {labels: {a: b}}, status: {attached: true}}",
			Want:   map[string]string{"metadata.labels.a": "b", "status.attached": "false"},
		},
		"a status update changes the status": {
			Endpoint: "volumeattachments/status", Object: attachment,
			Update: "{metadata: {labels: {a: b}}, spec: {nodeName: two}, status: {attached: true}}",
			Want:   map[string]string{"spec.nodeName": "one", "status.attached": "true"},
		},
	})
}
