package authorization_test

import (
	"testing"

	"quorate.dev/apiserver/builtin/authorization"
	"quorate.dev/apiserver/builtin/builtintest"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, authorization.Definitions(builtintest.NewBuilder(), nil, nil), []builtintest.Served{
		{
			Resource: "localsubjectaccessreviews", Kind: "LocalSubjectAccessReview", Versions: "v1",
			Namespaced: true, Verbs: "create",
		},
		{
			Resource: "selfsubjectaccessreviews", Kind: "SelfSubjectAccessReview", Versions: "v1",
			Verbs: "create",
		},
		{
			Resource: "selfsubjectrulesreviews", Kind: "SelfSubjectRulesReview", Versions: "v1",
			Verbs: "create",
		},
		{
			Resource: "subjectaccessreviews", Kind: "SubjectAccessReview", Versions: "v1", Verbs: "create",
		},
	})
}
