package main

import "context"

// shardedGate is the flag with which both servers serve the parameter shardSelector.
const shardedGate = "--feature-gates=ShardedListAndWatch=true"

// sharded returns two works: the list that each of four replicas of a controller sends if the replicas divide the pods
// by UID, and for comparison the list of all pods from the same servers.
func sharded() []work {
	const quarter = "shardRange(object.metadata.uid,%270x0000000000000000%27,%270x4000000000000000%27)"
	return []work{
		{
			name: "LIST a quarter of 5,000 pods by shardSelector, protobuf", promise: 1.0 / 2, parallel: 1,
			request: read(pods+"?shardSelector="+quarter, asProtobuf),
		},
		{
			name: "LIST 5,000 pods, protobuf, with the gate of shardSelector", promise: 1.0 / 3, parallel: 1,
			request: read(pods, asProtobuf),
		},
	}
}

// runSharded measures servers with the feature gate ShardedListAndWatch.
func (o *options) runSharded(ctx context.Context, directory string, p plan, report *Report) error {
	wanted := filter(sharded(), p)
	if len(wanted) == 0 {
		return nil
	}
	steps := []step{
		func(ctx context.Context, s *subject) error { return s.settle(ctx) },
		func(ctx context.Context, s *subject) error { return s.warmUp(ctx) },
		func(ctx context.Context, s *subject) error {
			_, err := s.repeat(ctx, work{parallel: 16, count: objects, request: createPod}, least{})
			return err
		},
	}
	gate := []string{shardedGate}
	return o.with(gate, gate).runSteps(ctx, directory, append(steps, p.measuring(wanted)...), report)
}
