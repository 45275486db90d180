# Every target runs with Go and git alone.
export CGO_ENABLED = 0

.PHONY: build test sandbox benchmark differential compatibility failover history restarts fuzz generate clean

build: ## the binary
	go build -trimpath -ldflags "-s -w" -o bin/quorate .

test: ## everything README promises
	go test ./...

sandbox: ## three replicas on this machine
	go run . sandbox

benchmark: ## beside kube-apiserver
	go run ./test/benchmark

differential: ## the same requests to kube-apiserver, answers compared; prints the table of areas
	DIFFERENTIAL_WHOLE=1 go test -count=1 -v -run TestDifferential ./test/differential

compatibility: ## objects of four releases, read and written by kube-apiserver and by this server
	COMPATIBILITY_WHOLE=1 go test -count=1 -v -run TestFormerReleases ./test/compatibility

failover: ## replicas killed under 50,000 objects and 500 informers
	QUORATE_FAILOVER=full go test -count=1 -v ./test/failover

history: ## what clients see while replicas are killed, checked for linearizability; DURATION=5m
	QUORATE_HISTORY=$(or $(DURATION),5m) go test -count=1 -v -timeout 2h -run TestHistory ./test/history

restarts: ## of a single etcd member, with and without fsync
	QUORATE_RESTARTS=full go test -count=1 -v -run TestRestart ./apiserver/etcd

FUZZTIME ?= 2m

fuzz: ## each fuzz target for FUZZTIME; what it finds is in testdata/fuzz of its package
	.ci/fuzz $(FUZZTIME) guided

generate: ## deep copies, CRDs, OpenAPI, merge schemas, manifests
	go generate ./...

clean:
	rm -rf bin .quorate
