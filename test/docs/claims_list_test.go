package docs

// claims lists all texts with numbers in the documents in measuring.
var claims = []claim{
	{
		document: "README.md",
		text: "unless a GET needs at most a quarter of kube-apiserver's CPU time, a LIST of pods at most a third, a create " +
			"at most 60 %, and an idle server at most half of the memory of kube-apiserver and etcd",
		check: "make benchmark-ratios",
	},
	{
		document: "README.md",
		text:     "etcd voters: 1, 3 or 5",
		check:    "go test ./operator/api/v1alpha1 -run TestVoterCount",
	},
	{
		document: "README.md",
		text:     "the cluster scales from 1 to 3 to 5 and back",
		check:    "make realcluster",
	},
	{
		document: "docs/performance.md",
		text:     "5,000 ConfigMaps of 1 KB and 5,000 pods, up to 1,000 watchers, and at the end 50,000 small ConfigMaps",
		check:    "source test/benchmark/work.go: objects = 5000 // number of objects of each kind",
	},
	{
		document: "docs/performance.md",
		text:     "results of runs on 2026-11-28",
		given:    "the date of the recorded run",
	},
	{
		document: "docs/performance.md",
		text:     "The row with 100 webhooks and policies",
		check:    "source test/benchmark/extensions.go: extensionsOfKind = 25",
	},
	{
		document: "docs/performance.md",
		text:     "creates 1,000 CustomResourceDefinitions",
		check:    "source test/benchmark/definitions.go: definitionCount = 1000",
	},
	{
		document: "docs/performance.md",
		text:     "encrypts Secrets of 2 KB",
		check:    "source test/benchmark/encryption.go: secretSize = 2000",
	},
	{
		document: "docs/performance.md",
		text:     "restarts the API servers with 20,000 of them",
		check:    "source test/benchmark/encryption.go: secretCount = 20000",
	},
	{
		document: "docs/performance.md",
		text:     "except the 50,000 small ConfigMaps",
		check:    "source test/benchmark/work.go: manyObjects = 50000",
	},
	{
		document: "docs/availability.md",
		text: "50 writes/s by six clients, 50 reads/s by five clients, 20 informers, one raw watch, and 200 new " +
			"connections per minute",
		check: "make availability",
	},
	{
		document: "docs/availability.md",
		text:     "| event |",
		check:    "go test ./test/endtoend -run TestBudgetsAreDocumented",
	},
	{
		document: "docs/availability.md",
		text:     "Measured on 2026-11-23",
		given:    "the date of the run",
	},
	{
		document: "docs/availability.md",
		text:     "allow 30 reads and 30 writes to fail in this way; they retry every 20 ms",
		check:    "source test/endtoend/load_test.go: const refusals = 30",
	},
	{
		document: "docs/availability.md",
		text:     "50 s by default",
		given:    "kube-controller-manager's default",
	},
	{
		document: "docs/availability.md",
		text:     "resends writes that have no response 200 ms later",
		check:    "source apiserver/storage/handover.go: handoverGrace = 200 * time.Millisecond",
	},
	{
		document: "docs/availability.md",
		text:     "In the second half of this time",
		check:    "go test ./apiserver/serving -run TestClientsMoveDuringTheDelay",
	},
	{
		document: "docs/availability.md",
		text:     "which makes requests with a timeout of 5 s fail",
		given:    "kube-apiserver's Retry-After",
	},
	{
		document: "docs/availability.md",
		text:     "to reconnect on one of 1,000 requests",
		check:    "source operator/desired/flags.go: const goawayChance = 0.001",
	},
	{
		document: "docs/availability.md",
		text:     "sends a ping after 30 s without a frame and gives up 15 s later",
		given:    "client-go's defaults",
	},
	{
		document: "docs/comparison.md",
		text:     "from November 2026",
		given:    "a date",
	},
	{
		document: "docs/comparison.md",
		text:     "of July and August 2026",
		given:    "a date",
	},
	{
		document: "docs/comparison.md",
		text:     "fixed at 1 or 3",
		given:    "HyperShift's",
	},
	{
		document: "docs/fairness.md",
		text:     "at most a quarter of its timeout",
		check:    "source apiserver/filters/fairness.go: waitShare = 4",
	},
	{
		document: "docs/fairness.md",
		text:     "has not arrived within 50 ms",
		check:    "source apiserver/filters/bodies.go: seatedBody = 50 * time.Millisecond",
	},
	{
		document: "docs/fairness.md",
		text:     "make no progress for half a second",
		check:    "source apiserver/filters/sending.go: Stalled: 500 * time.Millisecond",
	},
	{
		document: "docs/fairness.md",
		text:     "limited to 200 per second",
		check:    "source apiserver/host/host.go: qps = 200",
	},
	{
		document: "docs/fairness.md",
		text:     "one user causes at most a quarter of them",
		check:    "source apiserver/host/fair.go: userShare = 4",
	},
	{
		document: "docs/fairness.md",
		text:     "every 10 seconds",
		given:    "the period of upstream's controller, which runs here",
	},
	{
		document: "docs/fairness.md",
		text:     "keeps 64 lists of all pods and ConfigMaps (5,000 each) by one user in flight",
		check:    "make benchmark-ratios",
	},
	{
		document: "docs/fairness.md",
		text:     "50 nodes renew their leases",
		check:    `source test/benchmark/overload.go: name: "node heartbeats", count: 50`,
	},
	{
		document: "docs/fairness.md",
		text:     "20 clients, in the same priority level as the lists, send 4 requests per second each",
		check:    `source test/benchmark/overload.go: name: "small clients", count: 20, interval: 250 * time.Millisecond`,
	},
	{
		document: "docs/audit.md",
		text:     "at most 128 MiB",
		check:    "source apiserver/handlers/audit.go: maxAuditMemory = 128 << 20",
	},
	{
		document: "docs/audit.md",
		text:     "a GET needs at most a quarter of the CPU time",
		check:    "make benchmark-ratios",
	},
	{
		document: "docs/audit.md",
		text:     "requests that take more than 500 ms",
		check:    "go test ./test/differential -run TestAudit",
	},
}
