package operator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/faults/disk"
	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/history/check"
)

// outageLength is how long the quorum is lost in an outage, which the operator must report.
const outageLength = 40 * time.Second

// execution is a nemesis that runs.
type execution struct {
	schedule.Nemesis
	*trial
	ctx    context.Context // ends when the run ends
	random *rand.Rand
}

func (n *execution) note(format string, arguments ...any) {
	n.logf("#%d "+format, append([]any{n.ID}, arguments...)...)
}

// acts returns the function that runs each kind of nemesis. The function returns when the
// nemesis has ended and its effect is undone, or a later nemesis has changed the same field again.
func acts() map[string]func(*execution) error {
	return map[string]func(*execution) error{
		"scale": (*execution).scale, "hibernate": (*execution).hibernate, "roll": (*execution).roll,
		"upgrade": (*execution).upgrade, "rotate": (*execution).rotate, "re-encrypt": (*execution).reencrypt,
		"back-up": (*execution).backUp, "kill": (*execution).kill, "stop": (*execution).freeze, "outage": (*execution).outage,
		"lose-volume": (*execution).loseVolume, "kill-operator": (*execution).killOperator,
		"stop-operator": (*execution).stopOperator, "second-operator": (*execution).secondOperator,
		"power-loss": (*execution).losePower,
		"slow-sync":  onDisk(func(n *execution, f *disk.Faults) { f.SyncDelay = n.Duration("by") }),
		"fail-write": onDisk(func(_ *execution, f *disk.Faults) { f.FailWrite = true }),
		"full":       onDisk(func(_ *execution, f *disk.Faults) { f.Filled = true }),
	}
}

// weights has how often each kind of nemesis is chosen, in the order of the choices.
var weights = []struct {
	kind   string
	weight int
}{
	{"scale", 5}, {"hibernate", 2}, {"roll", 4}, {"upgrade", 2}, {"rotate", 2}, {"re-encrypt", 2}, {"back-up", 4},
	{"kill", 5}, {"stop", 3}, {"outage", 1}, {"lose-volume", 3}, {"kill-operator", 4},
	{"stop-operator", 2}, {"second-operator", 3}, {"power-loss", 5}, {"slow-sync", 3}, {"fail-write", 2}, {"full", 2},
}

// generate returns the schedule of a seed.
func generate(seed uint64, duration time.Duration) (s schedule.Schedule) {
	random := rand.New(rand.NewPCG(seed, 0))
	var kinds []string
	for _, w := range weights {
		for range w.weight {
			kinds = append(kinds, w.kind)
		}
	}
	for at := time.Second; at < duration; at += time.Duration(2000+random.IntN(10000)) * time.Millisecond {
		n := schedule.Nemesis{ID: len(s) + 1, At: at, Kind: kinds[random.IntN(len(kinds))], Options: map[string]string{}}
		n.For = time.Duration(2000+random.IntN(10000)) * time.Millisecond
		n.Target = []string{"leader", "follower"}[random.IntN(2)]
		switch n.Kind {
		case "scale":
			n.Options["to"] = []string{"1", "3", "5"}[random.IntN(3)]
		case "power-loss":
			n.Options["lose"] = string(disk.Losses[random.IntN(len(disk.Losses))])
		case "slow-sync":
			n.Options["by"] = []string{"80ms", "400ms", "1500ms"}[random.IntN(3)]
		case "outage":
			n.For = outageLength + 5*time.Second
		}
		s = append(s, n)
	}
	s[len(s)/2].Kind = "back-up" // each run restores one
	return s
}

// execute runs a schedule and returns, when it has ended, the number of nemeses that took place.
func (c *trial) execute(ctx context.Context, s schedule.Schedule, seed uint64) (executed int) {
	var running sync.WaitGroup
	var mu sync.Mutex
	for _, nemesis := range s {
		running.Go(func() {
			if !check.Pause(ctx, nemesis.At-time.Since(c.begin)) {
				return
			}
			n := &execution{Nemesis: nemesis, trial: c, ctx: ctx, random: nemesis.Random(seed)}
			n.note("%s %s for %v %v", n.Kind, n.Target, n.For, n.Options)
			err := errors.New("there is no such nemesis")
			if act := acts()[n.Kind]; act != nil {
				err = act(n)
			}
			if err != nil {
				n.note("%s did not take place: %v", n.Kind, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			executed++
		})
	}
	running.Wait()
	return executed
}

func (n *execution) wait() { check.Pause(n.ctx, n.For) }

// target returns a member.
func (n *execution) target() (string, error) {
	members, err := n.members(n.ctx)
	if err != nil {
		return "", err
	}
	if n.Target == "leader" || len(members) == 1 {
		return members[0], nil
	}
	return members[1+n.random.IntN(len(members)-1)], nil
}

func (n *execution) scale() error { return n.patch(n.ctx, `{"replicas":`+n.Options["to"]+`}`) }

// hibernate scales to zero and, also if the run has ended, back to three.
func (n *execution) hibernate() error {
	defer n.claims.disturb("the cluster hibernated", false, false)()
	if err := n.patch(n.ctx, `{"replicas":0}`); err != nil {
		return err
	}
	n.wait()
	return n.patch(context.WithoutCancel(n.ctx), `{"replicas":3}`)
}

func (n *execution) roll() error {
	return n.patch(n.ctx, fmt.Sprintf(`{"extraArgs":{"event-ttl":"%dh"}}`, 2+n.ID))
}

// upgrade changes the image. A sandbox runs its own binary, whatever the name of the image.
func (n *execution) upgrade() error {
	return n.patch(n.ctx, fmt.Sprintf(`{"image":"quorate:%d"}`, n.ID))
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

func (n *execution) rotate() error {
	return n.patch(n.ctx, fmt.Sprintf(`{"certificates":{"authorities":{"rotateBefore":%q,"overlap":"10s"}}}`, now()))
}

// encrypted are the resources that demo encrypts.
var encrypted = []string{"secrets", "configmaps"}

func (n *execution) reencrypt() error {
	return n.patch(n.ctx, fmt.Sprintf(`{"encryption":{"resources":["%s"],"keys":{"rotateBefore":%q}}}`,
		strings.Join(encrypted, `","`), now()))
}

// backUp backs demo up to a volume. Check restores a backup and compares it with the history.
func (n *execution) backUp() error {
	name := fmt.Sprintf("backup-%d", n.ID)
	before := n.site.Record.Acknowledged()
	object := &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: v1alpha1.BackupDestination{
			Volume: &v1alpha1.VolumeDestination{ClaimName: backupClaim},
		}},
	}
	if err := n.objects.Create(n.ctx, object); err != nil {
		return err
	}
	for check.Pause(n.ctx, pollInterval) {
		err := n.objects.Get(n.ctx, ctrl.ObjectKeyFromObject(object), object)
		if err == nil && meta.IsStatusConditionTrue(object.Status.Conditions, "Complete") {
			n.note("%s has revision %d, acknowledged before was %d", name, object.Status.Revision, before)
			keys, err := n.copyKeys(name)
			if err != nil {
				return err
			}
			n.backups.add(backup{name, before, object.Status.Revision, keys})
			return nil
		}
	}
	return errors.New("it is not complete")
}

// copyKeys copies the keys of demo's objects, if they are encrypted, as an administrator has to who keeps a backup that
// is not encrypted: a rotation deletes the keys that no stored object needs. It returns the name of the copy.
func (n *execution) copyKeys(backup string) (name string, err error) {
	keys := &core.Secret{}
	err = n.objects.Get(n.ctx, ctrl.ObjectKey{Namespace: "default", Name: "demo-encryption-keys"}, keys)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	copied := &core.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys-of-" + backup}, Data: keys.Data}
	return copied.Name, n.objects.Create(n.ctx, copied)
}

func (n *execution) kill() error {
	member, err := n.target()
	if err != nil {
		return err
	}
	defer n.claims.disturb(member+" was killed", false, false)()
	_, err = n.signal(memberArgument(member), syscall.SIGKILL)
	return err
}

func (n *execution) freeze() error {
	member, err := n.target()
	if err != nil {
		return err
	}
	defer n.claims.disturb(member+" was stopped", false, false)()
	id, err := n.signal(memberArgument(member), syscall.SIGSTOP)
	if err != nil {
		return err
	}
	n.wait()
	_ = syscall.Kill(id, syscall.SIGCONT) // a probe may have ended it
	return nil
}

// outage kills all members again and again. Afterwards it deletes their pods, whose back-off has grown.
func (n *execution) outage() error {
	members, err := n.members(n.ctx)
	if err != nil {
		return err
	}
	end := n.claims.disturb("all members were killed", true, false)
	until := time.Now().Add(n.For)
	for time.Now().Before(until) && check.Pause(n.ctx, pollInterval/2) {
		for _, member := range members {
			_, _ = n.signal(memberArgument(member), syscall.SIGKILL) // it may wait for its back-off
		}
	}
	end()
	for _, member := range members {
		pod := &core.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: member}}
		err = errors.Join(err, ctrl.IgnoreNotFound(n.objects.Delete(context.WithoutCancel(n.ctx), pod)))
	}
	return err
}

// loseVolume deletes the volume of a member, unless one of the others is not healthy: two lost volumes would lose the
// quorum.
func (n *execution) loseVolume() error {
	cluster, err := n.cluster(n.ctx, "demo")
	if err != nil {
		return err
	}
	if err := settled(cluster, 3); err != nil {
		return err
	}
	member, err := n.target()
	if err != nil {
		return err
	}
	defer n.claims.disturb(member+" lost its volume", false, false)()
	object := metav1.ObjectMeta{Namespace: "default", Name: member}
	return errors.Join(n.objects.Delete(n.ctx, &core.PersistentVolumeClaim{ObjectMeta: object}),
		n.objects.Delete(n.ctx, &core.Pod{ObjectMeta: object}))
}

func (n *execution) killOperator() error {
	n.claims.silence()
	_, err := n.signal(operatorArgument, syscall.SIGKILL)
	return err
}

func (n *execution) stopOperator() error {
	n.claims.silence()
	id, err := n.signal(operatorArgument, syscall.SIGSTOP)
	if err != nil {
		return err
	}
	n.wait()
	n.claims.silence()
	return syscall.Kill(id, syscall.SIGCONT)
}

// secondOperator runs another operator at the same time. Neither has a lease, as if both believed that they led.
func (n *execution) secondOperator() error {
	id, command, err := n.process(operatorArgument)
	if err != nil {
		return err
	}
	environment, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/environ")
	if err != nil {
		return err
	}
	var arguments []string
	for _, argument := range command[1:] {
		if !strings.Contains(argument, "-bind-address=") {
			arguments = append(arguments, argument)
		}
	}
	arguments = append(arguments, "--metrics-bind-address=0", "--health-probe-bind-address=0")
	second := exec.Command(n.binary, arguments...)
	second.Args[0], second.Env, second.Dir = command[0], strings.Split(strings.TrimSuffix(string(environment), "\x00"),
		"\x00"), n.directory
	if err := second.Start(); err != nil {
		return err
	}
	n.wait()
	n.claims.silence()
	early := second.Process.Kill() // an error means that it has ended before
	_ = second.Wait()
	return early
}
