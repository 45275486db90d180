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

// impersonate replaces the user of a request by the user in its Impersonate-* headers, if the impersonator allows it.
type impersonate struct {
	next    http.Handler
	metrics *Metrics
	clock   clock.PassiveClock
	impersonator
}

// impersonator decides about impersonation. It is constrainedImpersonation, or legacyImpersonation if the feature gate
// ConstrainedImpersonation is disabled.
type impersonator interface {
	// invalid returns the error for headers without a user name.
	invalid(wanted *user.DefaultInfo) error
	// impersonate returns the impersonated user with its implied groups, and the constraint of the impersonation, if it
	// has one. It returns an error if the user in attributes may not impersonate wanted.
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
		// 0 is far below the first bucket; a constant saves reading the clock.
		f.metrics.filters.Load().impersonation.Observe(0)
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

// wantedUser returns the user in the impersonation headers, and reports whether the request has such headers. The name
// is empty if the header Impersonate-User is missing.
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

// removeImpersonation removes the impersonation headers, so that no later filter or handler depends on them.
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

// noUserName returns the error for impersonation headers without a user name.
func noUserName(format string, wanted any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, wanted))
}

// withDefaultGroup returns the groups with system:authenticated or, for the anonymous user, with
// system:unauthenticated.
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
