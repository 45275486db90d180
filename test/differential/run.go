package differential

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	answerTimeout = 20 * time.Second
	untilInterval = 20 * time.Millisecond

	// untilTimeout bounds the repetitions of a case. kube-apiserver tries to delete the custom resources of a definition
	// again with a delay that doubles, and had not succeeded after a minute on a busy machine.
	untilTimeout = 3 * time.Minute
)

// Answer is the response of a server in one case.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
	Events [][]byte // events of a stream, each a JSON object

	At        time.Time  // time at which the response was complete
	Reference *Reference // revision with which the revisions in the response are compared
	Failures  []string   // waits that have timed out and captures that have found nothing
}

func (a *Answer) failed(format string, arguments ...any) {
	a.Failures = append(a.Failures, fmt.Sprintf(format, arguments...))
}

// contains reports whether the body or a warning of the response contains a text.
func (a *Answer) contains(text string) bool {
	return bytes.Contains(a.Body, []byte(text)) || strings.Contains(strings.Join(a.Header["Warning"], "\n"), text)
}

// run is a script that is being executed on one server.
type run struct {
	server    *Server
	variables map[string]string
	streams   map[string]*stream
}

// Run executes a script on a server.
func Run(ctx context.Context, server *Server, script *Script) ([]Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{server: server, variables: map[string]string{"ns": script.namespace()}, streams: map[string]*stream{}}
	defer r.closeStreams()
	maps.Copy(r.variables, server.Variables)
	if server.Webhooks != nil {
		maps.Copy(r.variables, server.Webhooks.variables())
	}
	if server.Extensions != nil {
		maps.Copy(r.variables, server.Extensions.variables())
	}
	for _, needed := range []Case{
		{Path: "/api/v1/namespaces", Body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"${ns}"}}`},
		{
			Path: "/api/v1/namespaces/${ns}/serviceaccounts",
			Body: `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`,
		},
	} {
		needed.Method, needed.Header = http.MethodPost, map[string]string{}
		if _, err := r.exchange(ctx, &needed); err != nil {
			return nil, err
		}
	}
	answers := make([]Answer, 0, len(script.Cases))
	for i := range script.Cases {
		answer, err := r.answer(ctx, &script.Cases[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %s, case %q: %w", server.Name, script.Name, script.Cases[i].Name, err)
		}
		answers = append(answers, *answer)
	}
	return answers, nil
}

func (r *run) closeStreams() {
	for _, s := range r.streams {
		s.close()
	}
}

// answer executes one case.
func (r *run) answer(ctx context.Context, c *Case) (answer *Answer, err error) {
	switch c.Method {
	case "EVENTS", "REST":
		answer = r.events(c)
	case "REVIEWS":
		answer = &Answer{Events: r.server.Reviews.take()}
	case "CALLS":
		answer = &Answer{Events: r.server.Webhooks.take()}
	case "KUBECTL":
		answer, err = r.kubectl(ctx, c)
	case "AUDIT":
		answer = r.audit(ctx, c)
	case "CONVERSIONS":
		answer = &Answer{Events: r.server.Webhooks.takeConversions()}
	case "UPGRADE":
		answer, err = r.upgrade(ctx, c)
	case "STORE":
		answer, err = &Answer{}, r.store(ctx, c)
	default:
		if err := r.freshen(ctx, c); err != nil {
			return nil, err
		}
		answer, err = r.until(ctx, c)
	}
	if err != nil {
		return nil, err
	}
	pick(c, answer)
	answer.At = time.Now()
	r.refer(c, answer)
	r.capture(c, answer)
	return answer, nil
}

// freshen waits, with a consistent list, until the server's cache of Services is current. kube-apiserver bases an
// update on the cached Service. If that is stale, it allocates addresses twice and may reject the second allocation.
func (r *run) freshen(ctx context.Context, c *Case) error {
	if !strings.Contains(c.Path, "/services/") || !slices.Contains([]string{"PUT", "PATCH", "DELETE"}, c.Method) {
		return nil
	}
	_, err := r.exchange(ctx, &Case{
		Method: http.MethodGet, Path: "/api/v1/namespaces/${ns}/services?labelSelector=freshen", Header: map[string]string{},
	})
	return err
}

// pick replaces the body by the values of the JSON pointers in @pick.
func pick(c *Case, answer *Answer) {
	pointers, ok := c.directive("pick")
	if !ok {
		return
	}
	var whole any
	if err := json.Unmarshal(answer.Body, &whole); err != nil {
		answer.failed("the answer is no JSON: %v", err)
		return
	}
	picked := map[string]any{}
	for _, pointer := range strings.Fields(pointers) {
		path := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
		for i := range path {
			path[i] = strings.ReplaceAll(path[i], "~1", "/")
		}
		picked[pointer] = lookup(whole, path)
	}
	body, err := json.Marshal(picked)
	if err != nil {
		answer.failed("cannot encode what @pick found: %v", err)
		return
	}
	answer.Body = body
}

// store writes the body of the case to a key in etcd, as a former release may have stored it.
func (r *run) store(ctx context.Context, c *Case) error {
	body, _, err := r.body(c)
	if err != nil {
		return err
	}
	return r.server.Etcd.Put(ctx, r.expand(c.Path), body)
}

// until repeats a request until the response contains the text of @until. It ignores errors of exchanges with
// kube-apiserver, which aborts the response if the time limit of a request is reached while the error of the extension
// API server is being written.
func (r *run) until(ctx context.Context, c *Case) (*Answer, error) {
	wanted, waits := c.directive("until")
	wanted = r.expand(wanted)
	deadline := time.Now().Add(untilTimeout)
	for {
		answer, err := r.exchange(ctx, c)
		late := time.Now().After(deadline)
		switch {
		case err != nil && waits && r.server.Name == upstreamName && !late:
		case err != nil, !waits, answer.contains(wanted):
			return answer, err
		case late:
			answer.failed("no answer contained %q", wanted)
			return answer, nil
		}
		time.Sleep(untilInterval)
	}
}

// events takes events from an open stream.
func (r *run) events(c *Case) *Answer {
	name, wanted, _ := strings.Cut(c.Path, " ")
	answer := &Answer{}
	s, ok := r.streams[name]
	_, mayBeRefused := c.directive("refused")
	switch {
	case !ok && mayBeRefused:
	case !ok:
		answer.failed("the stream was refused")
	case c.Method == "REST":
		var err error
		if answer.Events, err = s.take(func([][]byte) bool { return false }); !errors.Is(err, errEnded) {
			answer.failed("the stream did not end")
		}
	default:
		answer.take(s, wanted)
	}
	return answer
}

// take reads the required number of events from a stream. It drops events that a timer has caused.
func (a *Answer) take(s *stream, wanted string) {
	events, err := s.take(upTo(wanted))
	if err != nil {
		a.failed("waiting for events %s: %v", wanted, err)
	}
	a.Events = slices.DeleteFunc(events, fromTimer)
}

// fromTimer reports whether an event is a periodic bookmark.
func fromTimer(event []byte) bool {
	return bytes.Contains(event, []byte(`"type":"BOOKMARK"`)) &&
		!bytes.Contains(event, []byte("k8s.io/initial-events-end"))
}

// upTo reports whether events contains the required number of events, or ends with an event that contains the wanted
// text. Periodic bookmarks do not count.
func upTo(wanted string) func([][]byte) bool {
	if count, err := strconv.Atoi(wanted); err == nil {
		return func(events [][]byte) bool {
			return len(slices.DeleteFunc(slices.Clone(events), fromTimer)) == count
		}
	}
	return func(events [][]byte) bool {
		return len(events) > 0 && bytes.Contains(events[len(events)-1], []byte(wanted))
	}
}

// exchange sends the request once.
func (r *run) exchange(ctx context.Context, c *Case) (*Answer, error) {
	request, err := r.request(ctx, c)
	if err != nil {
		return nil, err
	}
	name, stays := c.directive("open")
	if !stays {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		request = request.WithContext(ctx)
	}
	response, err := r.client(c).Do(request)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Code: response.StatusCode, Header: response.Header}
	if stays && response.StatusCode == http.StatusOK {
		r.streams[name] = newStream(response)
		return answer, nil
	}
	defer response.Body.Close()
	if wanted, ok := c.directive("events"); ok && response.StatusCode == http.StatusOK {
		s := newStream(response)
		defer s.close()
		answer.take(s, wanted)
		return answer, nil
	}
	answer.Body, err = io.ReadAll(response.Body)
	return answer, err
}

func (r *run) client(c *Case) *http.Client {
	if _, ok := c.directive("user"); ok {
		return r.server.plain
	}
	return r.server.admin
}

func (r *run) request(ctx context.Context, c *Case) (*http.Request, error) {
	body, mediaType, err := r.body(c)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, c.Method, r.server.Origin+r.expand(c.Path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "differential/1")
	request.Header.Set("Accept", "application/json")
	if len(body) > 0 {
		request.Header.Set("Content-Type", mediaType)
	}
	if token, ok := c.directive("user"); ok && token != "none" {
		request.Header.Set("Authorization", "Bearer "+r.expand(token))
	}
	for name, value := range c.Header {
		if value == "" {
			request.Header.Del(name)
			continue
		}
		request.Header.Set(name, r.expand(value))
	}
	return request, nil
}

// body returns the body of a case and its media type.
func (r *run) body(c *Case) ([]byte, string, error) {
	body := []byte(r.expand(c.Body))
	if _, ok := c.directive("protobuf"); ok {
		body, err := protobufBody(body)
		return body, protobufType, err
	}
	if _, ok := c.directive("cbor"); ok {
		body, err := cborBody(body)
		return body, cborType, err
	}
	return body, "application/json", nil
}

var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// expand replaces variables. Unknown variables are kept, so that the servers reject them.
func (r *run) expand(text string) string {
	return variable.ReplaceAllStringFunc(text, func(reference string) string {
		name := reference[2 : len(reference)-1]
		if text, ok := filling(name); ok {
			return text
		}
		if value, ok := r.variables[name]; ok {
			return value
		}
		return reference
	})
}

// filling generates texts that are too long for a script.
func filling(name string) (string, bool) {
	kind, argument, _ := strings.Cut(name, ":")
	count, _ := strconv.Atoi(argument)
	switch kind {
	case "fill":
		return strings.Repeat("x", count), true
	case "nested":
		return strings.Repeat("[", count) + strings.Repeat("]", count), true
	case "operations":
		const operation = `{"op":"test","path":"/kind","value":"ConfigMap"}`
		return "[" + strings.Repeat(operation+",", max(count-1, 0)) + operation + "]", true
	case "keys":
		return manyKeys(count), true
	case "requirements":
		return manyTerms(count, "!x%d"), true
	case "values":
		return manyTerms(count, "x%d"), true
	case "names":
		return manyTerms(count, "metadata.name!=x%d"), true
	case "bytes":
		raw, err := hex.DecodeString(argument)
		return string(raw), err == nil
	}
	return "", false
}

// manyTerms returns the terms of a selector.
func manyTerms(count int, term string) string {
	terms := make([]string, count)
	for i := range terms {
		terms[i] = fmt.Sprintf(term, i)
	}
	return strings.Join(terms, ",")
}

// manyKeys returns an object with long keys, which managed fields repeat.
func manyKeys(count int) string {
	var b strings.Builder
	for i := range count {
		fmt.Fprintf(&b, `"%0100d":"",`, i)
	}
	return "{" + strings.TrimSuffix(b.String(), ",") + "}"
}

// capture stores fields of the response in variables for later cases.
func (r *run) capture(c *Case, answer *Answer) {
	for _, d := range c.Directives {
		if d.Name != "capture" {
			continue
		}
		name, path, _ := strings.Cut(d.Arguments, " ")
		body := answer.Body
		if len(answer.Events) > 0 {
			body = answer.Events[len(answer.Events)-1]
		}
		value := lookup(parse(body), strings.Split(path, "."))
		if value == nil {
			answer.failed("the answer has no %s", path)
			continue
		}
		r.variables[name] = fmt.Sprint(value)
	}
}

// refer sets the revision with which the revisions of the response are compared.
func (r *run) refer(c *Case, answer *Answer) {
	wanted, ok := c.directive("revision")
	if !ok {
		return
	}
	name, orNewer := strings.CutSuffix(wanted, " or newer")
	revision, err := strconv.ParseInt(r.variables[name], 10, 64)
	if err != nil {
		answer.failed("no revision was captured as %s", name)
		return
	}
	answer.Reference = &Reference{name, revision, orNewer}
}

// lookup returns the value at a path of field names and list indexes, or nil if it does not exist.
func lookup(value any, path []string) any {
	for _, step := range path {
		switch container := value.(type) {
		case map[string]any:
			value = container[step]
		case []any:
			index, err := strconv.Atoi(step)
			if err != nil || index >= len(container) {
				return nil
			}
			value = container[index]
		default:
			return nil
		}
	}
	return value
}
