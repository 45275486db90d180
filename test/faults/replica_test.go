package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/faults/disk"
	"quorate.dev/test/faults/memory"
	"quorate.dev/test/faults/workload"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

const (
	capacity    = 1 << 30 // of a volume
	backoff     = 300 * time.Millisecond
	apiPort     = 6443
	peerPort    = 2380
	clientPort  = 2379
	callTimeout = 3 * time.Second // of calls to etcd
)

// replica is an API server with an embedded member, which restarts when it ends, as a kubelet restarts it.
type replica struct {
	*cluster
	index  int
	volume *disk.Volume // nil: the data directory is a folder
	etcd   *clientv3.Client
	group  *memory.Group // nil: memory is not limited

	mu         sync.Mutex
	changed    chan struct{} // closed when any of the following changes
	holds      int           // number of nemeses that keep the process from running
	process    *upstream.Process
	unmount    func() error
	generation int    // number of members that this replica has had
	joins      string // --etcd-initial-cluster of a member that joins; "": the first one
	softLimit  string // GOMEMLIMIT
	exits      []int  // codes of processes that no nemesis has killed
	lost       bool   // its data is not the data of its member, which must be replaced
	refused    bool   // its member has acknowledged writes that the leader lacks
}

func (r *replica) member() string { return fmt.Sprintf("member-%d-%d", r.index, r.generation) }

func (r *replica) folder() string { return filepath.Join(r.directory, fmt.Sprint(r.index)) }

// data is where the volume is mounted. The data directory is a folder in it.
func (r *replica) data() string { return filepath.Join(r.folder(), "volume") }

// record is the directory outside the volume for what is known about the member.
func (r *replica) record() string { return filepath.Join(r.folder(), "record-"+r.member()) }

func newReplica(c *cluster, index int) (*replica, error) {
	r := &replica{cluster: c, index: index, changed: make(chan struct{})}
	if c.setting.Disks {
		r.volume = disk.New(capacity)
	}
	if err := os.MkdirAll(r.folder(), 0o700); err != nil {
		return nil, err
	}
	if c.setting.Memory {
		group, err := memory.NewGroup(fmt.Sprintf("faults-%d-%d", os.Getpid(), index))
		if err != nil {
			return nil, err
		}
		r.group = group
		c.closers = append(c.closers, group.Close)
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return c.network.Dial(ctx, steward, index, address)
	}
	var err error
	r.etcd, err = clientv3.New(clientv3.Config{
		Endpoints: []string{fmt.Sprintf("http://%s:%d", r.own(), clientPort)}, DialTimeout: callTimeout, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
	})
	return r, err
}

// notify is called with the lock held.
func (r *replica) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// keep runs the process until ctx ends.
func (r *replica) keep(ctx context.Context) {
	for ctx.Err() == nil {
		r.mu.Lock()
		process, changed := r.process, r.changed
		if process == nil && r.holds == 0 {
			if err := r.start(); err != nil {
				r.logf("replica %d: %v", r.index, err)
			}
			process, changed = r.process, r.changed
		}
		r.mu.Unlock()
		ended := (<-chan struct{})(nil)
		if process != nil {
			ended = process.Ended()
		}
		select {
		case <-ended:
			r.noteExit(process)
			check.Pause(ctx, backoff)
		case <-changed:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kill()
	r.detach()
}

// noteExit is called when a process has ended.
func (r *replica) noteExit(process *upstream.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process != process {
		return // a nemesis has killed it
	}
	r.process = nil
	code := process.ExitCode()
	if len(r.exits) == 0 || r.exits[len(r.exits)-1] != code || !r.mustWait() {
		r.logf("replica %d exited with code %d: %s", r.index, code, reason(process))
	}
	r.exits = append(r.exits, code)
	if code == config.LostDataExitCode || code == config.DamagedDataExitCode && !r.diskFails() {
		r.damage.claim(r, code, reason(process))
	}
	switch {
	case r.setting.Replicas == 1:
	case code == config.LostDataExitCode || code == config.DamagedDataExitCode:
		r.lost = true
	case code == config.LostWritesExitCode && !r.refused:
		r.refused = true
		r.damage.refuse(r, reason(process))
	}
	r.notify()
}

// diskFails reports whether the disk does not read or write, or has lost the power. A member that starts on such a disk
// may take its data for damaged.
func (r *replica) diskFails() bool { return r.volume != nil && r.volume.Fails() }

// reason returns the last line of a log that looks like an error.
func reason(process *upstream.Process) string {
	lines := strings.Split(process.Tail(), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		for _, word := range []string{"Error:", "panic", "fatal", "F1", "etcd data directory"} {
			if strings.Contains(lines[i], word) {
				return lines[i][:min(len(lines[i]), 400)]
			}
		}
	}
	return lines[len(lines)-1]
}

// start starts the process. The lock is held.
func (r *replica) start() error {
	if err := r.attach(); err != nil {
		return err
	}
	if err := os.MkdirAll(r.record(), 0o700); err != nil {
		return err
	}
	record, err := json.Marshal(config.MemberRecord{Directory: r.record()})
	if err != nil {
		return err
	}
	environment := []string{config.MemberRecordVariable + "=" + string(record)}
	if r.softLimit != "" {
		environment = append(environment, "GOMEMLIMIT="+r.softLimit)
	}
	options := upstream.Options{Directory: r.folder(), PKI: r.pki, Arguments: r.arguments()}
	return r.inNamespace(func() (err error) {
		r.process, err = upstream.Run("quorate", r.binary, r.folder(), environment,
			append([]string{"apiserver"}, options.Flags(apiPort)...))
		r.notify()
		if err == nil && r.group != nil {
			err = r.group.Add(r.process.PID)
		}
		return err
	})
}

func (r *replica) arguments() []string {
	cluster, state := r.initialMembers, "new"
	if r.joins != "" {
		cluster = r.joins
	}
	if r.joins != "" || r.formed.Load() {
		state = "existing"
	}
	client := fmt.Sprintf("http://%s:%d", r.own(), clientPort)
	return slices.Concat([]string{
		"--bind-address=" + r.own(), "--etcd-data-dir=" + filepath.Join(r.data(), "member"),
		"--etcd-name=" + r.member(), fmt.Sprintf("--etcd-listen-peer-urls=http://%s:%d", r.own(), peerPort),
		"--etcd-initial-advertise-peer-urls=http://" + r.advertised(), "--etcd-allow-insecure-transport",
		"--etcd-initial-cluster=" + cluster, "--etcd-initial-cluster-state=" + state,
		"--etcd-listen-client-urls=" + client, "--etcd-advertise-client-urls=" + client,
		"--etcd-heartbeat-interval=100ms", "--etcd-election-timeout=1s", "--etcd-compaction-interval=20s",
		"--etcd-snapshot-count=500",
	}, workload.Flags(), r.flags)
}

// attach mounts the volume, if it is not mounted.
func (r *replica) attach() (err error) {
	if r.volume == nil || r.unmount != nil {
		return nil
	}
	r.unmount, err = r.volume.Mount(r.data())
	return err
}

func (r *replica) detach() {
	if r.unmount == nil {
		return
	}
	if err := r.unmount(); err != nil {
		r.logf("replica %d: %v", r.index, err)
	}
	r.unmount = nil
}

// kill ends the process. The lock is held.
func (r *replica) kill() {
	if r.process != nil {
		r.process.Kill()
		r.process = nil
	}
}

// hold keeps the process from running until release, after a change of its data, which may be nil.
func (r *replica) hold(change func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds++
	r.kill()
	defer r.notify()
	if change == nil {
		return nil
	}
	r.detach()
	return change()
}

func (r *replica) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds--
	r.notify()
}

// cutPower ends the process immediately, without a further write, and loses unsynced data.
func (r *replica) cutPower(loss disk.Loss, n *execution) error {
	r.volume.Halt()
	return r.hold(func() error {
		n.note("replica %d lost %s", r.index, r.volume.Crash(loss, n.random))
		return nil
	})
}

// signal sends a signal to the process, if there is one, and returns it.
func (r *replica) signal(signal syscall.Signal) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return 0
	}
	_ = syscall.Kill(r.process.PID, signal) // it may have ended
	return r.process.PID
}

func (r *replica) pid() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return 0
	}
	return r.process.PID
}

// empty removes everything from the volume. The process does not run and the volume is detached.
func (r *replica) empty() error {
	if r.volume != nil {
		r.volume.Restore(disk.Image{})
		return nil
	}
	return os.RemoveAll(r.data())
}

// fresh makes the replica a new member, which joins. The lock is held.
func (r *replica) fresh(cluster func(name string) string) error {
	r.kill()
	r.detach()
	r.generation++
	r.joins = cluster(r.member())
	return errors.Join(r.empty(), os.RemoveAll(r.record()))
}

// forget removes what is known about the member outside its volume.
func (r *replica) forget() error { return os.RemoveAll(r.record()) }

// mustWait reports whether the member waits for its replacement. The lock is held.
func (r *replica) mustWait() bool { return r.lost || r.refused }

// mustBeReplaced reports whether the operator replaces the member, or an administrator does, who keeps a member with
// acknowledged writes that are lost until all faults have ended.
func (r *replica) mustBeReplaced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost || r.refused && r.calmed.Load()
}

func (r *replica) exitCodes() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.exits)
}
