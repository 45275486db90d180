package differential

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// auditLevels are the audit levels at which levels.script runs. The policy selects the level by the namespace of the
// script.
var auditLevels = []string{"metadata", "request", "response", "omitted"}

// TestAudit compares the audit events of both servers.
func TestAudit(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pair := startAudited(t, nil)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/audit")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("own writes", func(t *testing.T) {
		t.Parallel()
		compareOwnWrites(t, pair)
	})
	for _, script := range scripts {
		names := []string{"audit-" + script.Name}
		if script.Name == "levels" {
			names = nil
			for _, level := range auditLevels {
				names = append(names, "audit-level-"+level)
			}
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				compare(t, pair, Audited(script, name), intended)
			})
		}
	}
}

// TestDifferentialAuditCBOR compares the audit events of requests in CBOR. Objects and patches are in events as JSON.
func TestDifferentialAuditCBOR(t *testing.T) {
	upstream.NeedsProcesses(t)
	if os.Getenv(wholeVariable) == "" {
		t.Skip("takes two minutes; set " + wholeVariable + "=1 (make differential)")
	}
	pair := startAudited(t, nil, cborGates)
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata/cbor")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range scripts {
		name := "audit-" + script.Name
		t.Run(name, func(t *testing.T) { compare(t, pair, Audited(script, name), intended) })
	}
}

// compareOwnWrites compares the events of objects that the servers create themselves. kube-apiserver sends requests for
// them to itself; Quorate writes them without a request.
func compareOwnWrites(t *testing.T, pair *Pair) {
	var theirs, ours []string
	same := func(context.Context) (_ bool, err error) {
		if theirs, err = pair.Upstream.ownWrites(); err != nil {
			return false, err
		}
		ours, err = pair.Ours.ownWrites()
		return len(theirs) > 0 && slices.Equal(theirs, ours), err
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Second/2, patience, true, same); err != nil {
		t.Errorf("(- kube-apiserver, + ours)\n%s", cmp.Diff(theirs, ours))
	}
}

// ownWrites returns the distinct events of the objects that a server has created itself. The names of leases and the
// UIDs of their users differ between servers.
func (s *Server) ownWrites() ([]string, error) {
	events, err := s.auditEvents(anyRequest)
	if err != nil {
		return nil, err
	}
	var writes []string
	for _, event := range events {
		if event.User.Username != "system:apiserver" || event.Verb != "create" || event.Stage != "ResponseComplete" ||
			event.ResponseStatus.Code != http.StatusCreated {
			continue
		}
		reference := *event.ObjectRef
		if reference.UID, reference.ResourceVersion = "", ""; reference.Resource == "leases" {
			reference.Name = ""
		}
		// Without the field manager, which writes of Quorate have in another place.
		path, _, _ := strings.Cut(event.RequestURI, "?")
		writes = append(writes, fmt.Sprint(path, event.User.Groups, reference, event.SourceIPs, event.Annotations))
	}
	slices.Sort(writes)
	return slices.Compact(writes), nil
}

// startAudited starts both servers with webhooks and an audit policy.
func startAudited(t *testing.T, webhookClients []byte, further ...string) *Pair {
	t.Helper()
	policy, err := filepath.Abs("testdata/audit/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := StartFrontProxies(t.Context(), t.TempDir(), append(further, "--audit-policy-file="+policy,
		"--audit-log-path=${directory}/audit.log", "--audit-log-truncate-enabled",
		"--audit-log-truncate-max-event-size=40000")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, server := range []*Server{pair.Upstream, pair.Ours} {
		server.Webhooks = StartWebhooks(webhookClients)
		t.Cleanup(func() { _ = server.Webhooks.Stop() })
	}
	return pair
}

// TestAuditAtShutdown checks that a server that stops writes the events that it has buffered.
func TestAuditAtShutdown(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := filepath.Abs("testdata/audit/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki, Arguments: []string{
		"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(directory, "audit.log"),
		"--audit-log-mode=batch", "--audit-log-batch-max-size=10000", "--audit-log-batch-max-wait=1h",
	}})
	if err != nil {
		t.Fatal(err)
	}
	audited, err := newServer("ours", time.Now(), server.Admin, nil)
	if err != nil {
		t.Fatal(err)
	}
	audited.AuditLog = filepath.Join(directory, "audit.log")
	c := &Case{Method: http.MethodGet, Path: "/version", Header: map[string]string{"Audit-Id": "last"}}
	if _, err := (&run{server: audited}).exchange(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	metrics, err := (&run{server: audited}).exchange(t.Context(), &Case{Method: http.MethodGet, Path: "/metrics"})
	if err != nil || !metrics.contains("\napiserver_audit_event_total ") ||
		!metrics.contains(`apiserver_audit_level_total{level="RequestResponse"} `) {
		t.Errorf("the metrics lack those of auditing: %v", err)
	}
	if events, err := audited.auditEvents(anyRequest); err != nil || len(events) > 0 {
		t.Errorf("got %d events %v before the server stops, want them buffered", len(events), err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if events, err := audited.auditEvents("last"); err != nil || !isComplete(events) {
		t.Errorf("got %v %v after the server has stopped, want the events of the request", events, err)
	}
	if own, err := audited.ownWrites(); err != nil || len(own) == 0 {
		t.Errorf("got %v %v, want the server's own writes", own, err)
	}
}
