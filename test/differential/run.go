package differential

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
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
)

// Answer is what a server said in one case.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
	Events [][]byte // of a stream, each a JSON object
}

// run is a script in progress on one server.
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
	for _, needed := range []Case{
		{Path: "/api/v1/namespaces", Body: `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"${ns}"}}`},
		{Path: "/api/v1/namespaces/${ns}/serviceaccounts", Body: `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"default"}}`},
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

// answer performs one case, again and again where it waits for something.
func (r *run) answer(ctx context.Context, c *Case) (*Answer, error) {
	switch c.Method {
	case "EVENTS", "REST":
		return r.events(c)
	}
	wanted, waits := c.directive("until")
	deadline := time.Now().Add(answerTimeout)
	for {
		answer, err := r.exchange(ctx, c)
		if err != nil {
			return nil, err
		}
		if !waits || bytes.Contains(answer.Body, []byte(r.expand(wanted))) {
			return answer, r.capture(c, answer)
		}
		if time.Now().After(deadline) {
			return answer, nil // the comparison shows what is missing
		}
		time.Sleep(untilInterval)
	}
}

// events takes events from an open stream. One that the server refused to open has none.
func (r *run) events(c *Case) (*Answer, error) {
	name, wanted, _ := strings.Cut(c.Path, " ")
	s, ok := r.streams[name]
	if !ok {
		return &Answer{}, nil
	}
	enough := func([][]byte) bool { return false } // REST
	if c.Method == "EVENTS" {
		enough = upTo(wanted)
	}
	answer := &Answer{Events: s.take(enough)}
	if c.Method == "EVENTS" {
		answer.Events = slices.DeleteFunc(answer.Events, fromTimer)
	}
	return answer, r.capture(c, answer)
}

// fromTimer reports whether an event is a bookmark that is sent now and then.
func fromTimer(event []byte) bool {
	return bytes.Contains(event, []byte(`"type":"BOOKMARK"`)) && !bytes.Contains(event, []byte("k8s.io/initial-events-end"))
}

// upTo is true for as many events as wanted says, those from a timer not counted, or if the last one contains it.
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
		answer.Events = slices.DeleteFunc(s.take(upTo(wanted)), fromTimer)
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
	body := []byte(r.expand(c.Body))
	mediaType := "application/json"
	if _, ok := c.directive("protobuf"); ok {
		var err error
		if body, err = protobufBody(body); err != nil {
			return nil, err
		}
		mediaType = protobufType
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

var variable = regexp.MustCompile(`\$\{[^}]*\}`)

// expand replaces variables. An unknown one stays, so that the servers show what is wrong.
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

// filling makes text that nobody wants to read in a script.
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
	case "bytes":
		raw, err := hex.DecodeString(argument)
		return string(raw), err == nil
	}
	return "", false
}

// manyKeys is an object of long keys, which weigh as much again in managed fields.
func manyKeys(count int) string {
	var b strings.Builder
	for i := range count {
		fmt.Fprintf(&b, `"%0100d":"",`, i)
	}
	return "{" + strings.TrimSuffix(b.String(), ",") + "}"
}

// capture keeps fields of the answer for later cases.
func (r *run) capture(c *Case, answer *Answer) error {
	for _, d := range c.Directives {
		if d.Name != "capture" {
			continue
		}
		name, path, _ := strings.Cut(d.Arguments, " ")
		body := answer.Body
		if len(answer.Events) > 0 {
			body = answer.Events[len(answer.Events)-1]
		}
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			continue // the comparison shows what came instead
		}
		r.variables[name] = fmt.Sprint(lookup(value, strings.Split(path, ".")))
	}
	return nil
}

// lookup follows a path of field names and list indexes; nil where it leads nowhere.
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
