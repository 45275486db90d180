package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/test/measure"
)

// overloadOnly is the value of --work that measures small clients while another client overloads the server. It is not
// part of a complete run.
const overloadOnly = "overload"

const (
	overloadTime   = 30 * time.Second
	overloadBefore = 5 * time.Second  // duration without overload
	overloadRamp   = 3 * time.Second  // duration of overload before it is measured
	overloadLost   = 10 * time.Second // duration after which a request counts as lost
	overloadMemory = 1.5              // largest permitted memory, as a multiple of OverloadResults.Loaded
)

// OverloadResults are the measurements of clients while another client lists everything without pauses.
type OverloadResults struct {
	Groups map[string]GroupResults `json:"groups"`
	Loaded int64                   `json:"loaded"` // resident bytes after everything has been listed once
	Peak   int64                   `json:"peak"`   // largest number of resident bytes under overload
	Flood  floodResults            `json:"flood"`
}

// GroupResults are the measurements of one group of clients.
type GroupResults struct {
	Requests int           `json:"requests"`
	Lost     int           `json:"lost"`   // requests that failed or took longer than overloadLost
	Before   time.Duration `json:"before"` // 99th percentile of the latency without overload
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Error    string        `json:"error,omitempty"` // error of a lost request
}

// group is a number of clients of the same kind. A latency begins when the client was due to send the request.
type group struct {
	name     string
	count    int
	interval time.Duration // time between two requests of a client
	user     func(i int) (name, groups string)
	prepare  func(i int) request // returns the request that creates the object of a client
	request  func(client, i int) request
}

func groups() []group {
	return []group{
		{
			name: "node heartbeats", count: 50, interval: time.Second,
			user:    func(i int) (string, string) { return "system:node:" + nodeName(i), "system:nodes" },
			prepare: func(i int) request { return createLease("kube-node-lease", nodeName(i)) },
			request: func(client, i int) request { return renewLease("kube-node-lease", nodeName(client), i) },
		},
		{
			name: "leader election", count: 2, interval: 500 * time.Millisecond,
			user:    func(i int) (string, string) { return leaderNames[i], "" },
			prepare: func(i int) request { return createLease("kube-system", "elected-"+fmt.Sprint(i)) },
			request: func(client, i int) request { return renewLease("kube-system", "elected-"+fmt.Sprint(client), i) },
		},
		{
			name: "small clients", count: 20, interval: 250 * time.Millisecond,
			user: func(i int) (string, string) { return fmt.Sprintf("small-%d", i), "" },
			request: func(client, i int) request {
				switch i % 4 {
				case 0:
					return updateConfigMap(client*objects/20 + i%100)
				case 1:
					return read(pods+"?limit=20", asProtobuf)(i)
				}
				return getPod(client*97 + i)
			},
		},
	}
}

var leaderNames = []string{"system:kube-controller-manager", "system:kube-scheduler"}

func nodeName(i int) string { return fmt.Sprintf("overload-%d", i) }

func leases(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

func createLease(namespace, name string) request {
	return request{http.MethodPost, leases(namespace), asJSON, asJSON, lease(name)}
}

func renewLease(namespace, name string, i int) request {
	body := fmt.Appendf(nil, `{"spec":{"leaseTransitions":%d}}`, i+1)
	return request{http.MethodPatch, leases(namespace) + "/" + name, asJSON, "application/merge-patch+json", body}
}

func lease(name string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q},
		"spec":{"holderIdentity":"a","leaseDurationSeconds":40}}`, name)
}

const floodUser = "flood"

// overloadFlags writes a file with the tokens of all clients, and returns the flag for both servers. The token of a
// client is its name.
func overloadFlags(directory string) ([]string, error) {
	var tokens strings.Builder
	add := func(name, groups string) {
		if groups != "" {
			groups += ","
		}
		fmt.Fprintf(&tokens, "%s,%s,%s,\"%soverload\"\n", tokenOf(name), name, name, groups)
	}
	for _, g := range groups() {
		for i := range g.count {
			add(g.user(i))
		}
	}
	add(floodUser, "")
	file := filepath.Join(directory, "tokens.csv")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	return []string{"--token-auth-file=" + file}, os.WriteFile(file, []byte(tokens.String()), 0o600)
}

func tokenOf(name string) string { return "token-of-" + strings.ReplaceAll(name, ":", "-") }

// overloadSteps returns the steps that measure overload. They need new servers with overloadFlags.
func overloadSteps(p plan) []step {
	steps := []step{
		func(ctx context.Context, s *subject) error { return s.settle(ctx) },
		func(ctx context.Context, s *subject) error { return s.warmUp(ctx) },
	}
	steps = append(steps, p.measuring(creations())...)
	return append(steps, func(ctx context.Context, s *subject) error {
		err := s.overload(ctx)
		clear(s.results.Work) // the rows of creations were measured under other conditions
		if err == nil {
			s.results.Overload.log(s.Name, p.progress)
		}
		return err
	})
}

func (o *OverloadResults) log(name string, progress func(string, ...any)) {
	for _, g := range groups() {
		r := o.Groups[g.name]
		progress("%-15s %-16s %5d requests, %d lost, p50 %s, p99 %s (%s without overload) %s",
			name, g.name, r.Requests, r.Lost, measure.Short(r.P50), measure.Short(r.P99), measure.Short(r.Before), r.Error)
	}
	progress("%-15s loaded %s, at most %s; the flood: %d lists, %d rejected, %d failed", name,
		mebibytes(float64(o.Loaded)), mebibytes(float64(o.Peak)), o.Flood.Lists, o.Flood.Rejected, o.Flood.Failed)
}

// overload measures all groups, at first without the flood and then during it.
func (s *subject) overload(ctx context.Context) error {
	clients, err := s.prepareGroups(ctx)
	if err != nil {
		return err
	}
	for _, path := range floodPaths {
		if _, _, err := s.client.do(ctx, read(path, asJSON)(0)); err != nil {
			return err
		}
	}
	results := &OverloadResults{Groups: map[string]GroupResults{}}
	s.results.Overload = results
	before := workGroups(ctx, clients, overloadBefore)
	if results.Loaded, err = measure.Memory(s.PIDs, "VmRSS"); err != nil {
		return err
	}
	if err := measure.ResetPeak(s.PIDs); err != nil {
		return err
	}
	flood, err := startFlood(ctx, rest.AnonymousClientConfig(s.Admin))
	if err != nil {
		return err
	}
	err = measure.Pause(ctx, overloadRamp)
	profile := s.startProfile(ctx, profileOfWork, overloadOnly)
	during := workGroups(ctx, clients, overloadTime)
	err = errors.Join(err, profile())
	floodResults, stopped := flood.stop()
	if err = errors.Join(err, stopped); err != nil {
		return err
	}
	results.Flood = floodResults
	for name, r := range during {
		r.Before = before[name].P99
		results.Groups[name] = r
	}
	results.Peak, err = measure.Memory(s.PIDs, "VmHWM")
	return err
}

// prepareGroups returns the clients of each group, and creates their permissions and objects.
func (s *subject) prepareGroups(ctx context.Context) (map[string][]*client, error) {
	binding := []byte(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"overload"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},
		"subjects":[{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"overload"}]}`)
	_, _, err := s.client.do(ctx, request{
		http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", asJSON, asJSON, binding,
	})
	if err != nil {
		return nil, err
	}
	clients := map[string][]*client{}
	for _, g := range groups() {
		for i := range g.count {
			c, err := newClient(rest.AnonymousClientConfig(s.Admin))
			if err != nil {
				return nil, err
			}
			name, _ := g.user(i)
			c.token = tokenOf(name)
			clients[g.name] = append(clients[g.name], c)
			if g.prepare == nil {
				continue
			}
			if _, _, err := s.client.do(ctx, g.prepare(i)); err != nil {
				return nil, err
			}
		}
	}
	return clients, nil
}

// workGroups runs the clients of all groups for a duration.
func workGroups(ctx context.Context, clients map[string][]*client, lasting time.Duration) map[string]GroupResults {
	results := map[string]GroupResults{}
	var mu sync.Mutex
	var working sync.WaitGroup
	for _, g := range groups() {
		var latencies []time.Duration
		var collected sync.WaitGroup
		r := GroupResults{}
		for i, c := range clients[g.name] {
			collected.Go(func() {
				seen, err := g.work(ctx, c, i, lasting)
				mu.Lock()
				defer mu.Unlock()
				latencies = append(latencies, seen...)
				if err != nil {
					r.Error = err.Error()
				}
			})
		}
		working.Go(func() {
			collected.Wait()
			slices.Sort(latencies)
			r.Requests, r.P50, r.P99 = len(latencies), measure.Quantile(latencies, 0.5), measure.Quantile(latencies, 0.99)
			r.Lost = len(latencies) - len(slices.DeleteFunc(slices.Clone(latencies), func(d time.Duration) bool {
				return d >= overloadLost
			}))
			mu.Lock()
			defer mu.Unlock()
			results[g.name] = r
		})
	}
	working.Wait()
	return results
}

// work sends the requests of one client. A request that fails counts as one that took overloadLost.
func (g group) work(
	ctx context.Context, c *client, number int, lasting time.Duration,
) (latencies []time.Duration, last error) {
	begin := time.Now().Add(g.interval * time.Duration(number) / time.Duration(g.count))
	for i := 0; ; i++ {
		due := begin.Add(g.interval * time.Duration(i))
		if due.Sub(begin) > lasting || measure.Pause(ctx, time.Until(due)) != nil {
			return latencies, last
		}
		limited, cancel := context.WithTimeout(ctx, overloadLost)
		_, _, err := c.do(limited, g.request(number, i))
		cancel()
		took := time.Since(due)
		if err != nil {
			took, last = max(took, overloadLost), err
		}
		latencies = append(latencies, took)
	}
}

// overloadFigures returns the rows of the table of overload.
func overloadFigures() (all []figure) {
	for _, g := range groups() {
		of := func(name string, format func(float64) string, limit float64, value func(GroupResults) float64) {
			all = append(all, ofOverload(g.name+": "+name, format, limit, func(o *OverloadResults) float64 {
				return value(o.Groups[g.name])
			}))
		}
		of("p99", duration, 0, func(r GroupResults) float64 { return float64(r.P99) })
		of("p99 without overload", duration, 0, func(r GroupResults) float64 { return float64(r.Before) })
		of("lost", count, 0, func(r GroupResults) float64 { return float64(r.Lost) })
		all[len(all)-3].promise, all[len(all)-1].zero = 1.0/2, true
	}
	lists := func(name string, value func(floodResults) int64) figure {
		f := ofOverload(name, count, 0, func(o *OverloadResults) float64 {
			return float64(value(o.Flood)) / (overloadTime + overloadRamp).Seconds()
		})
		f.unrelated = true
		return f
	}
	all = append(all,
		ofOverload("resident, loaded", mebibytes, 0, func(o *OverloadResults) float64 { return float64(o.Loaded) }),
		ofOverload("most resident under overload", mebibytes, 0, func(o *OverloadResults) float64 { return float64(o.Peak) }),
		ofOverload("its multiple of the loaded size", multiple, overloadMemory, func(o *OverloadResults) float64 {
			return float64(o.Peak) / float64(o.Loaded)
		}),
		lists("lists per second", func(r floodResults) int64 { return r.Lists }),
		lists("rejected lists per second", func(r floodResults) int64 { return r.Rejected }),
	)
	memory := len(all) - 5
	all[memory].promise, all[memory+1].promise = 1.0/1.5, 1.0/3
	return all
}

func count(v float64) string    { return fmt.Sprintf("%.0f", v) }
func multiple(v float64) string { return fmt.Sprintf("%.2f", v) }

func ofOverload(name string, format func(float64) string, limit float64, value func(*OverloadResults) float64) figure {
	return figure{
		name: name, format: format, limit: limit, value: func(r *Results) float64 { return value(r.Overload) },
		measured: func(r *Results) bool { return r.Overload != nil },
	}
}

// runOverload measures overload on new servers.
func (o *options) runOverload(ctx context.Context, directory string, p plan, report *Report) error {
	flags, err := overloadFlags(directory)
	if err != nil {
		return err
	}
	with := *o
	with.peerFlags, with.ourFlags = append(slices.Clone(o.peerFlags), flags...), append(slices.Clone(o.ourFlags), flags...)
	return with.runSteps(ctx, directory, overloadSteps(p), report)
}
