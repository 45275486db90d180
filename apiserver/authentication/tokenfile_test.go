package authentication

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"
)

// FuzzTokenFileLikeUpstream compares the users of a file's tokens with upstream's.
func FuzzTokenFileLikeUpstream(f *testing.F) {
	klog.SetLogger(logr.Discard()) // upstream warns of empty and duplicate tokens
	f.Cleanup(klog.ClearLogger)
	for _, content := range []string{
		"", "\n\n", "token,user,uid\n", "token,user,uid,\"a,b\"\nother,user2,uid2,\n", "token,user\n",
		",user,uid\ntoken,user,uid",
		"token,user,uid,a\ntoken,user2,uid2", "\"to\"\"ken\",user,uid,\"a,,b\",more\r\n", "\"open,user,uid", "a\"b,user,uid",
		" token, user ,uid,a", "#token,user,uid", "\ufefftoken,user,uid", "\xff,\x00,uid\n", "t,u,i,a,b,c\n\nt2,u,i",
	} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		file := filepath.Join(t.TempDir(), "tokens.csv")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		upstream, theirErr := tokenfile.NewCSV(file)
		users, err := parseTokens(strings.NewReader(content))
		if (err != nil) != (theirErr != nil) {
			t.Fatalf("got %v, upstream %v", err, theirErr)
		}
		if err != nil {
			return
		}
		theirs := map[string]*user.DefaultInfo{}
		tokens := reflect.ValueOf(upstream).Elem().FieldByName("tokens").MapKeys()
		for _, token := range tokens {
			response, _, err := upstream.AuthenticateToken(t.Context(), token.String())
			if err != nil {
				t.Fatal(err)
			}
			theirs[token.String()] = response.User.(*user.DefaultInfo)
		}
		if !reflect.DeepEqual(users, theirs) {
			t.Errorf("got %v, upstream %v", users, theirs)
		}
	})
}
