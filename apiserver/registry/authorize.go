package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/resource"
)

var errNoAuthorizer = errors.New("an update that may create the object has no authorizer")

// authorizeCreate checks that the user of an update may create the object. The update itself is already authorized. It
// mirrors withAuthorization of kube-apiserver's handlers, which decides only after mutating admission; here a user
// without the permission causes no call of a webhook. As there, a decision to allow prevails over an error of another
// authorizer.
func authorizeCreate(ctx context.Context, t resource.Target, options WriteOptions) error {
	user, ok := request.UserFrom(ctx)
	if !ok || options.Internal {
		return nil
	}
	if options.Authorizer == nil {
		return apierrors.NewInternalError(errNoAuthorizer)
	}
	attributes := authorizer.AttributesRecord{
		User: user, ResourceRequest: true, Verb: "create", APIGroup: t.Group, APIVersion: t.Version.Name,
		Resource: t.Plural, Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	}
	decision, reason, err := options.Authorizer.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return forbidden(t, user, reason)
}

// forbidden returns the error that the authorization filter would return for the create (ForbiddenStatusError).
func forbidden(t resource.Target, user user.Info, reason string) error {
	message := "User \"" + user.GetName() + "\" cannot create resource \"" + t.Plural + "\" in API group \"" +
		t.Group + "\""
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
