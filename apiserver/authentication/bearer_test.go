package authentication

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
)

// seen accepts every token and records it.
type seen struct{ token string }

func (s *seen) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	s.token = token
	return &authenticator.Response{User: &user.DefaultInfo{}}, true, nil
}

func FuzzTokenLikeUpstream(f *testing.F) {
	f.Add("Bearer abc", "", false)
	f.Add("bearer  abc", "", false)
	f.Add(" Bearer abc def ", "a,b", true)
	f.Add("", "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.YWJj", true)
	f.Add("Basic x", "base64url.bearer.authorization.k8s.io.YWJj", true)
	f.Add("", "a,base64url.bearer.authorization.k8s.io.,base64url.bearer.authorization.k8s.io.YQ", true)
	f.Fuzz(func(t *testing.T, authorization, protocols string, upgrade bool) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = http.Header{"Authorization": {authorization}, "Sec-Websocket-Protocol": {protocols}}
		if upgrade {
			r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		}
		token, others, err := tokenOf(r)
		theirs := &seen{}
		_, ok, theirErr := union.New(bearertoken.New(theirs),
			websocket.NewProtocolAuthenticator(theirs)).AuthenticateRequest(r)
		if (token != "") != ok || token != theirs.token || (err != nil) != (theirErr != nil) {
			t.Fatalf("got %q, %v; upstream %q, %v", token, err, theirs.token, theirErr)
		}
		if left := r.Header.Get("Sec-Websocket-Protocol"); ok && others != "" && left != others {
			t.Errorf("protocols %q, upstream leaves %q", others, left)
		}
	})
}
