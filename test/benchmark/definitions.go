package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	discovery "k8s.io/api/apidiscovery/v2"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/measure"
	"quorate.dev/test/measure/samples"
)

const (
	definitionCount    = 1000
	definitionGroups   = 100 // number of groups, each with definitionCount/definitionGroups kinds
	definitionFields   = 40
	definitionParallel = 16
	polledDefinitions  = 50 // definitions that are created one at a time

	definitionDomain = ".example.com"

	definitionPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	asDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	asOpenAPIv2 = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
)

// DefinitionResults are the costs of CustomResourceDefinitions that have no custom resources.
type DefinitionResults struct {
	Live  float64       `json:"live"`  // bytes on the heap per definition
	Burst time.Duration `json:"burst"` // CPU time per definition while many are created at the same time
	// Polled is the CPU time per definition that is created while a client polls discovery and another client polls
	// OpenAPI.
	Polled time.Duration `json:"polled"`
	// V2JSON and the field below are the costs of the OpenAPI version 2 document with all definitions, in two encodings.
	V2JSON     DocumentResults `json:"v2json"`
	V2Protobuf DocumentResults `json:"v2protobuf"`
}

// DocumentResults are the costs of the first request for a document.
type DocumentResults struct {
	Size   int64         `json:"size"`
	CPU    time.Duration `json:"cpu"`
	Again  time.Duration `json:"again"`  // CPU time of the second request
	Memory int64         `json:"memory"` // largest increase of resident bytes during the first request
}

// Limits that the recorded results must keep.
const (
	liveLimit = 80 << 10
)

// definitionFigures returns the rows of the table of definitions. The memory for a document may be at most twice its
// size.
func definitionFigures() []figure {
	all := []figure{
		ofDefinitions("live memory for each", kibibytes, func(d *DefinitionResults) float64 { return d.Live }),
		ofDefinitions("CPU to create each, 16 at a time", duration, func(d *DefinitionResults) float64 {
			return float64(d.Burst)
		}),
		ofDefinitions("CPU for one more, with clients of discovery and OpenAPI v3", duration, func(
			d *DefinitionResults,
		) float64 {
			return float64(d.Polled)
		}),
	}
	all[0].limit, all[0].promise, all[1].promise, all[2].promise = liveLimit, 1.0/4, 1.0/2.5, 1.0/3
	all = append(all,
		documentFigures("OpenAPI v2, JSON", 1.0/4, func(d *DefinitionResults) DocumentResults { return d.V2JSON })...)
	return append(all,
		documentFigures("OpenAPI v2, protobuf", 1.3, func(d *DefinitionResults) DocumentResults { return d.V2Protobuf })...)
}

func documentFigures(name string, cpu float64, document func(*DefinitionResults) DocumentResults) []figure {
	all := []figure{
		ofDefinitions(name+": size", mebibytes, func(d *DefinitionResults) float64 { return float64(document(d).Size) }),
		ofDefinitions(name+": memory of the first request", mebibytes, func(d *DefinitionResults) float64 {
			return float64(document(d).Memory)
		}),
		ofDefinitions(name+": CPU of the first request", duration, func(d *DefinitionResults) float64 {
			return float64(document(d).CPU)
		}),
	}
	all[0].promise, all[1].promise, all[2].promise = 1.05, 1.0/8, cpu
	return all
}

func ofDefinitions(name string, format func(float64) string, value func(*DefinitionResults) float64) figure {
	return figure{
		name: name, format: format, measured: func(r *Results) bool { return r.Definitions != nil },
		value: func(r *Results) float64 { return value(r.Definitions) },
	}
}

// definitionSteps returns the steps that measure definitions. They need new servers.
func definitionSteps(progress func(format string, arguments ...any)) []step {
	return []step{
		func(ctx context.Context, s *subject) error { return s.settle(ctx) },
		func(ctx context.Context, s *subject) error { return s.createDefinitions(ctx) },
		func(ctx context.Context, s *subject) error { return s.createPolledDefinitions(ctx) },
		func(ctx context.Context, s *subject) (err error) {
			s.results.Definitions.V2JSON, err = s.readDocument(ctx, asJSON)
			return err
		},
		func(ctx context.Context, s *subject) (err error) {
			s.results.Definitions.V2Protobuf, err = s.readDocument(ctx, asOpenAPIv2)
			return err
		},
		func(_ context.Context, s *subject) error {
			d := s.results.Definitions
			progress("%-15s 1,000 definitions: %.0f KiB each, %s CPU each, %s for one more; OpenAPI v2: JSON %s, protobuf %s",
				s.Name, d.Live/(1<<10), measure.Short(d.Burst), measure.Short(d.Polled), d.V2JSON, d.V2Protobuf)
			return nil
		},
	}
}

func (d DocumentResults) String() string {
	return fmt.Sprintf("%.1f MiB, %s CPU, then %s, %.0f MiB more resident",
		float64(d.Size)/(1<<20), measure.Short(d.CPU), measure.Short(d.Again), float64(d.Memory)/(1<<20))
}

// createDefinitions creates all definitions in a burst, and measures the CPU time and the live memory per definition.
func (s *subject) createDefinitions(ctx context.Context) error {
	s.results.Definitions = &DefinitionResults{}
	before, err := s.liveHeap(ctx)
	if err != nil {
		return err
	}
	profile := s.startProfile(ctx, profileOfWork, "create definitions")
	used, err := s.timed(func() error { return s.createBurst(ctx) })
	if err := errors.Join(err, profile(), s.settle(ctx)); err != nil {
		return err
	}
	after, err := s.liveHeap(ctx)
	if err != nil {
		return err
	}
	s.results.Definitions.Burst = used / definitionCount
	s.results.Definitions.Live = float64(after-before) / definitionCount
	return s.startProfile(ctx, profileOfMemory, "memory with 1,000 definitions")()
}

func (s *subject) createBurst(ctx context.Context) error {
	var group sync.WaitGroup
	var next atomic.Int64
	errs := make([]error, definitionParallel)
	for worker := range definitionParallel {
		group.Go(func() {
			for i := next.Add(1) - 1; i < definitionCount && errs[worker] == nil; i = next.Add(1) - 1 {
				_, _, errs[worker] = s.client.do(ctx, createDefinition(int(i)))
			}
		})
	}
	group.Wait()
	return errors.Join(append(errs, s.awaitServed(ctx))...)
}

// awaitServed returns when discovery contains all definitions. It does not read the definitions themselves, because
// their encodings would stay in the server's cache.
func (s *subject) awaitServed(ctx context.Context) error {
	for {
		var groups discovery.APIGroupDiscoveryList
		if err := s.client.getAs(ctx, "/apis", asDiscovery, &groups); err != nil {
			return err
		}
		served := 0
		for _, group := range groups.Items {
			if strings.HasSuffix(group.Name, definitionDomain) {
				served += len(group.Versions[0].Resources)
			}
		}
		if served == definitionCount {
			return nil
		}
		if err := measure.Pause(ctx, 250*time.Millisecond); err != nil {
			return err
		}
	}
}

// createPolledDefinitions creates definitions one at a time. After each definition, one client polls discovery until it
// has changed. Another client, which has all OpenAPI documents, then reads their index and the documents that have
// changed.
func (s *subject) createPolledDefinitions(ctx context.Context) error {
	p := &poller{client: s.client.compressed()}
	if err := p.poll(ctx); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	profile := s.startProfile(ctx, "profile?seconds=9", "definitions while polled")
	used, err := s.timed(func() error {
		for i := range polledDefinitions {
			if _, _, err := s.client.do(ctx, createDefinition(definitionCount+i)); err != nil {
				return err
			}
			if err := p.poll(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	s.results.Definitions.Polled = used / polledDefinitions
	return errors.Join(err, profile())
}

// poller is a client of aggregated discovery and of OpenAPI version 3.
type poller struct {
	client *client
	tag    string
	urls   map[string]string // URLs of OpenAPI documents, by path
}

func (p *poller) poll(ctx context.Context) error {
	for {
		changed, err := p.pollDiscovery(ctx)
		if err != nil {
			return err
		}
		if changed {
			return p.pollOpenAPI(ctx)
		}
		if err := measure.Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// pollDiscovery reads the discovery document, and reports whether it has changed.
func (p *poller) pollDiscovery(ctx context.Context) (changed bool, err error) {
	c := *p.client
	c.known = p.tag
	response, err := c.send(ctx, request{method: http.MethodGet, path: "/apis", accept: asDiscovery})
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	p.tag = response.Header.Get("ETag")
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode == http.StatusOK, err
}

func (p *poller) pollOpenAPI(ctx context.Context) error {
	var index struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := p.client.get(ctx, "/openapi/v3", &index); err != nil {
		return err
	}
	if p.urls == nil {
		p.urls = map[string]string{}
	}
	for path, document := range index.Paths {
		if p.urls[path] == document.ServerRelativeURL {
			continue
		}
		p.urls[path] = document.ServerRelativeURL
		if _, _, err := p.client.do(
			ctx, request{method: http.MethodGet, path: document.ServerRelativeURL, accept: asJSON},
		); err != nil {
			return err
		}
	}
	return nil
}

// readDocument reads the OpenAPI version 2 document twice.
func (s *subject) readDocument(ctx context.Context, accept string) (DocumentResults, error) {
	read := request{method: http.MethodGet, path: "/openapi/v2", accept: accept}
	var results DocumentResults
	if _, err := s.liveHeap(ctx); err != nil {
		return results, err
	}
	if err := s.settle(ctx); err != nil {
		return results, err
	}
	if err := measure.ResetPeak(s.PIDs); err != nil {
		return results, err
	}
	before, err := measure.Memory(s.PIDs, "VmRSS")
	if err != nil {
		return results, err
	}
	profile := s.startProfile(ctx, "profile?seconds=2", "openapi v2 "+accept)
	results.CPU, err = s.timed(func() (err error) {
		_, results.Size, err = s.client.do(ctx, read)
		return err
	})
	if err := errors.Join(err, profile()); err != nil {
		return results, err
	}
	peak, err := measure.Memory(s.PIDs, "VmHWM")
	if err != nil {
		return results, err
	}
	results.Memory = peak - before
	results.Again, err = s.timed(func() error {
		_, _, err := s.client.do(ctx, read)
		return err
	})
	return results, err
}

// liveHeap returns the bytes on the API server's heap after garbage collection.
func (s *subject) liveHeap(ctx context.Context) (int64, error) {
	const collections = 3 // the first collections release pools and objects with finalizers
	var live int64
	for range collections {
		response, err := s.client.send(ctx, request{
			method: http.MethodGet, path: "/debug/pprof/heap?gc=1&debug=1", accept: "*/*",
		})
		if err != nil {
			return 0, err
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return 0, err
		}
		if live, err = parseHeap(string(text)); err != nil {
			return 0, err
		}
	}
	return live, nil
}

// parseHeap returns the value in the line "# HeapAlloc = 123" of a heap profile.
func parseHeap(profile string) (int64, error) {
	for line := range strings.Lines(profile) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "# HeapAlloc = "); ok {
			return strconv.ParseInt(value, 10, 64)
		}
	}
	return 0, errors.New("no HeapAlloc in the heap profile")
}

func createDefinition(i int) request {
	return request{http.MethodPost, definitionPath, asJSON, asJSON, samples.JSON(definition40(i))}
}

// definition40 returns a definition with 40 fields in spec, as a generator writes it from Go types.
func definition40(i int) *apiextensions.CustomResourceDefinition {
	group := fmt.Sprintf("group%02d", i%definitionGroups) + definitionDomain
	kind := fmt.Sprintf("Widget%04d", i)
	plural := strings.ToLower(kind) + "s"
	return &apiextensions.CustomResourceDefinition{
		TypeMeta:   meta.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: meta.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensions.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensions.NamespaceScoped,
			Names: apiextensions.CustomResourceDefinitionNames{
				Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "List",
				Categories: []string{"widgets"},
			},
			Versions: []apiextensions.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensions.CustomResourceSubresources{Status: &apiextensions.CustomResourceSubresourceStatus{}},
				Schema:       &apiextensions.CustomResourceValidation{OpenAPIV3Schema: schema40(kind)},
				AdditionalPrinterColumns: []apiextensions.CustomResourceColumnDefinition{
					{Name: "Phase", Type: "string", JSONPath: ".status.phase"},
					{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"},
				},
			}},
		},
	}
}

func schema40(kind string) *apiextensions.JSONSchemaProps {
	str := apiextensions.JSONSchemaProps{Type: "string"}
	spec := map[string]apiextensions.JSONSchemaProps{}
	for i := range definitionFields {
		field := apiextensions.JSONSchemaProps{Type: "string", MaxLength: new(int64)}
		*field.MaxLength = 253
		switch i % 5 {
		case 1:
			field = apiextensions.JSONSchemaProps{Type: "integer", Format: "int32", Minimum: new(float64)}
		case 2:
			field = apiextensions.JSONSchemaProps{
				Type: "array", Items: &apiextensions.JSONSchemaPropsOrArray{Schema: str.DeepCopy()},
			}
		case 3:
			field.Enum = []apiextensions.JSON{{Raw: []byte(`"Always"`)}, {Raw: []byte(`"Never"`)}}
		case 4:
			field = apiextensions.JSONSchemaProps{
				Type: "object", AdditionalProperties: &apiextensions.JSONSchemaPropsOrBool{Allows: true, Schema: str.DeepCopy()},
			}
		}
		name := fmt.Sprintf("field%02d", i)
		field.Description = name + " configures one aspect of the desired behaviour of this " +
			kind + ". It may be left empty."
		spec[name] = field
	}
	return &apiextensions.JSONSchemaProps{
		Type: "object", Description: kind + " is the Schema for the " + strings.ToLower(kind) + "s API.",
		Properties: map[string]apiextensions.JSONSchemaProps{
			"apiVersion": str, "kind": str, "metadata": {Type: "object"},
			"spec": {
				Type: "object", Description: kind + "Spec defines the desired state of " + kind + ".",
				Properties: spec, Required: []string{"field00", "field01"},
			},
			"status": {Type: "object", Properties: map[string]apiextensions.JSONSchemaProps{"phase": str}},
		},
	}
}
