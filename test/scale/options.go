package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

type options struct {
	only      string
	json      bool
	check     bool
	record    string
	keep      bool
	peerFlags []string
	ourFlags  []string

	nodes       int
	podsPerNode int
	services    int
	lease       time.Duration
	status      time.Duration
	duration    time.Duration
	changes     float64
	syncTimeout time.Duration
	storms      []string
	slow        int
	memoryLimit int64
	controllers bool
	deployments int
	objects     int
}

// pods returns the number of pods that are created at first.
func (o *options) pods() int { return o.nodes * o.podsPerNode }

func parse(arguments []string) (*options, error) {
	o := &options{}
	f := pflag.NewFlagSet("scale", pflag.ContinueOnError)
	o.addCluster(f)
	f.StringVar(&o.only, "only", "", "peer or ours; default: both, one after the other")
	f.BoolVar(&o.json, "json", false, "print JSON; times are seconds, sizes bytes")
	f.BoolVar(&o.check, "check", false, "fail if an objective is missed: the 99th percentile of writes, GETs and event "+
		"delays is below one second, no watch is lost, no event is missing, no request fails")
	f.StringVar(&o.record, "record", "",
		"file with recorded results, in which the results of measured servers are replaced")
	f.BoolVar(&o.keep, "keep", false, "keep data and logs")
	f.StringArrayVar(&o.peerFlags, "peer-flag", nil, "a further flag for kube-apiserver; may be repeated")
	f.StringArrayVar(&o.ourFlags, "our-flag", nil, "a further flag for our server; may be repeated")
	if err := f.Parse(arguments); err != nil {
		return nil, err
	}
	return o, o.validate()
}

// addCluster adds the flags of the cluster and its phases.
func (o *options) addCluster(f *pflag.FlagSet) {
	f.IntVar(&o.nodes, "nodes", 1000, "number of nodes")
	f.IntVar(&o.podsPerNode, "pods", 30, "number of pods of each node")
	f.IntVar(&o.services, "services", 200, "number of Services, each with an EndpointSlice")
	f.DurationVar(&o.lease, "lease-interval", 10*time.Second, "interval at which each node renews its lease")
	f.DurationVar(&o.status, "status-interval", 5*time.Minute, "interval at which each node reports its status")
	f.DurationVar(&o.duration, "duration", time.Minute, "how long the cluster is held while objects change")
	f.Float64Var(&o.changes, "changes", 50, "changes of pods in a second: created, running, being deleted, deleted")
	f.DurationVar(&o.syncTimeout, "sync-timeout", 90*time.Second,
		"how long watches may take until they are in sync, after connecting and after storms")
	f.StringSliceVar(&o.storms, "storm", nil,
		"storms to run afterwards: "+
			strings.Join(stormNames(allStorms()), ", ")+", with --controllers also "+
			strings.Join(stormNames(controlledStorms()), ", ")+", or all")
	f.IntVar(&o.slow, "slow", 1000, "number of watches that the storm slow does not read")
	f.BoolVar(&o.controllers, "controllers", false,
		"run kube-controller-manager and kube-scheduler after the storms, and scale Deployments up and down")
	f.IntVar(&o.deployments, "deployments", 20, "number of Deployments, which together have one pod for each node")
	f.IntVar(&o.objects, "objects", 5000, "number of objects in the namespace that the storm namespace deletes")
	f.Int64Var(&o.memoryLimit, "memory-limit", 0,
		"memory limit of the API server in MiB: of a cgroup, or GOMEMLIMIT if cgroups cannot be created; 0: no limit")
}

func stormNames(storms []storm) (names []string) {
	for _, s := range storms {
		names = append(names, s.name)
	}
	return names
}

func (o *options) validate() error {
	if o.only != "" && o.only != "peer" && o.only != "ours" {
		return fmt.Errorf("--only=%s: peer or ours", o.only)
	}
	if o.nodes < 1 || o.podsPerNode < 0 || o.services < 0 || o.slow < 1 || o.changes <= 0 ||
		o.deployments < 1 || o.objects < 1 {
		return fmt.Errorf("--nodes=%d, --pods=%d, --services=%d, --slow=%d, --changes=%v, --deployments=%d and "+
			"--objects=%d must be positive",
			o.nodes, o.podsPerNode, o.services, o.slow, o.changes, o.deployments, o.objects)
	}
	return o.selectStorms()
}

// selectStorms replaces "all" by the names of the storms, and checks the names.
func (o *options) selectStorms() error {
	names := stormNames(allStorms())
	if o.controllers {
		names = append(names, stormNames(controlledStorms())...)
	}
	if slices.Equal(o.storms, []string{"all"}) {
		o.storms = names
	}
	for _, name := range o.storms {
		if !slices.Contains(names, name) {
			return fmt.Errorf("--storm=%s: one of %s; some need --controllers", name, strings.Join(names, ", "))
		}
	}
	return nil
}
