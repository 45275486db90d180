package filters

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// impersonate replaces the user of a request by the one that its Impersonate-* headers describe, if the impersonator
// allows it.
type impersonate struct {
	next    http.Handler
	metrics *Metrics
	clock   clock.PassiveClock
	impersonator
}

// impersonator decides about impersonation. It is constrainedImpersonation, or legacyImpersonation if the feature gate
// ConstrainedImpersonation is off.
type impersonator interface {
	// invalid returns the error for headers that describe a user without a name.
	invalid(wanted *user.DefaultInfo) error
	// impersonate returns the complete user and the constraint of the impersonation, if it has one, or an error if the user
	// of attributes may not act as wanted.
	impersonate(
		ctx context.Context, wanted *user.DefaultInfo, attributes authorizer.Attributes,
	) (impersonated user.Info, constraint string, err error)
}

func newImpersonate(next http.Handler, options Options) http.Handler {
	if options.ConstrainedImpersonation {
		return &impersonate{
			next: next, metrics: options.Metrics, clock: options.Clock, impersonator: newConstrainedImpersonation(options),
		}
	}
	return &impersonate{
		next: next, metrics: options.Metrics, clock: options.Clock, impersonator: legacyImpersonation{options.Authorizer},
	}
}

func (f *impersonate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	wanted, requested := wantedUser(r.Header)
	if !requested {
		f.metrics.filters.Load().impersonation.Observe(0) // far below the first bucket; saves reading the clock
		f.next.ServeHTTP(w, r)
		return
	}
	if wanted.Name == "" {
		refuse(w, r, f.invalid(wanted))
		return
	}
	record := request.From(r.Context())
	fillAttributes(record)
	started := f.clock.Now()
	impersonated, constraint, err := f.impersonate(record, wanted, &record.Attributes)
	record.Latency.Impersonation = f.clock.Since(started)
	f.metrics.filters.Load().impersonation.Observe(record.Latency.Impersonation.Seconds())
	if err != nil {
		refuse(w, r, err)
		return
	}
	if record.Audits(auditapi.LevelMetadata) {
		record.AuditContext().LogImpersonatedUser(impersonated, constraint)
	}
	removeImpersonation(r.Header)
	record.User = impersonated
	f.next.ServeHTTP(w, r)
}

// wantedUser returns the user that the impersonation headers describe, and reports whether there are any. The name is
// empty if the header Impersonate-User is missing.
func wantedUser(headers http.Header) (wanted *user.DefaultInfo, requested bool) {
	if !hasImpersonation(headers) {
		return nil, false
	}
	wanted = &user.DefaultInfo{
		Name:   headers.Get(authenticationv1.ImpersonateUserHeader),
		UID:    headers.Get(authenticationv1.ImpersonateUIDHeader),
		Groups: slices.Clone(headers[authenticationv1.ImpersonateGroupHeader]),
	}
	requested = wanted.Name != "" || wanted.UID != "" || len(wanted.Groups) > 0
	for header, values := range headers {
		key, isExtra := strings.CutPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix)
		if !isExtra {
			continue
		}
		requested = true
		if len(values) == 0 {
			continue
		}
		if wanted.Extra == nil {
			wanted.Extra = make(map[string][]string)
		}
		key = unescapeKey(strings.ToLower(key))
		wanted.Extra[key] = append(wanted.Extra[key], values...)
	}
	return wanted, requested
}

func hasImpersonation(headers http.Header) bool {
	for header := range headers {
		if strings.HasPrefix(header, "Impersonate-") {
			return true
		}
	}
	return false
}

// removeImpersonation removes the headers, so that nothing after this filter depends on them.
func removeImpersonation(headers http.Header) {
	headers.Del(authenticationv1.ImpersonateUserHeader)
	headers.Del(authenticationv1.ImpersonateUIDHeader)
	headers.Del(authenticationv1.ImpersonateGroupHeader)
	for header := range headers {
		if strings.HasPrefix(header, authenticationv1.ImpersonateUserExtraHeaderPrefix) {
			delete(headers, header)
		}
	}
}

func unescapeKey(key string) string {
	if decoded, err := url.PathUnescape(key); err == nil {
		return decoded
	}
	return key
}

// noUserName returns the error for headers that describe a user without a name.
func noUserName(format string, wanted any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, wanted))
}

// withDefaultGroup adds system:authenticated or, for the anonymous user, system:unauthenticated.
func withDefaultGroup(name string, groups []string) []string {
	if name == user.Anonymous {
		if slices.Contains(groups, user.AllUnauthenticated) {
			return groups
		}
		return append(groups, user.AllUnauthenticated)
	}
	if slices.Contains(groups, user.AllAuthenticated) || slices.Contains(groups, user.AllUnauthenticated) {
		return groups
	}
	return append(groups, user.AllAuthenticated)
}
