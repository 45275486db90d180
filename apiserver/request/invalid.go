package request

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxErrors is the maximum number of validation errors in a response. The time to join errors into one message grows
// with the square of their number, and an object within the size limit can have a hundred thousand errors.
const MaxErrors = 100

// maxErrorBytes is the maximum size in bytes of all validation errors in a response, except for the last one. The limit
// is necessary because an error may contain the invalid value: each of 35,000 owner references with the field
// controller causes an error that contains all of the references.
const maxErrorBytes = 1 << 20

// Bound returns the first errors, at most MaxErrors and about maxErrorBytes, and the number of omitted errors.
func Bound(errs field.ErrorList) (shown field.ErrorList, omitted int) {
	size := 0
	for i, err := range errs {
		if i == MaxErrors || size > maxErrorBytes {
			return errs[:i], len(errs) - i
		}
		if len(errs) > 1 {
			size += len(err.ErrorBody())
		}
	}
	return errs, 0
}

// WithOmitted adds the number of omitted validation errors to the message of an API status error, whose causes are the
// errors that are shown.
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
