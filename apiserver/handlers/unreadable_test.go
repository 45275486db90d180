package handlers_test

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"quorate.dev/apiserver/handlers"
)

// TestUnreadableObjects stores objects that cannot be decoded. A list fails as a whole. So does a table, although its
// rows are sent while they are encoded. With the feature gate AllowUnsafeMalformedObjectDeletion, an option deletes
// such objects if the user has a separate permission. The option is refused for objects that can be read.
func TestUnreadableObjects(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "good")
	s.handlers = handlers.New(handlers.Options{
		Registry: newRegistry(t, s), Authorizer: s.permissions, Clock: clock.RealClock{}, MinWatchTimeout: patience,
		DeleteWorkers: 1,
	})
	for _, name := range []string{"garbage", "other"} {
		if _, err := s.Etcd.Put(t.Context(), "/registry/configmaps/a/"+name, "garbage"); err != nil {
			t.Fatal(err)
		}
	}
	const option = "?ignoreStoreReadErrorWithClusterBreakingPotential=true"
	s.run(t, []exchange{
		{
			name: "list", request: "GET " + configMaps, code: http.StatusInternalServerError,
			want: `{reason: StorageReadError}`,
		},
		{
			name: "table", request: "GET " + configMaps, accepts: tableType, code: http.StatusInternalServerError,
			want: `{kind: Status, reason: StorageReadError}`,
		},
		{
			name: "object", request: "GET " + configMaps + "/garbage", code: http.StatusInternalServerError,
			want: `{kind: Status, message: "~corrupt object, Code: 7, Key: /configmaps/a/garbage"}`,
		},
		{
			name: "object as a table", request: "GET " + configMaps + "/garbage", accepts: tableType,
			code: http.StatusInternalServerError, want: `{kind: Status}`,
		},
		{
			name: "without the option", request: "DELETE " + configMaps + "/garbage", code: http.StatusInternalServerError,
		},
		{
			name: "object that can be read", request: "DELETE " + configMaps + "/good" + option,
			code: http.StatusConflict, want: `{message: "~unsafe deletion is not allowed", details: {name: good}}`,
		},
		{
			name: "collection", request: "DELETE " + configMaps + option, code: http.StatusUnprocessableEntity,
			want: `{details: {causes: [{message: "~is not allowed with DELETECOLLECTION"}]}}`,
		},
		{
			name: "with other options", code: http.StatusUnprocessableEntity, want: `{details: {kind: DeleteOptions}}`,
			request: "DELETE " + configMaps + "/garbage" + option + "&propagationPolicy=Orphan",
		},
		{
			name: "dry run", request: "DELETE " + configMaps + "/garbage" + option + "&dryRun=All", code: http.StatusOK,
			want: `{kind: Status, status: Success, details: {name: garbage}}`,
		},
		{
			name: "unreadable object", request: "DELETE " + configMaps + "/garbage" + option, code: http.StatusOK,
			want: `{kind: Status, status: Success, code: 200, details: {name: garbage, kind: ConfigMap, uid: null}}`,
		},
	})
	const failed = `{type: ERROR, object: {kind: Status, code: 500, status: Failure}}`
	for _, accepts := range []string{jsonType, tableType, jsonType + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io"} {
		e := s.watch(t, configMaps+"?watch=1", accepts)
		e.expect(`{type: ADDED}`, failed)
		e.expectEnd()
	}
	s.permissions.denied = []string{"unsafe-delete-ignore-read-errors"}
	s.do(t, exchange{
		request: "DELETE " + configMaps + "/other" + option, code: http.StatusForbidden, want: `{reason: Forbidden}`,
	})
	if checked := s.permissions.take(); !strings.HasPrefix(checked[len(checked)-1], "unsafe-delete-ignore-read-errors ") {
		t.Errorf("the authorizer checked %v", checked)
	}
}
