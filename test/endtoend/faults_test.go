package endtoend

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"quorate.dev/apiserver/etcd"
	"quorate.dev/operator/pki"
)

// faults are functions that cause the faults in testdata/alerts.yaml. Each returns a function that ends the fault.
var faults = map[string]func(*prometheus) (repair func()){
	"operator stops":               (*prometheus).stopOperator,
	"member crashes":               (*prometheus).crashMember,
	"leader changes":               (*prometheus).moveLeader,
	"overload":                     (*prometheus).overload,
	"backup fails":                 (*prometheus).failBackup,
	"no scheduled backup":          (*prometheus).suspendSchedule,
	"database near its quota":      func(p *prometheus) func() { return p.fill(82) },
	"database over its soft quota": func(p *prometheus) func() { return p.fill(92) },
	"metrics forbidden":            (*prometheus).forbidMetrics,
	"certificate near expiry":      (*prometheus).supplyOldCertificate,
	"reconciliations fail":         (*prometheus).rejectObjects,
	"rollout of an invalid patch":  (*prometheus).rollOutInvalidPatch,
	"quorum lost":                  (*prometheus).loseMembers,
}

const smallCluster = `
apiVersion: quorate.dev/v1alpha1
kind: ApiServerCluster
metadata: {name: small, namespace: default}
spec: {replicas: 1, storage: {size: 60Mi}}
`

// schedule is a format with a name, a schedule, whether it is suspended, and the timeout of its backups.
const schedule = `
apiVersion: quorate.dev/v1alpha1
kind: ApiServerBackupSchedule
metadata: {name: %s, namespace: default}
spec:
  schedule: "%s"
  suspend: %s
  template: {clusterName: demo, destination: {volume: {claimName: backups}}, timeoutSeconds: %d}
`

// prepare creates the objects that faults and dashboards need: a small cluster, a backup, and defragmented members.
// During that, the operator must not replace members.
func (p *prometheus) prepare() {
	s := p.s
	s.t.Helper()
	s.apply(s.management, smallCluster)
	s.run(s.management, "wait", "apiservercluster/small", "--for=condition=Available", "--timeout=120s")
	s.patchSpec(`{"etcd":{"embedded":{"replaceUnhealthyAfter":"24h"}}}`)
	s.backUp()
	s.apply(s.management, fmt.Sprintf(schedule, "regular", "* * * * *", "false", 60))
	stop := p.during(20*time.Millisecond, func(ctx context.Context) { p.createObject(ctx) })
	s.defragment() // it needs revisions
	stop()
	s.waitFor("a scheduled backup", func() (bool, string) {
		at := s.run(s.management, "get", "apiserverbackupschedule/regular", "-o", "jsonpath={.status.lastSuccessfulTime}")
		return at != "", at
	})
	// This schedule never creates a backup during the test.
	s.apply(s.management, fmt.Sprintf(schedule, "regular", "0 0 1 1 *", "false", 60))
	s.run(s.demo, "get", "--raw", "/api/v1/componentstatuses") // a deprecated API
}

// during calls a function repeatedly until the returned function is called.
func (p *prometheus) during(every time.Duration, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(p.s.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			do(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(every):
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

func (p *prometheus) stopOperator() func() {
	id := must(p.s.find("--image=quorate"))(p.s.t)
	check(p.s.t, syscall.Kill(id, syscall.SIGSTOP))
	return func() { check(p.s.t, syscall.Kill(id, syscall.SIGCONT)) }
}

// crash kills members repeatedly.
func (p *prometheus) crash(members ...string) func() {
	stop := p.during(50*time.Millisecond, func(context.Context) {
		for _, member := range members {
			if id, err := p.s.process(member); err == nil {
				_ = syscall.Kill(id, syscall.SIGKILL)
			}
		}
	})
	return func() {
		stop()
		for _, member := range members { // the back-off of their containers grows
			p.s.run(p.s.management, "delete", "pod/"+member, "--wait=false")
		}
	}
}

func (p *prometheus) crashMember() func() {
	_, follower := p.s.leader()
	return p.crash(follower)
}

func (p *prometheus) loseMembers() func() {
	leader, follower := p.s.leader()
	stopCrash := p.crash(leader, follower)
	stopWrites := p.during(100*time.Millisecond, func(ctx context.Context) {
		p.createObject(ctx)
	})
	return func() { stopWrites(); stopCrash() }
}

// createObject tries to create an object in demo within two seconds.
func (p *prometheus) createObject(ctx context.Context) {
	p.send(ctx, p.s.demoConfig(), http.MethodPost, "/api/v1/namespaces/default/configmaps?timeout=2s",
		`{"metadata":{"generateName":"a-"}}`)
}

// send sends a request and ignores the response and the error.
func (p *prometheus) send(ctx context.Context, config *rest.Config, method, path, body string) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return
	}
	request, err := http.NewRequestWithContext(ctx, method,
		strings.TrimSuffix(config.Host, "/")+path, strings.NewReader(body))
	if err != nil {
		return
	}
	request.Header.Set("Content-Type", "application/json")
	if response, err := client.Do(request); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// moveLeader moves the leadership of demo from member to member.
func (p *prometheus) moveLeader() func() {
	clients := map[uint64]*clientv3.Client{}
	var ids []uint64
	for _, member := range p.s.cluster().Status.Members {
		client := must(clientv3.New(must(etcd.LocalConfig(p.s.t.Context(), p.s.dataDirectory(member.Name)))(p.s.t)))(p.s.t)
		id := must(client.Status(p.s.t.Context(), client.Endpoints()[0]))(p.s.t).Header.MemberId
		clients[id], ids = client, append(ids, id)
	}
	n := 0
	stop := p.during(max(p.interval(), time.Second/2), func(ctx context.Context) {
		status, err := clients[ids[0]].Status(ctx, clients[ids[0]].Endpoints()[0])
		if err != nil {
			return
		}
		if n++; ids[n%len(ids)] == status.Leader {
			n++
		}
		_, _ = clients[status.Leader].MoveLeader(ctx, ids[n%len(ids)])
	})
	return func() {
		stop()
		for _, client := range clients {
			_ = client.Close()
		}
	}
}

const noSeats = `
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: no-seats}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 0
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Reject}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: no-seats}
spec:
  matchingPrecedence: 2
  priorityLevelConfiguration: {name: no-seats}
  rules:
  - subjects: [{kind: User, user: {name: greedy}}]
    resourceRules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"], namespaces: ["*"]}]
`

// overload sends requests of a user whose priority level has no seats.
func (p *prometheus) overload() func() {
	p.s.apply(p.s.demo, noSeats)
	p.s.run(p.s.demo, "create", "clusterrolebinding", "greedy", "--clusterrole=view", "--user=greedy")
	config := p.s.demoConfig()
	config.Impersonate.UserName = "greedy"
	var stops []func()
	for range 10 { // a single request is accepted even without seats
		stops = append(stops, p.during(20*time.Millisecond, func(ctx context.Context) {
			p.send(ctx, config, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
		}))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
		p.s.run(p.s.demo, "delete", "flowschema/no-seats", "prioritylevelconfiguration/no-seats", "clusterrolebinding/greedy")
	}
}

// failBackup requests a backup to a volume that does not exist.
func (p *prometheus) failBackup() func() {
	p.s.apply(p.s.management, `
apiVersion: quorate.dev/v1alpha1
kind: ApiServerBackup
metadata: {name: failing, namespace: default}
spec: {clusterName: demo, destination: {volume: {claimName: none}}, startTimeoutSeconds: 5, timeoutSeconds: 10}
`)
	return func() { p.s.run(p.s.management, "delete", "apiserverbackup/failing") }
}

func (p *prometheus) suspendSchedule() func() {
	p.s.apply(p.s.management, fmt.Sprintf(schedule, "suspended", "* * * * *", "true", 10))
	return func() { p.s.run(p.s.management, "delete", "apiserverbackupschedule/suspended") }
}

// fill fills the database of the cluster small to a percentage of its quota with values that are not compacted. etcd
// counts pages when it commits its database. Large values would leave gaps, which would fill the file early.
func (p *prometheus) fill(percent int64) func() {
	s := p.s
	client := must(clientv3.New(must(etcd.LocalConfig(s.t.Context(), s.dataDirectory("small-0")))(s.t)))(s.t)
	quota := must(client.Status(s.t.Context(), client.Endpoints()[0]))(s.t).DbSizeQuota
	if quota == 0 {
		s.t.Fatal("etcd reports no quota")
	}
	used := func() int64 { return must(client.Status(s.t.Context(), client.Endpoints()[0]))(s.t).DbSizeInUse }
	const page, operations = 1 << 12, 128 // maximum per transaction
	var last int64
	s.waitFor("the database to fill", func() (bool, string) {
		missing := quota/100*percent - used()
		var puts []clientv3.Op
		for i := range min(operations, (missing+page-1)/page) {
			puts = append(puts,
				clientv3.OpPut(fmt.Sprintf("/fill/%d/%d", time.Now().UnixNano(), i), strings.Repeat("x", page/2)))
		}
		if len(puts) > 0 {
			last = must(client.Txn(s.t.Context()).Then(puts...).Commit())(s.t).Header.Revision
		}
		return missing <= 0, fmt.Sprintf("%d bytes missing", missing)
	})
	look := func() { // avoids waiting for the resync
		s.run(s.management, "annotate", "--overwrite", "apiservercluster/small",
			"example.com/look="+fmt.Sprint(time.Now().UnixNano()))
	}
	look()
	return func() {
		last = must(client.Delete(s.t.Context(), "/fill/", clientv3.WithPrefix()))(s.t).Header.Revision
		must(client.Compact(s.t.Context(), last))(s.t)
		s.waitFor("the data of the cluster small to shrink", func() (bool, string) {
			size := used()
			return size < quota/2, fmt.Sprint(size)
		})
		check(s.t, client.Close())
		look()
	}
}

// forbidMetrics revokes the permission of the group system:monitoring.
func (p *prometheus) forbidMetrics() func() {
	binding := p.s.run(p.s.demo, "get", "clusterrolebinding/system:monitoring", "-o", "yaml")
	p.s.run(p.s.demo, "delete", "clusterrolebinding/system:monitoring")
	return func() { p.s.apply(p.s.demo, strings.Replace(binding, "  uid: ", "  #uid: ", 1)) }
}

// supplyOldCertificate configures demo with a serving certificate that is about to expire.
func (p *prometheus) supplyOldCertificate() func() {
	s := p.s
	const day = 24 * time.Hour
	began := time.Now().Add(-81 * day)
	authority := must(pki.NewAuthority("example", 100*day, began))(s.t)
	endpoint := must(url.Parse(s.cluster().Status.Endpoint))(s.t)
	leaf := pki.Leaf{
		CommonName: "demo", DNSNames: []string{"kubernetes", "demo.default.svc"}, Server: true, Lifetime: 90 * day,
		Addresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if address := net.ParseIP(endpoint.Hostname()); address != nil {
		leaf.Addresses = append(leaf.Addresses, address)
	} else {
		leaf.DNSNames = append(leaf.DNSNames, endpoint.Hostname())
	}
	pair := must(authority.Issue(leaf, began))(s.t)
	must(tls.X509KeyPair(pair.Certificate, pair.Key))(s.t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "supplied", Namespace: "default"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": pair.Certificate, "tls.key": pair.Key, "ca.crt": authority.Certificate},
	}
	check(s.t, s.clusters.Create(s.t.Context(), secret))
	s.configure(map[string]any{"serving": map[string]any{"secretRef": map[string]any{"name": "supplied"}}})
	return func() {
		s.configure(map[string]any{"serving": nil})
		check(s.t, s.clusters.Delete(s.t.Context(), secret))
	}
}

const rejection = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-budgets}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [policy], apiVersions: [v1], resources: [poddisruptionbudgets], operations: [CREATE]}]
  validations: [{expression: "false"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-budgets}
spec: {policyName: no-budgets, validationActions: [Deny]}
`

// rejectObjects makes the hosting cluster reject a disruption budget that the operator has to create.
func (p *prometheus) rejectObjects() func() {
	s := p.s
	s.apply(s.management, rejection)
	s.waitFor("the policy to be enforced", func() (bool, string) {
		output, err := exec.CommandContext(s.t.Context(), s.kubectl, "--kubeconfig", s.management, "create",
			"poddisruptionbudget", "try", "--selector=a=b", "--min-available=1", "--dry-run=server").CombinedOutput()
		return err != nil, string(output)
	})
	s.run(s.management, "delete", "poddisruptionbudget/demo")
	return func() {
		s.run(s.management, "delete", "validatingadmissionpolicybinding/no-budgets", "validatingadmissionpolicy/no-budgets")
	}
}

// rollOutInvalidPatch adds a variable from a Secret that does not exist.
func (p *prometheus) rollOutInvalidPatch() func() {
	p.s.patchSpec(`{"patches":{"pod":{"spec":{"containers":[{"name":"apiserver","env":[` +
		`{"name":"NONE","valueFrom":{"secretKeyRef":{"name":"none","key":"none"}}}]}]}}}}`)
	return func() { p.s.patchSpec(`{"patches":null}`) }
}
