package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// mayCreate asks whether the user may create what an update would create.
func (r *Registry) mayCreate(ctx context.Context, t Target) error {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil // the server itself
	}
	attributes := authorizer.AttributesRecord{
		User: who, ResourceRequest: true, Verb: "create", APIGroup: t.Group, APIVersion: t.Version.Name,
		Resource: t.Plural, Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	}
	decision, reason, err := r.authorizer.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return forbidden(t, who, reason)
}

func forbidden(t Target, who user.Info, reason string) error {
	message := "User \"" + who.GetName() + "\" cannot create resource \"" + t.Plural + "\" in API group \"" + t.Group + "\""
	if t.Namespace != "" {
		message += " in the namespace \"" + t.Namespace + "\""
	} else {
		message += " at the cluster scope"
	}
	if reason != "" {
		message += ": " + reason
	}
	return apierrors.NewForbidden(t.GroupResource(), t.Name, errors.New(message))
}
