# Targets need Go and git; race also needs gcc.
export CGO_ENABLED = 0

# SUDO runs a command as root, with the tools of the user.
SUDO = $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=LOGS env PATH="$(PATH)")

.PHONY: build test coverage lint race ci sandbox benchmark benchmark-ratios benchmark-check benchmark-record benchmark-plots scale differential compatibility kine failover history availability availability-cluster rotation hostile hostile-servers attacks memory upgrade skew operator-size restarts faults faults-operator faults-checker realcluster realcluster-olm realcluster-skew screenshot prometheus guides fuzz generate bundle chart image release release-check clean

build: ## the quorate binary
	go build -trimpath -ldflags "-s -w" -o bin/quorate .

test: ## all tests; takes half an hour. `go test ./...` leaves out long tests
	go test -run . ./...

coverage: ## statement coverage of each package by its own tests; fails below the floors of test/coverage
	go test -vet=off -timeout 30m -run . -cover $$(go list ./... | grep -v /test/) | go run ./test/coverage

lint: ## gofmt, go vet and golangci-lint
	.ci/run lint

race: ## tests of concurrent packages, under the race detector
	.ci/run race

ci: ## everything that main must pass; STEPS="lint tests" runs only these steps
	.ci/run $(STEPS)

sandbox: ## run three replicas on this machine
	go run . sandbox

benchmark: ## compare with kube-apiserver
	go run ./test/benchmark

benchmark-ratios: ## measure everything, and fail if a figure that docs/performance.md promises is missed
	go run ./test/benchmark --check
	go run ./test/benchmark --check --work encryption
	go run ./test/benchmark --check --work overload

benchmark-check: ## measure all requests, and fail if a row is more than 15 % behind its recorded ratio
	go run ./test/benchmark --behind test/benchmark/testdata/recorded.json
	go run ./test/benchmark --behind test/benchmark/testdata/recorded.json --work encryption

benchmark-record: ## measure everything, and record it in the tables, the history and the plots of docs; on an idle machine
	for works in "" encryption overload; do \
		go run ./test/benchmark --record test/benchmark/testdata/recorded.json \
			--history docs/performance/history.json --work "$$works" || exit 1; \
	done
	$(MAKE) benchmark-plots
	UPDATE_DOCUMENTS=1 go test -count=1 ./test/benchmark

benchmark-plots: ## generate the plots in docs/performance from its history.json
	go run ./test/benchmark --plot docs/performance

scale: ## measure both servers with a cluster of NODES=1000 hollow nodes for DURATION=1m; STORM=all, CONTROLLERS=1; see docs/scale.md
	go run ./test/scale --nodes $(or $(NODES),1000) --duration $(or $(DURATION),1m) $(if $(STORM),--storm $(STORM)) $(if $(CONTROLLERS),--controllers)

differential: ## send the same requests to kube-apiserver and compare; prints a table of areas
	DIFFERENTIAL_WHOLE=1 go test -count=1 -v -run TestDifferential ./test/differential

compatibility: ## read and write objects of four releases with kube-apiserver and this server
	COMPATIBILITY_WHOLE=1 go test -count=1 -v -run TestFormerReleases ./test/compatibility

kine: ## run on kine with PostgreSQL, if it is installed, and with its embedded NATS
	CGO_ENABLED=0 go build -tags nats -modfile=tools/kine/go.mod -o $(or $(TMPDIR),/tmp)/kine github.com/k3s-io/kine
	QUORATE_KINE=$(or $(TMPDIR),/tmp)/kine go test -count=1 -v -run TestKine ./test/compatibility
	for store in postgresql nats; do \
		QUORATE_KINE=$(or $(TMPDIR),/tmp)/kine QUORATE_STORE=$$store go test -count=1 -v -run . ./test/failover && \
		QUORATE_KINE=$(or $(TMPDIR),/tmp)/kine QUORATE_STORE=$$store go test -count=1 -v -run TestHistory ./test/history || exit 1; \
	done

failover: ## kill replicas that hold 50,000 objects and serve 500 informers
	QUORATE_FAILOVER=full go test -count=1 -v -run . ./test/failover

history: ## kill replicas and check what clients saw for linearizability; DURATION=5m
	QUORATE_HISTORY=$(or $(DURATION),5m) go test -count=1 -v -timeout 2h -run TestHistory ./test/history

availability: ## change and break a cluster under load; assert the budgets in docs/availability.md
	QUORATE_AVAILABILITY=full go test -count=1 -v -timeout 30m -run 'TestSandbox$$' ./test/endtoend

availability-cluster: ## the same on the Kubernetes cluster of QUORATE_CLUSTER, which has the operator; see docs/availability.md
	QUORATE_AVAILABILITY=full go test -count=1 -v -timeout 30m -run 'TestCluster$$' ./test/endtoend

rotation: ## replace authorities by age, several times, under load
	QUORATE_ROTATION=full go test -count=1 -v -timeout 30m -run TestRotationByAge ./test/endtoend

hostile: ## disturb clusters at random in a simulation and with real members, and let writes of controllers fail for hours; SEEDS=200
	QUORATE_HOSTILE=$(or $(SEEDS),200) go test -count=1 -timeout 2h -run 'TestHostile|WritesAreBounded|TestFailedRequests' ./operator/reconcile ./operator ./apiserver

hostile-servers: ## call hostile extension API servers, webhooks and issuers with every behaviour
	QUORATE_HOSTILE_SERVERS=1 go test -run . ./test/hostile -count=1 -timeout 60m

attacks: ## measure the CPU time of expensive requests to this server; UPSTREAM=1 measures kube-apiserver
	QUORATE_ATTACKS=1 QUORATE_LIMITS_UPSTREAM=$(UPSTREAM) go test ./test/limits -count=1 -v -timeout 60m -run 'TestAttacks|TestCBORAttacks'

memory: ## fail if a server does not return its memory after 5,000 connections, 1,000 definitions and 30,000 pods; 40 minutes
	QUORATE_MEMORY_RETURNED=1 go test ./test/limits -count=1 -v -timeout 90m -run TestMemoryIsReturned

upgrade: ## take over clusters from the previous release's operator (RECORD=1 rewrites the objects of the short test); change a cluster to the next Kubernetes minor version and back
	QUORATE_UPGRADE=full go test -count=1 -v -run TestUpgradeRestartsNothing ./operator $(if $(RECORD),-record)
	QUORATE_UPGRADE=full go test -count=1 -v -timeout 40m -run TestMinorUpgrade ./test/endtoend

skew: ## kube-apiserver of the two former Kubernetes minor versions on one etcd with this server, and their controllers and scheduler as clients
	QUORATE_SKEW=full go test -p 1 -count=1 -v -timeout 60m -run TestVersionSkew ./test/compatibility ./test/controlplane

operator-size: ## memory and CPU time of the operator with CLUSTERS=200, compared with docs/install.md
	QUORATE_OPERATOR_SIZE=$(or $(CLUSTERS),200) go test -count=1 -v -timeout 30m -run TestOperatorSize ./operator

restarts: ## restart a single etcd member 50 and 20 times, on one and on all processors, with and without fsync; voters without their data
	QUORATE_RESTARTS=full go test -count=1 -v -timeout 30m -run 'TestRestart|TestPositions|TestLostWritesAreNoticed' ./apiserver/etcd

faults: ## inject faults into processes, packets, disks and memory; DURATION=1h, which SEEDS=... share
	QUORATE_FAULTS=$(or $(DURATION),1h) QUORATE_FAULTS_SEEDS=$(SEEDS) go test -count=1 -v -timeout 12h -run 'TestFaults$$' ./test/faults

faults-operator: ## disturb a sandbox's cluster and its operator for DURATION=10m; SEEDS=1
	QUORATE_FAULTS_OPERATOR=$(or $(DURATION),10m) QUORATE_FAULTS_SEEDS=$(SEEDS) go test -count=1 -v -timeout 12h -run TestOperator ./test/faults/operator

faults-checker: ## shrink the schedules with which the checks of faults find planted defects
	QUORATE_FAULTS_CHECKER=full go test -count=1 -v -timeout 3h -run TestChecker ./test/faults

realcluster: ## install and break the operator on a Kubernetes cluster that runs on this machine; needs root and Debian's packages
	$(SUDO) test/realcluster/prove.sh cluster

realcluster-olm: ## install, upgrade and uninstall the bundle with the Operator Lifecycle Manager on such a cluster
	$(SUDO) test/realcluster/prove.sh olm

realcluster-skew: ## run nodes with the kubelets of three minor versions on such a cluster, whose API server is this one
	$(SUDO) test/realcluster/prove.sh skew

prometheus: ## scrape a sandbox with Prometheus: no alerts without faults, a fault for each alert, dashboards; SPEED=1 uses real durations
	go -C tools/prometheus build -tags remove_all_sd -o $(or $(TMPDIR),/tmp)/prometheus github.com/prometheus/prometheus/cmd/prometheus
	QUORATE_PROMETHEUS=$(or $(TMPDIR),/tmp)/prometheus QUORATE_SPEED=$(or $(SPEED),30) \
		go test -count=1 -v -timeout 24h -run TestPrometheus ./test/endtoend

guides: ## execute the commands of all guides, including those that take minutes
	QUORATE_GUIDES=all go test -count=1 -v -timeout 60m -run 'TestGuides|TestServerGuides|TestMigrate' ./test/endtoend

FUZZTIME ?= 2m

screenshot: ## take the screenshot in docs/sandbox.md with Chromium
	QUORATE_SCREENSHOT=$(CURDIR)/docs/images/sandbox.png go test -count=1 -v -run TestBackupAndRestore ./test/endtoend

fuzz: ## run each fuzz target for FUZZTIME, an hour in total; failing inputs are in the package's testdata/fuzz
	.ci/fuzz $(FUZZTIME) guided

generate: ## deep copies, CRDs, OpenAPI, merge schemas, manifests
	go generate ./...

bundle chart: ## the OLM bundle, its catalog and the Helm chart; also part of generate
	go run ./release/$@

image: ## dist/image: an OCI layout for amd64 and arm64, without a container engine
	release/build.sh image

release: ## dist/: binaries, image, SBOMs, manifests, bundle, chart, notes, checksums
	release/build.sh

release-check: ## write the release twice, the second time elsewhere without a cache, and compare the bytes; 15 minutes
	QUORATE_RELEASE=full go test -count=1 -v -timeout 90m -run TestRelease ./release

clean:
	rm -rf bin dist .quorate
