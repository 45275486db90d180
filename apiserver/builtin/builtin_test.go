package builtin_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
)

func unusedAction(context.Context, resource.Objects, resource.Call) (runtime.Object, error) {
	return nil, errors.New("not called by these tests")
}

func TestEveryFieldManagerCanBeMade(t *testing.T) {
	for _, d := range definitions() {
		for _, v := range d.Versions {
			for name, e := range v.Endpoints {
				if e.FieldManager == nil {
					continue
				}
				if _, err := e.FieldManager(); err != nil {
					t.Errorf("%s/%s %s: %v", d.Plural, name, v.Name, err)
				}
			}
		}
	}
}
