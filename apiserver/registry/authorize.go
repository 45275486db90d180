package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// authorizeCreate checks that the user of an update may create the object. The update itself is already authorized.
func (r *Registry) authorizeCreate(ctx context.Context, t Target) error {
	user, ok := request.UserFrom(ctx)
	if !ok {
		return nil // an internal write
	}
	attributes := authorizer.AttributesRecord{
		User: user, ResourceRequest: true, Verb: "create", APIGroup: t.Group, APIVersion: t.Version.Name,
		Resource: t.Plural, Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	}
	decision, reason, err := r.authorizer.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return forbidden(t, user, reason)
}

// forbidden is the error of the authorization filter.
func forbidden(t Target, user user.Info, reason string) error {
	message := "User \"" + user.GetName() + "\" cannot create resource \"" + t.Plural + "\" in API group \"" + t.Group + "\""
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
