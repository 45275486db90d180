package authentication

import (
	"bufio"
	"net/http"
	"net/textproto"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
)

// FuzzFrontProxyLikeUpstream compares the user in the headers, and the remaining headers, with upstream's.
func FuzzFrontProxyLikeUpstream(f *testing.F) {
	for _, headers := range []string{
		"X-Remote-User: alice\nX-Remote-Group: a\nX-Remote-Group: b\nX-Remote-Extra-Scope: x\nX-Remote-Uid: 7",
		"X-Remote-User:\nX-Remote-User: alice\nX-User: bob", "X-Remote-Group: a",
		"x-remote-user: system:anonymous\nX-Remote-Group:",
		"X-Remote-User: a\nX-Remote-Extra-%41cme.com%2fx: y\nX-Remote-Extra-%zz: z\nX-Remote-Extra-: e\nX-Extra-b: c",
		"X-User: a\nX-Remote-Extra-a: b\nX-Remote-Extra-A: c\nOther: d",
		"X-Remote-User: a\nX-Remote-Group: system:unauthenticated",
	} {
		f.Add(headers, "X-Remote-User, X-User", "X-Remote-Uid", "X-Remote-Group,x-groups", "X-Remote-Extra-,x-extra-")
	}
	f.Add("X Y: a\nx y: b\nÄ: c", "X Y", "Ä", "x y", "x")
	f.Fuzz(func(t *testing.T, text, names, uids, groups, prefixes string) {
		parsed, err := textproto.NewReader(bufio.NewReader(strings.NewReader(text + "\n\n"))).ReadMIMEHeader()
		if err != nil {
			t.Skip()
		}
		theirs := http.Header(parsed)
		ours := theirs.Clone()
		proxy := &FrontProxy{
			UsernameHeaders: split(names), UIDHeaders: split(uids),
			GroupHeaders: split(groups), ExtraHeaderPrefixes: split(prefixes),
		}
		upstream, err := headerrequest.New(split(names), split(uids), split(groups), split(prefixes))
		if err != nil {
			t.Skip()
		}
		want, _, err := group.NewAuthenticatedGroupAdder(upstream).AuthenticateRequest(&http.Request{Header: theirs})
		if err != nil {
			t.Skip()
		}
		got := proxy.read(ours)
		if (got == nil) != (want == nil) || !reflect.DeepEqual(ours, theirs) {
			t.Fatalf("got %+v and left %v, upstream %+v and %v", got, ours, want, theirs)
		}
		if got != nil && !sameUser(got.User, want.User) {
			t.Errorf("got %+v, upstream %+v", got.User, want.User)
		}
	})
}

// split splits the value of a list flag.
func split(list string) []string {
	var names []string
	for _, name := range strings.Split(list, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// sameUser compares users. It ignores the order of extra values, which is random if several headers have the same key.
func sameUser(a, b user.Info) bool {
	sorted := func(u user.Info) map[string][]string {
		all := map[string][]string{}
		for key, values := range u.GetExtra() {
			all[key] = slices.Sorted(slices.Values(values))
		}
		return all
	}
	return a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && slices.Equal(a.GetGroups(), b.GetGroups()) &&
		reflect.DeepEqual(sorted(a), sorted(b))
}
