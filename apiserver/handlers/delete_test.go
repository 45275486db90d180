package handlers_test

import (
	"net/http"
	"testing"
)

// TestDelete deletes single objects. The response is a Status with the name and the UID of the object or, while the
// object waits for finalizers, the object itself.
func TestDelete(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "plain", "guarded", "old", "yaml", "protobuf", "dry", "kept", "foreground", "orphaned")
	uid := field(t, s.do(t, exchange{request: "GET " + configMaps + "/guarded", code: http.StatusOK}), "metadata", "uid")
	remove := func(name string) string { return "DELETE " + configMaps + "/" + name }
	options := func(fields string) string { return `{"kind":"DeleteOptions","apiVersion":"v1",` + fields + `}` }
	s.run(t, []exchange{
		{
			name: "without options", request: remove("plain"), code: http.StatusOK,
			want: `{kind: Status, apiVersion: v1, metadata: {}, status: Success,
				details: {name: plain, kind: configmaps, uid: "*"}}`,
		},
		{name: "deleted", request: "GET " + configMaps + "/plain", code: http.StatusNotFound, want: `{reason: NotFound}`},
		{
			name: "object that does not exist", request: remove("plain"), code: http.StatusNotFound,
			want: `{reason: NotFound, message: configmaps "plain" not found}`,
		},
		{
			name: "other UID", request: remove("guarded"), sends: jsonType,
			body: options(`"preconditions":{"uid":"other"}`), code: http.StatusConflict,
			want: `{reason: Conflict, message: "~the UID in the precondition (other) does not match the UID in record (` +
				uid + `)"}`,
		},
		{
			name: "old resource version", request: remove("old"), sends: jsonType,
			body: options(`"preconditions":{"resourceVersion":"1"}`), code: http.StatusConflict,
			want: `{reason: Conflict, message: "~the ResourceVersion in the precondition (1) does not match"}`,
		},
		{
			name: "its UID", request: remove("guarded"), sends: jsonType,
			body: options(`"preconditions":{"uid":"` + uid + `"}`), code: http.StatusOK, want: `{details: {uid: ` + uid + `}}`,
		},
		{
			name: "options in YAML", request: remove("yaml"), sends: yamlType,
			body: "{kind: DeleteOptions, apiVersion: v1, propagationPolicy: Background}", code: http.StatusOK,
			want: `{status: Success}`,
		},
		{
			name: "options in protobuf", request: remove("protobuf"), sends: protobufType,
			body: "k8s\x00\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x00", code: http.StatusOK, want: `{status: Success}`,
		},
		{
			name: "dry run in the query", request: remove("dry") + "?dryRun=All", code: http.StatusOK,
			want: `{status: Success, details: {name: dry}}`,
		},
		{
			name: "dry run in the body", request: remove("dry"), sends: jsonType, body: options(`"dryRun":["All"]`),
			code: http.StatusOK, want: `{status: Success}`,
		},
		{name: "a dry run deletes nothing", request: "GET " + configMaps + "/dry", code: http.StatusOK},
		{
			name: "a body hides the query", request: remove("kept") + "?gracePeriodSeconds=x", sends: jsonType,
			body: options(`"dryRun":["All"]`), code: http.StatusOK,
		},
		{
			name: "query that cannot be parsed", request: remove("kept") + "?gracePeriodSeconds=x",
			code: http.StatusBadRequest, want: `{reason: BadRequest, message: "~invalid syntax"}`,
		},
		{
			name: "invalid option", request: remove("kept") + "?propagationPolicy=Sometimes",
			code: http.StatusUnprocessableEntity,
			want: `{details: {kind: DeleteOptions, causes: [{field: propagationPolicy}]}}`,
		},
		{
			name: "options of another kind", request: remove("kept"), sends: jsonType,
			body: `{"kind":"CreateOptions","apiVersion":"v1"}`, code: http.StatusBadRequest, want: `{reason: BadRequest}`,
		},
		{
			name: "options that are not JSON", request: remove("kept"), sends: jsonType, body: "nonsense",
			code: http.StatusBadRequest, want: `{reason: BadRequest}`,
		},
		{
			name: "media type that is not supported", request: remove("kept"), sends: "text/plain", body: "{}",
			code: http.StatusUnsupportedMediaType,
		},
		{
			name: "unsafe deletion is ignored without its feature gate", code: http.StatusOK,
			request: remove("kept") + "?ignoreStoreReadErrorWithClusterBreakingPotential=true", want: `{status: Success}`,
		},
		{
			name: "foreground", request: remove("foreground") + "?propagationPolicy=Foreground", code: http.StatusOK,
			want: `{kind: ConfigMap, metadata: {name: foreground, deletionTimestamp: "*", deletionGracePeriodSeconds: 0,
				finalizers: [foregroundDeletion]}}`,
		},
		{
			name: "deprecated option of foreground deletion", request: remove("orphaned"), sends: jsonType,
			body: options(`"orphanDependents":true`), code: http.StatusOK,
			want: `{kind: ConfigMap, metadata: {finalizers: [orphan]}}`,
		},
		{
			name: "removal of the last finalizer deletes the object", request: "PATCH " + configMaps + "/foreground",
			sends: mergePatch, body: `{"metadata":{"finalizers":null}}`, code: http.StatusOK, want: `{kind: ConfigMap}`,
		},
		{name: "deleted by the update", request: "GET " + configMaps + "/foreground", code: http.StatusNotFound},
		{
			name: "create a pod on a node", request: "POST /api/v1/namespaces/a/pods", sends: yamlType,
			body: `{metadata: {name: p}, spec: {nodeName: node-1, containers: [{name: c, image: i}]}}`, code: http.StatusCreated,
		},
		{
			name: "graceful deletion", request: "DELETE /api/v1/namespaces/a/pods/p?gracePeriodSeconds=7", code: http.StatusOK,
			want: `{kind: Pod, metadata: {deletionTimestamp: "*", deletionGracePeriodSeconds: 7}}`,
		},
		{
			name: "not orphaned, which is accepted", request: "DELETE /api/v1/namespaces/a/pods/p", sends: jsonType,
			body: options(`"orphanDependents":false`), code: http.StatusAccepted, want: `{kind: Pod}`,
		},
		{
			name: "forced", request: "DELETE /api/v1/namespaces/a/pods/p?gracePeriodSeconds=0", code: http.StatusOK,
			want: `{kind: Pod, metadata: {deletionGracePeriodSeconds: 0}}`,
		},
		{
			name: "create a Job", request: "POST /apis/batch/v1/namespaces/a/jobs", sends: yamlType, code: http.StatusCreated,
			body: `{metadata: {name: j}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}`,
		},
		{
			name: "Job without a propagation policy", request: "DELETE /apis/batch/v1/namespaces/a/jobs/j", code: http.StatusOK,
			want: `{kind: Job, metadata: {finalizers: [orphan]}}`,
			header: map[string]string{"Warning": `299 - "child pods are preserved by default when jobs are deleted; set ` +
				`propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"`},
		},
		{
			name: "Status in protobuf", request: remove("dry"), accepts: protobufType, code: http.StatusOK,
			want:   `{status: Success, details: {name: dry, kind: configmaps}}`,
			header: map[string]string{"Content-Type": protobufType},
		},
	})
}

// TestDeleteCollection deletes the objects that selectors select. The response is the list of the deleted objects.
func TestDeleteCollection(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a", "b", "c", "d", "e")
	s.run(t, []exchange{
		{
			name: "invalid selector", request: "DELETE " + configMaps + "?labelSelector=%3D", code: http.StatusBadRequest,
			want: `{reason: BadRequest, message: "~found '=', expected: !, identifier, or 'end of string'"}`,
		},
		{
			name: "invalid options", request: "DELETE " + configMaps + "?propagationPolicy=Sometimes",
			code: http.StatusUnprocessableEntity, want: `{details: {kind: DeleteOptions}}`,
		},
		{
			name: "dry run", request: "DELETE " + configMaps + "?dryRun=All&labelSelector=name%3Da", code: http.StatusOK,
			want: `{kind: ConfigMapList, items: [{metadata: {name: a}}]}`,
		},
		{
			name: "by label", request: "DELETE " + configMaps + "?labelSelector=name+in+(a,b)", code: http.StatusOK,
			want: `{kind: ConfigMapList, apiVersion: v1, metadata: {resourceVersion: "*"},
				items: [{metadata: {name: a}, data: {key: a}}, {metadata: {name: b}}]}`,
		},
		{
			name: "by field, as metadata", request: "DELETE " + configMaps + "?fieldSelector=metadata.name%3Dc",
			accepts: jsonType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", code: http.StatusOK,
			want: `{kind: PartialObjectMetadataList, items: [{metadata: {name: c}, data: null}]}`,
		},
		{
			name: "the Accept header is rejected after the deletion", code: http.StatusNotAcceptable,
			request: "DELETE " + configMaps + "?labelSelector=name%3Dd",
			accepts: jsonType + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
			want:    `{message: "~you requested PartialObjectMetadata, but the requested object is a list"}`,
		},
		{
			name: "nothing matches", request: "DELETE " + configMaps + "?labelSelector=name%3Dd", code: http.StatusOK,
			want: `{items: []}`,
		},
		{
			name: "the others remain", request: "GET " + configMaps, code: http.StatusOK,
			want: `{items: [{metadata: {name: e}}]}`,
		},
		{
			name: "all namespaces", request: "DELETE /api/v1/configmaps", code: http.StatusMethodNotAllowed,
			want: `{reason: MethodNotAllowed}`,
		},
	})
}
