package filters

import (
	"errors"
	"net/http"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/authorization"
	"quorate.dev/apiserver/request"
)

// authorize passes on requests that the authorizer allows, and responds with 403 to all others.
type authorize struct {
	next       http.Handler
	authorizer authorizer.UnconditionalAuthorizer
	metrics    *Metrics
	clock      clock.PassiveClock
}

func (f *authorize) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	fillAttributes(record)
	started := f.clock.Now()
	decision, reason, err := f.authorizer.Authorize(record, &record.Attributes)
	record.Latency.Authorization = f.clock.Since(started)
	f.metrics.authorized(decision, err, record.Latency.Authorization)
	f.metrics.filters.Load().authorization.Observe(record.Latency.Authorization.Seconds())
	// A request can be allowed although part of the policy could not be evaluated, which err reports.
	if decision == authorizer.DecisionAllow {
		audit.AnnotateDecision(record, "allow", reason)
		f.next.ServeHTTP(w, r)
		return
	}
	if errors.Is(err, authorization.ErrBusy) {
		audit.AnnotateDecision(record, "", "")
		f.metrics.dropped(record, r)
		refuseTooMany(w, "1")
		return
	}
	if err != nil {
		audit.AnnotateDecision(record, "", "")
		request.WriteInternalError(w, r, err)
		return
	}
	audit.AnnotateDecision(record, "forbid", reason)
	refuse(w, r, request.Forbidden(&record.Attributes, reason))
}

// refuse responds with an error whose text quotes the request. The header nosniff prevents browsers from rendering it.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	request.WriteError(w, r, err)
}

// fillAttributes sets the attributes for the authorizer in the record.
func fillAttributes(record *request.Record) {
	info, a := &record.Info, &record.Attributes
	a.User, a.Verb, a.Namespace = record.User, info.Verb, info.Namespace
	a.APIGroup, a.APIVersion = info.APIGroup, info.APIVersion
	a.Resource, a.Subresource, a.Name = info.Resource, info.Subresource, info.Name
	a.ResourceRequest, a.Path = info.IsResourceRequest, info.Path
	if info.FieldSelector != "" {
		selector, err := fields.ParseSelector(info.FieldSelector)
		if a.FieldSelectorParsingErr = err; err == nil {
			a.FieldSelectorRequirements = selector.Requirements()
		}
	}
	if info.LabelSelector != "" {
		selector, err := labels.Parse(info.LabelSelector)
		if a.LabelSelectorParsingErr = err; err == nil {
			a.LabelSelectorRequirements, _ = selector.Requirements()
		}
	}
}
