// Package operator runs the operator and a cluster in a sandbox while a seed chooses what happens to them: changes of
// the spec, backups, faults of members and of their disks, faults of the operator. During all of these, clients read,
// write, list and watch. At the end, the cluster must be healthy again, and these checks run: no acknowledged write is
// lost and no watch is wrong; each backup, restored, has exactly the objects of its revision; the operator has told the
// truth about the quorum and about losses in conditions; Events announce each change of a condition and each member
// that is replaced, and nothing that has not happened.
//
// Where FUSE is permitted, the folder of each claim is a volume of the test (package test/faults/disk). There are no
// faults of the network: the processes of a sandbox share the loopback device, and a connection between two members has
// the source address 127.0.0.1, so that its packets do not show which member has sent them.
package operator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

const (
	patience    = 5 * time.Minute // for recovery after all faults
	backupClaim = "backups"
	clients     = 3
)

// trial is a sandbox with clients, during a run.
type trial struct {
	*sandbox
	site    *check.Site
	claims  *claims
	backups *backups
}

// backup is a complete ApiServerBackup.
type backup struct {
	name     string
	before   int64  // revision that had been acknowledged when the backup began
	revision int64  // of the backup
	keys     string // Secret with the keys of its objects; "": they are not encrypted
}

type backups struct {
	mu  sync.Mutex
	all []backup
}

func (b *backups) add(one backup) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, one)
}

// TestOperator runs the schedules of the seeds in QUORATE_FAULTS_SEEDS, or of seed 1, for QUORATE_FAULTS_OPERATOR each.
func TestOperator(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("QUORATE_FAULTS_OPERATOR"))
	if err != nil {
		t.Skip("takes minutes; set QUORATE_FAULTS_OPERATOR to a duration, as make faults-operator does")
	}
	upstream.NeedsProcesses(t)
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { run(t, seed, duration) })
	}
}

func seeds(t *testing.T) (all []uint64) {
	t.Helper()
	all, err := schedule.Seeds(os.Getenv("QUORATE_FAULTS_SEEDS"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return []uint64{1}
	}
	return all
}

func run(t *testing.T, seed uint64, duration time.Duration) {
	s := generate(seed, duration)
	t.Logf("seed %d\n%s", seed, s)
	c := prepare(t)
	working, endWork := context.WithTimeout(t.Context(), duration)
	defer endWork()
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	load := check.Load{Writers: 4, Readers: 3, Watchers: 3, LongestWatch: 4 * time.Second, Consistencies: true}
	c.begin = time.Now()
	watchers := c.site.Watch(watching, load, seed)
	work := c.site.Work(working, load, seed)
	var observing sync.WaitGroup
	observing.Go(func() { c.claims.watch(watching, c.sandbox) })
	executed := c.execute(working, s, seed)
	<-working.Done()
	work.Wait()
	c.logf("all faults have ended")
	violations := c.settle(t.Context(), watchers)
	endWatches()
	watchers.Finish()
	observing.Wait()
	found := c.site.Record.Check()
	violations = append(append(violations, found...), c.claims.check(found)...)
	violations = append(violations, c.checkEvents(t.Context(), found)...)
	c.logf("%d of %d nemeses, %d backups; %s; the operator said %v", executed, len(s), len(c.backups.all),
		c.site.Record.Summary(), c.claims.said)
	c.report(t, seed, s, violations)
}

func (c *trial) report(t *testing.T, seed uint64, s schedule.Schedule, violations []error) {
	if len(violations) == 0 {
		return
	}
	directory := filepath.Join(os.TempDir(), "quorate-faults-operator-"+strconv.FormatUint(seed, 10))
	if err := c.site.Record.Keep(directory, violations); err != nil {
		t.Error(err)
	}
	if err := os.CopyFS(filepath.Join(directory, "logs"), os.DirFS(filepath.Join(c.directory, "logs"))); err != nil {
		t.Log(err) // the logs of an earlier run exist
	}
	for _, violation := range violations[:min(len(violations), 10)] {
		t.Error(violation)
	}
	t.Errorf("%d violations; the history and the logs are in %s. To run the same faults again:\n"+
		"make faults-operator DURATION=%v SEEDS=%d", len(violations), directory, s.End().Round(time.Second), seed)
}

// prepare starts a sandbox, and creates what nemeses need.
func prepare(t *testing.T) *trial {
	t.Helper()
	c := &trial{sandbox: startSandbox(t), claims: &claims{said: map[string]int{}}, backups: &backups{}}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.await(ctx, "demo", 3); err != nil {
		t.Fatal(err)
	}
	claim := &core.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: backupClaim},
		Spec: core.PersistentVolumeClaimSpec{
			AccessModes: []core.PersistentVolumeAccessMode{core.ReadWriteOnce},
			Resources: core.VolumeResourceRequirements{
				Requests: core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
	if err := c.objects.Create(ctx, claim); err != nil {
		t.Fatal(err)
	}
	c.site = &check.Site{Objects: check.ConfigMaps("default"), Record: check.NewRecord()}
	for range clients {
		client, err := c.client("demo")
		if err != nil {
			t.Fatal(err)
		}
		c.site.Clients = append(c.site.Clients, client)
	}
	return c
}

// settle waits until the cluster is healthy with three replicas, and reads everything again, also from the last backup.
func (c *trial) settle(ctx context.Context, watchers *check.Watchers) (violations []error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := eventually(ctx, func() error { return c.patch(ctx, `{"replicas":3}`) }); err != nil {
		return []error{err}
	}
	if err := c.await(ctx, "demo", 3); err != nil {
		return []error{fmt.Errorf("no recovery: %w", err)}
	}
	c.logf("the cluster is healthy")
	last, err := c.site.Finish(ctx)
	if err == nil {
		err = watchers.Reach(ctx, last)
	}
	if err != nil {
		violations = append(violations, err)
	}
	if len(c.backups.all) > 0 {
		if err := c.restore(ctx, c.backups.all[len(c.backups.all)-1]); err != nil {
			violations = append(violations, err)
		}
	}
	return violations
}

// restore restores a backup as another cluster, and adds the cluster's objects to the record as a list at the backup's
// revision.
func (c *trial) restore(ctx context.Context, b backup) error {
	one := int32(1)
	object := &v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "restored"},
		Spec: v1alpha1.ApiServerClusterSpec{
			Replicas: &one, Restore: &v1alpha1.Restore{From: v1alpha1.RestoreSource{BackupName: b.name}},
		},
	}
	if b.keys != "" {
		object.Spec.Encryption = &v1alpha1.Encryption{Resources: encrypted} // fewer would ask for a decryption
		object.Spec.Restore.EncryptionKeysSecretRef = &core.LocalObjectReference{Name: b.keys}
	}
	if err := c.objects.Create(ctx, object); err != nil {
		return err
	}
	if err := c.await(ctx, object.Name, 1); err != nil {
		return fmt.Errorf("restore %s: %w", b.name, err)
	}
	return eventually(ctx, func() error {
		client, err := c.client(object.Name)
		if err != nil {
			return err
		}
		return c.site.AddCopy(ctx, client, b.before, b.revision)
	})
}
