package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"quorate.dev/test/measure/samples"
)

const (
	objects   = 5000 // number of objects of each kind
	namespace = "benchmark"

	manyObjects   = 50000 // small objects, for selectors
	manyNamespace = "many"

	asJSON     = "application/json"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

	configMaps = "/api/v1/namespaces/" + namespace + "/configmaps"
	pods       = "/api/v1/namespaces/" + namespace + "/pods"
	many       = "/api/v1/namespaces/" + manyNamespace + "/configmaps"
)

// request is an HTTP request.
type request struct {
	method      string
	path        string // path with the query
	accept      string
	contentType string
	body        []byte
}

// work is one row of the table: a sequence of requests of the same kind.
type work struct {
	name     string
	promise  float64 // largest permitted fraction of kube-apiserver's CPU time; 0: none
	token    bool    // the client has an OpenID Connect token instead of a certificate
	base     string  // name of the row that increase refers to
	increase float64 // largest permitted increase of our CPU time over the base; 0: none
	parallel int     // number of concurrent requests
	// watchers is the number of watchers of each request's effect. If it is not 0, the row is the cost of one event for
	// one watcher.
	watchers int
	count    int                 // number of requests; 0: as many as can be sent in measuringTime
	rate     int                 // maximum number of requests per second; 0: no limit
	share    int                 // number of watchers per connection, as in one process; 0: each has its own connection
	request  func(i int) request // returns request i, which begins at 0; must be a pure function
}

// creations returns the works that store the objects which reads return.
func creations() []work {
	return []work{
		{name: "create a configmap", promise: 1.0 / 1.8, parallel: 16, count: objects, request: createConfigMap},
		{name: "create a pod", promise: 1.0 / 1.7, parallel: 16, count: objects, request: createPod},
	}
}

// reads returns the works that read objects. Sending the response is most of the cost of a long list, for
// kube-apiserver too, so that the fractions that can be promised depend on how much CPU time the machine needs to
// send bytes.
func reads() []work {
	return []work{
		{name: "LIST 5,000 pods, JSON", promise: 1.0 / 5, parallel: 1, request: read(pods, asJSON)},
		{name: "LIST 5,000 pods, protobuf", promise: 1.0 / 3, parallel: 1, request: read(pods, asProtobuf)},
		{name: "LIST limit=500, JSON", promise: 1.0 / 5, parallel: 1, request: read(pods+"?limit=500", asJSON)},
		{
			name: "LIST with a label selector matching 1 %", promise: 1.0 / 5, parallel: 1,
			request: read(pods+"?labelSelector=shard%3D7", asJSON),
		},
		{
			name: "LIST by node, 2 %", promise: 1.0 / 2.5, parallel: 1,
			request: read(pods+"?fieldSelector=spec.nodeName%3Dnode-07", asJSON),
		},
		{name: "LIST 5,000 pods, Table", promise: 1.0 / 3, parallel: 1, request: read(pods, asTable)},
		{name: "LIST 5,000 pods, JSON, four at once", promise: 1.0 / 5, parallel: 4, request: read(pods, asJSON)},
		{name: "LIST 5,000 pods, metadata only", promise: 1.0 / 3, parallel: 1, request: read(pods, asMetadata)},
		{name: "GET a pod", promise: 1.0 / 4, parallel: 16, request: getPod},
		{name: "GET a pod, OpenID token", promise: 1.0 / 4, parallel: 16, token: true, request: getPod},
		{name: "GET a configmap", promise: 1.0 / 4, parallel: 16, request: read(configMaps+"/"+configMapName(0), asJSON)},
	}
}

func writes() []work {
	return []work{
		{name: "merge patch of a configmap", promise: 1.0 / 1.5, parallel: 16, request: mergePatch},
		{name: "server-side apply of a configmap", promise: 1.0 / 1.5, parallel: 16, request: apply},
	}
}

// watches returns the works that deliver events of updates at growing rates: to watchers with separate connections,
// like kubelets, and to watchers that share a connection, like the controllers of one process.
func watches() []work {
	const watchers = 50
	all := []work{
		{name: "10 updates per second", rate: 10, count: 60},
		{name: "100 updates per second", rate: 100, count: 300},
		{name: "500 updates per second", rate: 500, count: 1500},
		{name: "16 updates at a time", parallel: 16, count: 3000},
	}
	all = append(all, all...)
	for i := range all {
		w := &all[i]
		w.watchers, w.request = watchers, from(2*i*objects, updateConfigMap)
		if i < len(all)/2 {
			w.name = "watch event to one of 50 connections, " + w.name
		} else {
			w.share, w.name = watchers, "watch event to one of 50 watches on one connection, "+w.name
		}
		if w.rate > 0 {
			w.parallel = 4
		}
	}
	return append(all,
		work{name: "watch event to one of 1,000 watches on 20 connections", parallel: 1, count: 100,
			watchers: 1000, share: 50, request: from(2*len(all)*objects, updateConfigMap)})
}

// watchMean returns the row with the mean of all rows of watches. A promise for each of these rows would be unreliable,
// because each is a small difference between two large costs and varies between runs.
func watchMean() work {
	return work{name: "watch event, mean of all rows of watches", promise: 1.1, parallel: 1}
}

// addWatchMean adds the row of watchMean if all rows of watches were measured.
func (r *Results) addWatchMean() {
	var rows []Measurement
	for _, w := range watches() {
		m, ok := r.measurement(w.name)
		if !ok {
			return
		}
		rows = append(rows, m)
	}
	r.Work[watchMean().name] = meanOf(rows)
}

// meanOf returns the mean of rows. If all have the same number of rounds, each round is the mean of the rows in that
// round, and the CPU time is the median of the rounds.
func meanOf(rows []Measurement) (mean Measurement) {
	n := time.Duration(len(rows))
	rounds := len(rows[0].Rounds)
	for _, m := range rows {
		mean.Requests += m.Requests
		mean.CPU += m.CPU
		mean.P50 += m.P50
		mean.P99 += m.P99
		if len(m.Rounds) != rounds {
			rounds = 0
		}
	}
	mean.CPU, mean.P50, mean.P99 = mean.CPU/n, mean.P50/n, mean.P99/n
	if rounds == 0 {
		return mean
	}
	mean.Rounds = make([]time.Duration, rounds)
	for i := range rounds {
		for _, m := range rows {
			mean.Rounds[i] += m.Rounds[i]
		}
		mean.Rounds[i] /= n
	}
	mean.CPU = median(mean.Rounds)
	return mean
}

// from returns requests that skip the indexes before first, because an update that changes nothing causes no event.
func from(first int, original func(int) request) func(int) request {
	return func(i int) request { return original(first + i) }
}

func deletions() []work {
	return []work{
		{name: "delete a configmap", promise: 1.0 / 3.5, parallel: 16, count: objects, request: deleteConfigMap},
		{name: "delete a pod", promise: 1.0 / 2.5, parallel: 16, count: objects, request: deletePod},
	}
}

// crowds returns the works that fill a namespace with many small objects. The works of selections select a few of these
// objects.
func crowds() []work {
	return []work{{
		name: "create a small configmap", promise: 1.0 / 1.8, parallel: 16, count: manyObjects, request: createSmall,
	}}
}

func selections() []work {
	return []work{
		{
			name: "LIST 50,000, a label selector matching 1 %", promise: 1.0 / 10, parallel: 1,
			request: read(many+"?labelSelector=shard%3D7", asJSON),
		},
		{
			name: "LIST 50,000, a set selector matching nothing", promise: 1.0 / 10, parallel: 1,
			request: read(many+"?labelSelector=shard+in+(x,y),app", asJSON),
		},
		{
			name: "LIST 50,000, a field selector matching one", promise: 1.0 / 2.5, parallel: 1,
			request: read(many+"?fieldSelector=metadata.name%3Dsmall-07777", asJSON),
		},
	}
}

func createSmall(i int) request {
	return request{
		http.MethodPost, many, asProtobuf, asProtobuf, samples.Protobuf(small(fmt.Sprintf("small-%05d", i), i%shards)),
	}
}

func createConfigMap(i int) request {
	return request{http.MethodPost, configMaps, asJSON, asJSON, samples.JSON(configMap(configMapName(i), 0))}
}

func createPod(i int) request {
	return request{http.MethodPost, pods, asProtobuf, asProtobuf, samples.Protobuf(pod(podName(i), i%shards, i%nodes))}
}

func updateConfigMap(i int) request {
	name := configMapName(i)
	return request{http.MethodPut, configMaps + "/" + name, asJSON, asJSON, samples.JSON(configMap(name, i+1))}
}

func deleteConfigMap(i int) request {
	return request{method: http.MethodDelete, path: configMaps + "/" + configMapName(i), accept: asJSON}
}

// deletePod returns the request with which a kubelet removes a pod whose containers have stopped: a deletion without a
// grace period.
func deletePod(i int) request {
	return request{method: http.MethodDelete, path: pods + "/" + podName(i) + "?gracePeriodSeconds=0", accept: asJSON}
}

func read(path, accept string) func(int) request {
	return func(int) request { return request{method: http.MethodGet, path: path, accept: accept} }
}

func getPod(i int) request {
	return request{method: http.MethodGet, path: pods + "/" + podName(spread(i)), accept: asJSON}
}

func mergePatch(i int) request {
	body := fmt.Appendf(nil, `{"data":{"revision":"patch-%d"}}`, i)
	return request{
		http.MethodPatch, configMaps + "/" + configMapName(spread(i)), asJSON, "application/merge-patch+json", body,
	}
}

func apply(i int) request {
	name := configMapName(spread(i))
	body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"applied":"%d"}}`,
		name, i)
	path := configMaps + "/" + name + "?fieldManager=benchmark"
	return request{http.MethodPatch, path, asJSON, "application/apply-patch+yaml", body}
}

// spread visits all objects in an order that differs from the order of their names, so that successive requests do not
// concern neighbours in storage, and concurrent requests never concern the same object.
func spread(i int) int { return i * 1999 % objects }

func configMapName(i int) string { return fmt.Sprintf("configmap-%05d", i%objects) }

func podName(i int) string { return fmt.Sprintf("checkout-6d4cf56db6-%05d", i%objects) }

// inNamespace returns the request for another namespace. The warm-up must not change objects that are measured.
func (r request) inNamespace(other string) request {
	r.path = strings.Replace(r.path, "/namespaces/"+namespace+"/", "/namespaces/"+other+"/", 1)
	return r
}
