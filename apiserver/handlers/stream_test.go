package handlers_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/handlers"
)

// events are the events of a watch.
type events struct {
	t      *testing.T
	body   io.ReadCloser
	header http.Header
	next   func() (string, error)
}

// watch opens a watch, which must respond with 200. It ends with the test or with the stop method.
func (s *server) watch(t *testing.T, url, accepts string) *events {
	t.Helper()
	response, err := s.http.Client().Do(s.request(t, t.Context(), exchange{request: "GET " + url, accepts: accepts}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("%s: got status code %d: %s", url, response.StatusCode, body)
	}
	decoder := json.NewDecoder(response.Body)
	return &events{t: t, body: response.Body, header: response.Header, next: func() (string, error) {
		var event json.RawMessage
		err := decoder.Decode(&event)
		return string(event), err
	}}
}

// expect reads as many events as there are arguments, which have fields of the events in YAML.
func (e *events) expect(want ...string) {
	e.t.Helper()
	for _, want := range want {
		event, err := e.next()
		if err != nil {
			e.t.Fatalf("got the error %v, want the event %s", err, want)
		}
		if err := contains(parsed(e.t, event), parsed(e.t, want), ""); err != nil {
			e.t.Fatalf("%v in the event %s", err, event)
		}
	}
}

// expectEnd checks that the stream ends without another event.
func (e *events) expectEnd() {
	e.t.Helper()
	if event, err := e.next(); !errors.Is(err, io.EOF) {
		e.t.Errorf("got %s, %v, want the end of the stream", event, err)
	}
}

// revision returns the current resource version of the ConfigMaps.
func (s *server) revision(t *testing.T) string {
	t.Helper()
	list := s.do(t, exchange{request: "GET " + configMaps + "?limit=1", code: http.StatusOK})
	return field(t, list, "metadata", "resourceVersion")
}

// label sets the label of a ConfigMap by which some watches select it.
func (s *server) label(t *testing.T, name, value string) {
	t.Helper()
	s.do(t, exchange{
		request: "PATCH " + configMaps + "/" + name, sends: mergePatch, code: http.StatusOK,
		body: fmt.Sprintf(`{"metadata":{"labels":{"name":%q}}}`, value),
	})
}

func (s *server) remove(t *testing.T, name string) {
	t.Helper()
	s.do(t, exchange{request: "DELETE " + configMaps + "/" + name, code: http.StatusOK})
}

// TestWatch follows the same changes by watches with several options.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a", "b")
	start := s.revision(t)
	watches := map[string]struct {
		url, accepts string
		want         []string
	}{
		"initial state, then changes": {configMaps + "?watch=1", "", []string{
			`{type: ADDED, object: {kind: ConfigMap, apiVersion: v1, metadata: {name: a, resourceVersion: "*"},
				data: {key: a}}}`,
			`{type: ADDED, object: {metadata: {name: b}}}`, `{type: ADDED, object: {metadata: {name: c}}}`,
			`{type: MODIFIED, object: {metadata: {name: a, labels: {name: other}}}}`,
			`{type: DELETED, object: {metadata: {name: b}, data: {key: b}}}`,
		}},
		"changes since a revision": {configMaps + "?watch=true&resourceVersion=" + start, "", []string{
			`{type: ADDED, object: {metadata: {name: c}}}`, `{type: MODIFIED, object: {metadata: {name: a}}}`,
			`{type: DELETED, object: {metadata: {name: b}}}`,
		}},
		"media type of streams": {
			configMaps + "?watch=1&resourceVersion=" + start, jsonType + ";stream=watch", []string{
				`{type: ADDED, object: {kind: ConfigMap, metadata: {name: c}}}`, `{type: MODIFIED}`, `{type: DELETED}`,
			},
		},
		"path with the verb": {"/api/v1/watch/namespaces/a/configmaps?resourceVersion=" + start, "", []string{
			`{type: ADDED, object: {metadata: {name: c}}}`, `{type: MODIFIED}`, `{type: DELETED}`,
		}},
		"object that leaves the selection is deleted": {
			configMaps + "?watch=1&labelSelector=name%3Da&resourceVersion=" + start, "",
			[]string{`{type: DELETED, object: {metadata: {name: a, labels: {name: a}}}}`},
		},
		"object that enters the selection is added": {
			configMaps + "?watch=1&labelSelector=name%3Dother&resourceVersion=" + start, "",
			[]string{`{type: ADDED, object: {metadata: {name: a}}}`},
		},
		"one object": {
			configMaps + "?watch=1&fieldSelector=metadata.name%3Db", "", []string{
				`{type: ADDED, object: {metadata: {name: b}}}`, `{type: DELETED, object: {metadata: {name: b}}}`,
			},
		},
		"path of one object": {
			"/api/v1/watch/namespaces/a/configmaps/b?resourceVersion=" + start, "",
			[]string{`{type: DELETED, object: {metadata: {name: b}}}`},
		},
		"metadata": {
			configMaps + "?watch=1&resourceVersion=" + start, jsonType + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
			[]string{
				`{type: ADDED, object: {kind: PartialObjectMetadata, apiVersion: meta.k8s.io/v1, metadata: {name: c}, data: null}}`,
				`{type: MODIFIED, object: {metadata: {name: a}}}`, `{type: DELETED}`,
			},
		},
		"tables, of which only the first has columns": {
			configMaps + "?watch=1", tableType, []string{
				`{type: ADDED, object: {kind: Table, columnDefinitions: [{name: Name}, {name: Data}, {name: Age}],
					rows: [{cells: [a, 1, "*"], object: {kind: PartialObjectMetadata, metadata: {name: a}}}]}}`,
				`{type: ADDED, object: {kind: Table, columnDefinitions: null, rows: [{cells: [b, 1, "*"]}]}}`,
				`{type: ADDED, object: {rows: [{cells: [c, 1, "*"]}]}}`,
				`{type: MODIFIED, object: {rows: [{cells: [a, 1, "*"]}]}}`, `{type: DELETED, object: {rows: [{}]}}`,
			},
		},
	}
	opened := map[string]*events{}
	for name, w := range watches {
		opened[name] = s.watch(t, w.url, w.accepts)
	}
	s.create(t, "c")
	s.label(t, "a", "other")
	s.remove(t, "b")
	for name, w := range watches {
		t.Run(name, func(t *testing.T) {
			e := opened[name]
			e.t = t
			e.expect(w.want...)
			if got := e.header.Get("Content-Type"); got != jsonType {
				t.Errorf("got the media type %q", got)
			}
		})
	}
}

// TestWatchLists opens watches that begin with the state of the collection, as the client-go feature WatchListClient
// does. A bookmark with an annotation ends the state.
func TestWatchLists(t *testing.T) {
	t.Parallel()
	registerer := prometheus.NewRegistry()
	s := newServer(t, func(o *handlers.Options) { o.Metrics = handlers.NewMetrics(registerer) })
	s.create(t, "a", "b")
	const query = "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	const end = `metadata: {resourceVersion: "*", name: null, annotations: {k8s.io/initial-events-end: "true"}}`
	for accepts, want := range map[string][]string{
		jsonType: {
			`{type: ADDED, object: {metadata: {name: a}}}`, `{type: ADDED, object: {metadata: {name: b}}}`,
			`{type: BOOKMARK, object: {kind: ConfigMap, apiVersion: v1, ` + end + `}}`,
		},
		jsonType + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io": {
			`{type: ADDED}`, `{type: ADDED}`, `{type: BOOKMARK, object: {kind: PartialObjectMetadata, ` + end + `}}`,
		},
		tableType: {
			`{type: ADDED}`, `{type: ADDED}`,
			`{type: BOOKMARK, object: {kind: Table, rows: [{object: {kind: PartialObjectMetadata, ` + end + `}}]}}`,
		},
	} {
		e := s.watch(t, configMaps+query, accepts)
		e.expect(want...)
		e.body.Close()
	}
	e := s.watch(t, gadgetsInA+query, "")
	e.expect(`{type: BOOKMARK, object: {kind: Gadget, apiVersion: example.com/v1, ` + end + `}}`)
	e.body.Close()
	s.http.Close() // waits until the handlers have returned, after which everything is measured
	for name, want := range map[string][]string{
		"apiserver_watch_list_duration_seconds": {
			"group= resource=configmaps scope=namespace version=v1: 3",
			"group=example.com resource=gadgets scope=namespace version=v1: 1",
		},
		"apiserver_watch_events_sizes": {
			"group= resource=configmaps version=v1: 9", "group=example.com resource=gadgets version=v1: 1",
		},
	} {
		if got := samples(t, registerer, name); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

// samples returns the labels and the number of samples of each metric of a histogram.
func samples(t *testing.T, registry *prometheus.Registry, name string) (found []string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			slices.Sort(labels)
			found = append(found, fmt.Sprintf("%s: %d", strings.Join(labels, " "), metric.GetHistogram().GetSampleCount()))
		}
	}
	slices.Sort(found)
	return found
}

// TestWatchErrors opens watches that cannot be served. An error after which clients list again is an event of a
// response with status code 200; all other errors are the response.
func TestWatchErrors(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a", "b")
	if _, err := s.Etcd.Compact(t.Context(), s.Server.Revision(t)); err != nil {
		t.Fatal(err)
	}
	s.run(t, []exchange{
		{
			name: "initial events without bookmarks", request: "GET " + configMaps + "?watch=1&sendInitialEvents=true",
			code: http.StatusUnprocessableEntity,
			want: `{details: {kind: ListOptions, causes: [{field: resourceVersionMatch}]}}`,
		},
		{
			name:    "revision that is no number, which kube-apiserver's Cacher reports without a status code",
			request: "GET " + configMaps + "?watch=1&resourceVersion=x", code: http.StatusInternalServerError,
			want: `{message: '~resourceVersion: Invalid value: "x"'}`,
		},
		{
			name: "invalid selector", request: "GET " + configMaps + "?watch=1&labelSelector=%3D",
			code: http.StatusBadRequest,
		},
		{
			name: "name in the path and in the selector", code: http.StatusBadRequest,
			request: "GET /api/v1/watch/namespaces/a/configmaps/x?fieldSelector=metadata.name%3Dy",
			want:    `{message: "~fieldSelector metadata.name doesn't match requested name"}`,
		},
		{
			name: "YAML", request: "GET " + configMaps + "?watch=1", accepts: yamlType, code: http.StatusNotAcceptable,
			want: `{message: "~application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"}`,
		},
		{
			name: "table with an invalid option", request: "GET " + configMaps + "?watch=1&includeObject=x",
			accepts: tableType, code: http.StatusBadRequest, want: `{message: "~Unable to convert to Table as requested"}`,
		},
	})
	for name, c := range map[string]struct{ query, accepts, want string }{
		"revision that was compacted": {
			"?watch=1&resourceVersion=1", "",
			`{type: ERROR, object: {kind: Status, code: 410, reason: Expired, message: "~too old resource version"}}`,
		},
		"expired, as a table": {
			"?watch=1&resourceVersion=1", tableType, `{type: ERROR, object: {kind: Status, code: 410, reason: Expired}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := s.watch(t, configMaps+c.query, c.accepts)
			e.t = t
			e.expect(c.want)
			e.expectEnd()
		})
	}
	t.Run("list of metadata for events", func(t *testing.T) {
		e := s.watch(t, configMaps+"?watch=1", jsonType+";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")
		e.expectEnd() // at the first event
	})
}

// TestTimeouts sends requests whose complete responses take about three seconds, all at the same time. Each response
// has one JSON object.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a")
	const future = "resourceVersion=1000000"
	exchanges := []exchange{
		{
			name: "object of a revision in the future", request: "GET " + configMaps + "/a?" + future,
			code: http.StatusGatewayTimeout,
			want: `{kind: Status, reason: Timeout, message: "~Too large resource version: 1000000",
				details: {retryAfterSeconds: 1}}`,
			header: map[string]string{"Retry-After": "1"},
		},
		{
			name: "initial events of a revision in the future", code: http.StatusOK,
			request: "GET " + configMaps + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&" + future,
			want: `{type: ERROR, object: {kind: Status, apiVersion: v1, status: Failure, code: 504, reason: Timeout,
				message: "~Too large resource version: 1000000"}}`,
		},
		{
			name: "watch with a timeout", request: "GET " + configMaps + "?watch=1&timeoutSeconds=8", code: http.StatusOK,
			want: `{type: ADDED, object: {metadata: {name: a}}}`,
		},
	}
	responses, failures := make([]received, len(exchanges)), make([]error, len(exchanges))
	var running sync.WaitGroup
	for i, e := range exchanges {
		r := s.request(t, t.Context(), e)
		running.Go(func() { responses[i], failures[i] = s.send(r) })
	}
	running.Wait()
	for i, e := range exchanges {
		t.Run(e.name, func(t *testing.T) {
			if failures[i] != nil {
				t.Fatal(failures[i])
			}
			s.check(t, e, responses[i])
		})
	}
}

// TestBookmarks uses a clock that is one minute behind, so that a bookmark is due immediately.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(o *handlers.Options) { o.Clock = clocktesting.NewFakeClock(time.Now().Add(-time.Minute)) })
	s.create(t, "a")
	start := s.revision(t)
	e := s.watch(t, configMaps+"?watch=1&allowWatchBookmarks=true&resourceVersion="+start, "")
	e.expect(`{type: BOOKMARK, object: {kind: ConfigMap,
		metadata: {resourceVersion: "` + start + `", annotations: null}}}`)
	e.body.Close()
}

// TestWatchInProtobuf reads the frames of a watch, which have their length before them.
func TestWatchInProtobuf(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a")
	e := s.watch(t, configMaps+"?watch=1", protobufType)
	if got := e.header.Get("Content-Type"); got != protobufType+";stream=watch" {
		t.Errorf("got the media type %q", got)
	}
	e.next = func() (string, error) {
		var length uint32
		if err := binary.Read(e.body, binary.BigEndian, &length); err != nil {
			return "", err
		}
		frame := make([]byte, length)
		if _, err := io.ReadFull(e.body, frame); err != nil {
			return "", err
		}
		return protobufEvent(t, frame), nil
	}
	e.expect(`{type: ADDED, object: {metadata: {name: a}, data: {key: a}}}`)
	s.remove(t, "a")
	e.expect(`{type: DELETED, object: {metadata: {name: a}}}`)
}

// protobufEvent returns an event in protobuf as JSON.
func protobufEvent(t *testing.T, frame []byte) string {
	t.Helper()
	event := &metav1.WatchEvent{}
	if err := event.Unmarshal(frame); err != nil {
		t.Fatal(err)
	}
	object := decodedProtobuf(t, event.Object.Raw)
	text, err := json.Marshal(map[string]any{"type": event.Type, "object": object})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestWatchOverWebSockets reads the events of watches as messages, which have no length before them.
func TestWatchOverWebSockets(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a")
	for accepts, text := range map[string]func(*testing.T, []byte) string{
		jsonType:     func(_ *testing.T, message []byte) string { return string(message) },
		protobufType: protobufEvent,
	} {
		t.Run(accepts, func(t *testing.T) {
			s.create(t, "b")
			location := strings.Replace(s.http.URL, "http", "ws", 1) + configMaps
			config, err := websocket.NewConfig(location+"?watch=1", s.http.URL)
			if err != nil {
				t.Fatal(err)
			}
			config.Header.Set("Accept", accepts)
			socket, err := config.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer socket.Close()
			if err := socket.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			e := &events{t: t, next: func() (string, error) {
				var message []byte
				if err := websocket.Message.Receive(socket, &message); err != nil {
					return "", err
				}
				return text(t, message), nil
			}}
			e.expect(`{type: ADDED, object: {metadata: {name: a}}}`, `{type: ADDED, object: {metadata: {name: b}}}`)
			s.remove(t, "b")
			e.expect(`{type: DELETED, object: {metadata: {name: b}}}`)
		})
	}
}
