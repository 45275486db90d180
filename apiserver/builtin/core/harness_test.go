package core_test

import (
	"testing"

	"quorate.dev/apiserver/builtin/builtintest"
)

func must[T any](t testing.TB) func(T, error) T { return builtintest.Must[T](t) }
