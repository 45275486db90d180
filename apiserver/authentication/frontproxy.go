package authentication

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// FrontProxy configures front proxies, which authenticate users and send them in headers. It is immutable except for
// Authority. FrontProxies are compared by address.
type FrontProxy struct {
	Authority *Authority
	// AllowedNames are the allowed common names; empty means any name.
	AllowedNames []string

	UsernameHeaders     []string
	UIDHeaders          []string
	GroupHeaders        []string
	ExtraHeaderPrefixes []string
}

// Current returns f. It is used where the configuration cannot change but a function is needed.
func (f *FrontProxy) Current() *FrontProxy { return f }

// frontProxy authenticates the user in the headers of a front proxy. It returns neither a response nor an error if
// the headers contain no user, the connection has no certificate, or no front proxy is configured.
func (a *Authenticator) frontProxy(r *http.Request, c *connection) (*authenticator.Response, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	proxy := a.options.FrontProxy()
	if proxy == nil {
		return nil, nil
	}
	current, now := proxy.Authority.current.Load(), a.options.Clock.Now()
	if current.isEmpty() {
		return nil, nil
	}
	v := c.proxy.Load()
	if !v.holds(current, now) || v.proxy != proxy {
		v = verify(current, r.TLS.PeerCertificates, now)
		v.proxy = proxy
		name := r.TLS.PeerCertificates[0].Subject.CommonName
		if v.err == nil && len(proxy.AllowedNames) > 0 && !slices.Contains(proxy.AllowedNames, name) {
			v.err = fmt.Errorf("x509: subject with cn=%s is not in the allowed list", name)
		}
		c.proxy.Store(v)
	}
	if v.err != nil {
		return nil, v.err
	}
	return proxy.read(r.Header), nil
}

// read returns the user in the headers, or nil, and removes the headers.
func (f *FrontProxy) read(headers http.Header) *authenticator.Response {
	name := first(headers, f.UsernameHeaders)
	if name == "" {
		return nil
	}
	who := &user.DefaultInfo{Name: name, UID: first(headers, f.UIDHeaders), Extra: map[string][]string{}}
	for _, header := range f.GroupHeaders {
		for _, group := range headers.Values(header) {
			if group != "" {
				who.Groups = append(who.Groups, group)
			}
		}
	}
	for _, prefix := range f.ExtraHeaderPrefixes {
		for header, values := range headers {
			if key, ok := cutPrefixFold(header, prefix); ok {
				key = unescape(strings.ToLower(key))
				who.Extra[key] = append(who.Extra[key], values...)
			}
		}
	}
	f.Clear(headers)
	return authenticated(&authenticator.Response{User: who})
}

// Clear removes the headers of front proxies, so that no backend trusts headers that a client has sent.
func (f *FrontProxy) Clear(headers http.Header) {
	for _, names := range [][]string{f.UsernameHeaders, f.UIDHeaders, f.GroupHeaders} {
		for _, name := range names {
			headers.Del(name)
		}
	}
	for _, prefix := range f.ExtraHeaderPrefixes {
		for header := range headers {
			if _, ok := cutPrefixFold(header, prefix); ok {
				delete(headers, header)
			}
		}
	}
}

func first(headers http.Header, names []string) string {
	for _, name := range names {
		if value := headers.Get(name); value != "" {
			return value
		}
	}
	return ""
}

func cutPrefixFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// unescape decodes percent-encoding. It returns a key with an invalid encoding unchanged.
func unescape(key string) string {
	if decoded, err := url.PathUnescape(key); err == nil {
		return decoded
	}
	return key
}
