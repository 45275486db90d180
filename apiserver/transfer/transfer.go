// Package transfer serves custom resources while their objects are moved from or to another cluster, which an
// annotation of their CustomResourceDefinition indicates. It rejects all requests except requests of the transfer
// itself, so that clients neither see only some of the objects nor treat missing objects as deleted.
package transfer

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
)

// Header marks the requests of a transfer, which members of system:masters may send. PUT stores the object without
// changes, and DELETE removes it regardless of its finalizers.
const Header = "Quorate-Transfer"

// Guard is the handler of resources. The embedded handler serves the resources that are not being transferred.
type Guard struct {
	router.ResourceHandler
	Registry *registry.Registry
}

// Serve implements router.ResourceHandler.
func (g Guard) Serve(w http.ResponseWriter, r *http.Request, match resource.Match) {
	if !match.Transferring {
		g.ResourceHandler.Serve(w, r, match)
		return
	}
	record := request.From(r.Context())
	verb := record.Info.Verb
	isTransfer := r.Header.Get(Header) != "" && isAdministrator(record.User)
	switch {
	case isTransfer && (verb == "get" || verb == "list"):
		g.ResourceHandler.Serve(w, r, match)
	case isTransfer && verb == "update" && record.Info.Subresource == "":
		respond(w, r, func(ctx context.Context) (runtime.Object, int, error) { return g.store(ctx, r, record, match) })
	case isTransfer && verb == "delete" && record.Info.Subresource == "":
		respond(w, r, func(ctx context.Context) (runtime.Object, int, error) { return g.remove(ctx, r, record, match) })
	default:
		// The error has no Retry-After: a watch that is retried would continue at a revision of another etcd.
		request.WriteError(w, r, apierrors.NewServiceUnavailable(fmt.Sprintf(
			"%s are being moved from or to another cluster, please try again later", match.GroupResource())))
	}
}

func isAdministrator(u user.Info) bool {
	return u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// store stores the object in the body.
func (g Guard) store(
	ctx context.Context, r *http.Request, record *request.Record, match resource.Match,
) (runtime.Object, int, error) {
	body, err := record.Body(r)
	if err != nil {
		return nil, 0, err
	}
	object, kind, strict, err := match.Version.Codec.Decode(body, runtime.ContentTypeJSON, resource.Strict)
	if err != nil {
		return nil, 0, apierrors.NewBadRequest(err.Error())
	}
	if len(strict) > 0 {
		return nil, 0, apierrors.NewBadRequest(runtime.NewStrictDecodingError(strict).Error())
	}
	if kind != match.Version.Kind {
		return nil, 0, apierrors.NewBadRequest(fmt.Sprintf("the object is a %s, not a %s", kind, match.Version.Kind))
	}
	target := transferTarget(match, record.Info.Namespace, record.Info.Name)
	if err := checkNames(object, target); err != nil {
		return nil, 0, err
	}
	result, err := g.Registry.Import(ctx, target, object)
	if err != nil {
		return nil, 0, err
	}
	external, err := match.Version.Codec.External(result.Object)
	if result.Outcome == registry.Created {
		return external, http.StatusCreated, err
	}
	return external, http.StatusOK, err
}

func checkNames(object runtime.Object, target resource.Target) error {
	accessor, ok := object.(metav1.Object)
	if !ok || accessor.GetNamespace() != target.Namespace || accessor.GetName() != target.Name {
		return apierrors.NewBadRequest("the namespace and the name of the object must match the URL")
	}
	return nil
}

// remove deletes the object with the preconditions in the body.
func (g Guard) remove(
	ctx context.Context, r *http.Request, record *request.Record, match resource.Match,
) (runtime.Object, int, error) {
	body, err := record.Body(r)
	if err != nil {
		return nil, 0, err
	}
	options := metav1.DeleteOptions{}
	if err := json.Unmarshal(body, &options); err != nil {
		return nil, 0, apierrors.NewBadRequest("the body must be JSON DeleteOptions: " + err.Error())
	}
	target := transferTarget(match, record.Info.Namespace, record.Info.Name)
	if err := g.Registry.Expunge(ctx, target, options.Preconditions); err != nil {
		return nil, 0, err
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess,
	}, http.StatusOK, nil
}

func respond(w http.ResponseWriter, r *http.Request, serve func(context.Context) (runtime.Object, int, error)) {
	if contentType := r.Header.Get("Content-Type"); contentType != "" &&
		!strings.HasPrefix(contentType, runtime.ContentTypeJSON) {
		request.WriteError(w, r, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, r.Method,
			metav1.SchemeGroupVersion.WithResource("").GroupResource(), "", "a transfer is JSON", 0, false))
		return
	}
	object, code, err := serve(r.Context())
	if err != nil {
		request.WriteError(w, r, err)
		return
	}
	body, err := json.Marshal(object)
	if err != nil {
		request.WriteInternalError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// transferTarget returns the target of a transfer.
func transferTarget(match resource.Match, namespace, name string) resource.Target {
	return resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: namespace, Name: name}
}
