package render

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// healthy returns the overview of a cluster that needs no attention.
func healthy() *overview.Overview {
	usage := func(revision, lag int64) *overview.Usage {
		return &overview.Usage{
			Revision: revision, Lag: lag, Memory: 117956608, InFlight: 1, Watches: 12, DBInUse: 12 << 20, DBQuota: 5153960754,
			Requests: ptr.To(17.25), Errors: ptr.To(0.0), CPU: ptr.To(0.1234),
		}
	}
	return &overview.Overview{
		Name: "demo", Namespace: "default", Created: now.Add(-72 * time.Hour), Etcd: "embedded",
		Health: overview.Healthy, Ready: 3, Desired: 3, Voters: 3, Version: "v1.36.3",
		Endpoint: "https://demo.default.svc:6443",
		Replicas: []overview.Replica{
			{Name: "demo-0", Role: "leader", Ready: true, Status: "Running", Node: "a", DBSize: 25165824, Usage: usage(8123, 0)},
			{
				Name: "demo-1", Role: "voter", Ready: true, Status: "Running", Restarts: 2, Node: "b",
				DBSize: 25165824, Usage: usage(8120, 3),
			},
			{Name: "demo-2", Role: "voter", Ready: true, Status: "Running", Node: "c", DBSize: 1536},
		},
		Certificates: []overview.Certificate{
			{Secret: "demo-admin", Expires: now.Add(300 * 24 * time.Hour)}, {
				Secret: "demo-client-ca", Authority: true, Expires: now.Add(8 * 365 * 24 * time.Hour),
			},
		},
		Backups: overview.Backups{
			Completed: &overview.Backup{Name: "nightly-1", Finished: now.Add(-5 * time.Hour), Size: 12 << 20},
			Schedules: []overview.Schedule{
				{Name: "nightly", Next: ptr.To(now.Add(19 * time.Hour))}, {Name: "hourly", Suspended: true},
			},
		},
		Conditions: []metav1.Condition{{Type: v1alpha1.Available, Status: "True"}},
		Next:       overview.Step{Text: "Nothing to do."},
	}
}

// broken returns the overview of a cluster without a quorum.
func broken() *overview.Overview {
	o := healthy()
	o.Health, o.Ready = overview.Unavailable, 0
	o.Replicas[1].Ready, o.Replicas[1].Status, o.Replicas[1].Usage = false, "CrashLoopBackOff", nil
	o.Replicas[2].Ready, o.Replicas[2].Status, o.Replicas[2].Node = false, "NoPod", ""
	o.Certificates[0].Expires = now.Add(-time.Hour)
	o.Rotations = &v1alpha1.Rotations{
		Authorities: &v1alpha1.Rotation{Stage: v1alpha1.StageReissue, StageSince: metav1.NewTime(now.Add(-3 * time.Hour))},
	}
	o.Backups = overview.Backups{
		Failed: &overview.Backup{Name: "monday", Finished: now.Add(-time.Minute)}, Running: []string{"tuesday"},
		Waiting: []overview.Waiting{{Name: "wednesday", Message: "Secret s3 does not exist"}},
	}
	o.Conditions = append(o.Conditions, metav1.Condition{
		Type: v1alpha1.EtcdQuorum, Status: "False", Reason: "QuorumLost",
		Message: "demo-0 has revision 8123; demo-1 is unreachable",
	})
	o.Problems = o.Conditions[1:]
	o.Alerts = []overview.Alert{
		{Name: "QuorateEtcdNoQuorum", Severity: "critical"}, {Name: "QuorateMemberDown", Severity: "warning"},
	}
	o.Deletion = overview.Deletion{
		Protected: true, Retain: true, FinalBackup: true, Requested: ptr.To(now.Add(-2 * time.Minute)),
	}
	o.Notes = []string{"Metrics of demo-1 cannot be read: connection refused"}
	o.Next = overview.Step{Text: "etcd has no quorum.", Command: "kubectl quorate recover demo"}
	return o
}

func created() *overview.Overview {
	return &overview.Overview{
		Name: "new", Namespace: "team-a", Created: now, Etcd: "external", Health: overview.Unavailable, Desired: 2,
		Next: overview.Step{Text: "Wait."},
	}
}

// TestGolden compares the output of commands with testdata. `go test ./plugin/render -update` rewrites it.
func TestGolden(t *testing.T) {
	for name, print := range map[string]func(io.Writer) error{
		"healthy": func(w io.Writer) error { return Status(w, healthy(), now) },
		"broken":  func(w io.Writer) error { return Status(w, broken(), now) },
		"created": func(w io.Writer) error { return Status(w, created(), now) },
		"list":    func(w io.Writer) error { return List(w, []*overview.Overview{healthy(), broken(), created()}, now) },
		"top":     func(w io.Writer) error { return Top(w, broken()) },
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := print(&out); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "-", 1: "1", 1023: "1023", 1024: "1Ki", 1536: "1.5Ki", 25165824: "24Mi", 5153960754: "4.8Gi",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
