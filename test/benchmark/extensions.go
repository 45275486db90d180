package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"quorate.dev/test/measure/samples"
)

// The following constants define the measurement of what 100 webhooks and policies that select no object add to a
// write. The difference is smaller than the noise of one measurement. Therefore the number of rounds does not depend on
// --rounds, and each round sends all requests, without the webhooks and policies and with them, in alternating order.
const (
	extensionRounds  = 7
	extensionsOfKind = 25
	customRequests   = "/apis/benchmark.example.com/v1/namespaces/" + namespace + "/widgets"
	admissionGroup   = "/apis/admissionregistration.k8s.io/v1/"
	policiesSettle   = 3 * time.Second // both servers read policies once per second
	noExtensions     = "create and update a configmap and a custom resource"
	otherExtensions  = noExtensions + ", with 100 webhooks and policies for others"
	extensionsLimit  = 0.2  // for a busy machine; a tenth is measured on an idle one
	extensionWrites  = 4000 // writes in a round
	writesInFlight   = 1000 // more than are sent concurrently, so that objects that are updated exist
)

// extensions returns the two rows. Their requests depend on the round, so they have none.
func extensions() []work {
	return []work{
		{name: noExtensions, promise: 1.0 / 1.5, parallel: 16, count: extensionWrites},
		{name: otherExtensions, parallel: 16, count: extensionWrites, base: noExtensions, increase: extensionsLimit},
	}
}

// extensionSteps returns the steps that measure both rows, one for each round. The floor calls no webhooks.
func (p plan) extensionSteps() []step {
	without, with := courses{}, courses{}
	steps := []step{func(ctx context.Context, s *subject) error { return s.defineWidgets(ctx) }}
	for i := range extensionRounds {
		steps = append(steps, func(ctx context.Context, s *subject) error {
			all := map[string]*course{noExtensions: without.of(s), otherExtensions: with.of(s)}
			return p.measureExtensions(ctx, s, i, all)
		})
	}
	for i, each := range steps {
		steps[i] = func(ctx context.Context, s *subject) error {
			if s.reference != nil {
				return nil
			}
			return each(ctx, s)
		}
	}
	return steps
}

// measureExtensions measures the round with an index of both rows, and adds it to their courses, which are by the name
// of the row.
func (p plan) measureExtensions(ctx context.Context, s *subject, index int, all map[string]*course) error {
	works := extensions()
	if index%2 == 0 {
		slices.Reverse(works) // alternate, so that changes from measurement to measurement affect both rows
	}
	for i, w := range works {
		configured := w.base != ""
		if err := s.configure(ctx, http.MethodPost, configured); err != nil {
			return err
		}
		w.request = extensionWrite(fmt.Sprintf("round-%d-%d", index, i))
		if err := s.measure(ctx, round{w, 0, 1}, all[w.name]); err != nil { // all requests of the work in each round
			return fmt.Errorf("%s: %w", w.name, err)
		}
		p.summarize(s, round{w, index, extensionRounds}, all[w.name])
		if err := s.configure(ctx, http.MethodDelete, configured); err != nil {
			return err
		}
	}
	return nil
}

// extensionWrite returns requests that create configmaps and widgets, and update those that were created earlier.
func extensionWrite(prefix string) func(int) request {
	return func(i int) request {
		custom, update := i%2 == 1, i%4 >= 2 && i >= writesInFlight
		if update {
			i -= writesInFlight + 2
		}
		name := fmt.Sprintf("%s-%06d", prefix, i)
		r := request{http.MethodPost, configMaps, asJSON, asJSON, samples.JSON(configMap(name, i))}
		if custom {
			r.path = customRequests
			r.body = fmt.Appendf(nil, `{"apiVersion":"benchmark.example.com/v1","kind":"Widget","metadata":{"name":%q},
				"spec":{"size":%d,"parts":[{"name":"a","count":1},{"name":"b","count":2}]}}`, name, i)
		}
		if update {
			r.method, r.contentType = http.MethodPatch, "application/merge-patch+json"
			r.path += "/" + name
			r.body = []byte(`{"metadata":{"labels":{"updated":"yes"}}}`)
		}
		return r
	}
}

// defineWidgets creates the definition of the custom resource and waits until it is served.
func (s *subject) defineWidgets(ctx context.Context) error {
	definition := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.benchmark.example.com"},
		"spec":{"group":"benchmark.example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[
		{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
		"properties":{"size":{"type":"integer"},"parts":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},
		"count":{"type":"integer"}}}}}}}}}}]}}`
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	if _, _, err := s.client.do(ctx, request{http.MethodPost, path, asJSON, asJSON, []byte(definition)}); err != nil {
		return err
	}
	for {
		_, _, err := s.client.do(ctx, request{method: http.MethodGet, path: customRequests, accept: asJSON})
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// configure creates or deletes webhooks and policies, and sleeps until the server has observed the change. If any is
// false, it changes nothing and only sleeps, so that both measurements take the same course.
func (s *subject) configure(ctx context.Context, method string, any bool) error {
	for i := range extensionsOfKind {
		for _, c := range configurations(i) {
			if !any {
				continue
			}
			r := request{method, admissionGroup + c.resource, asJSON, asJSON, []byte(c.body)}
			if method == http.MethodDelete {
				r.path, r.body = r.path+"/"+c.name, nil
			}
			if _, _, err := s.client.do(ctx, r); err != nil {
				return err
			}
		}
	}
	time.Sleep(policiesSettle)
	return nil
}

type configuration struct{ resource, name, body string }

// configurations returns one webhook of each kind and one policy of each kind, with their bindings.
func configurations(i int) []configuration {
	name := fmt.Sprintf("other-%d", i)
	rules := fmt.Sprintf(
		`[{"operations":["CREATE","UPDATE"],"apiGroups":["%s.example.com"],"apiVersions":["*"],"resources":["*"]}]`, name,
	)
	webhook := fmt.Sprintf(`{"metadata":{"name":%q},"webhooks":[{"name":"w.example.com","admissionReviewVersions":["v1"],"sideEffects":"None",
		"clientConfig":{"url":"https://127.0.0.1:1/"},"rules":%s}]}`, name, rules)
	binding := fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"policyName":%q`, name, name)
	policy := func(more string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"matchConstraints":{"resourceRules":%s},%s}}`, name, rules, more)
	}
	return []configuration{
		{"mutatingwebhookconfigurations", name, webhook},
		{"validatingwebhookconfigurations", name, webhook},
		{"validatingadmissionpolicies", name, policy(`"validations":[{"expression":"object.spec.size < 3"}]`)},
		{"validatingadmissionpolicybindings", name, binding + `,"validationActions":["Deny"]}}`},
		{"mutatingadmissionpolicies", name,
			policy(`"failurePolicy":"Fail","reinvocationPolicy":"Never","mutations":[{"patchType":"JSONPatch",
			"jsonPatch":{"expression":"[JSONPatch{op: 'add', path: '/a', value: 'b'}]"}}]`)},
		{"mutatingadmissionpolicybindings", name, binding + `}}`},
	}
}
