package request

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxErrors is the number of validation errors in a response. The time for joining errors to a message grows with the
// square of their number, and an object within the size limit can have a hundred thousand.
const MaxErrors = 100

// Bound returns the first MaxErrors errors and the number of the others.
func Bound(errs field.ErrorList) (shown field.ErrorList, omitted int) {
	if len(errs) <= MaxErrors {
		return errs, 0
	}
	return errs[:MaxErrors], len(errs) - MaxErrors
}

// WithOmitted adds the number of omitted validation errors to the message of an API status error, whose causes are the
// shown errors.
func WithOmitted(err error, omitted int) error {
	var status *apierrors.StatusError
	if omitted > 0 && errors.As(err, &status) && status.ErrStatus.Details != nil {
		shown := len(status.ErrStatus.Details.Causes)
		status.ErrStatus.Message += fmt.Sprintf(" (%d shown of %d errors)", shown, shown+omitted)
	}
	return err
}

// Invalid returns the error for an invalid object, with at most MaxErrors validation errors.
func Invalid(kind schema.GroupKind, name string, errs field.ErrorList) error {
	shown, omitted := Bound(errs)
	return WithOmitted(apierrors.NewInvalid(kind, name, shown), omitted)
}
