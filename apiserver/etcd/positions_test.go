package etcd

import (
	"fmt"
	"os"
	"testing"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

// procedure is what a cluster is going through when the volume of a member is lost or put back.
type procedure int

const (
	steady      procedure = iota
	joining               // a learner has started and is not a voter yet
	rolling               // the member is restarted in a new pod, whose record is the operator's
	scalingDown           // a voter that is stopped has been removed, and does not know it
	procedures
)

func (p procedure) String() string {
	return [...]string{"steady", "during a join", "during a roll", "during a scale-down"}[p]
}

// position is a member whose volume is lost or put back, in a cluster of size voters. The member with the number size
// is the learner of a join.
type position struct {
	size, member int
	procedure    procedure
}

func (p position) String() string { return fmt.Sprintf("m%d of %d %v", p.member, p.size, p.procedure) }

// positions returns the first, the middle and the last member of one, three and five voters in each procedure, and the
// learner of each join. The only voter cannot be removed.
func positions() (all []position) {
	for _, size := range []int{1, 3, 5} {
		for p := range procedures {
			members := []int{0}
			if size > 1 {
				members = append(members, size/2, size-1)
			}
			if p == joining {
				members = append(members, size)
			}
			for _, member := range members {
				if size > 1 || p != scalingDown {
					all = append(all, position{size, member, p})
				}
			}
		}
	}
	return all
}

// TestPositions applies each fault of a volume to the member in each position, in the most dangerous moment: some
// voters were stopped, the member and the others have acknowledged a write, the others are stopped, and the former ones
// start again. With the member, they would be a quorum without the write. The member does not start; with its own data
// it does, and the write is there. Without QUORATE_RESTARTS=full, the test takes every fifth position, which has all
// procedures; under the race detector, it takes two. QUORATE_RESTARTS=full (make restarts) takes all.
func TestPositions(t *testing.T) {
	upstream.NeedsTime(t)
	// Two clusters run at the same time; with more, five members might have no leader within the timeout of await.
	slots := make(chan struct{}, 2)
	every := 5
	if testing.Short() {
		every = 15
	}
	for i, p := range positions() {
		if i%every != every-1 && os.Getenv("QUORATE_RESTARTS") != "full" {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			newPositionTest(t, p).run()
		})
	}
}

// positionTest is the test of one position.
type positionTest struct {
	position
	t       *testing.T
	flags   []config.Member
	members []*Member
	stale   []int // voters that are stopped before the write is acknowledged
	earlier string
}

func newPositionTest(t *testing.T, p position) *positionTest {
	c := &positionTest{position: p, t: t}
	c.flags, c.members = quorumOf(t, p.size)
	for i := range p.size / 2 {
		c.stale = append(c.stale, (p.member%p.size+1+i)%p.size)
	}
	return c
}

func (c *positionTest) run() {
	put(c.t, c.members[0], "earlier")
	if c.procedure == joining {
		c.join()
	}
	c.restart(c.member, func() { c.earlier = copied(c.t, c.flags[c.member].DataDirectory) })
	if c.procedure == rolling {
		for i := range c.member {
			c.restart(i, func() {})
		}
	}
	for _, i := range c.stale {
		stop(c.t, c.members[i])
	}
	writer := c.writer()
	if c.procedure == scalingDown {
		c.remove(writer, c.stale[0])
	}
	put(c.t, writer, "acknowledged")
	awaitKey(c.t, c.members[c.member], "acknowledged")
	c.stopOthers()
	foreign := c.foreignData()
	for _, i := range c.stale {
		c.members[i] = start(c.t, c.flags[i])
	}
	c.applyFaults(foreign)
	for _, i := range c.stale {
		if closed(c.members[i].Ready()) {
			c.t.Errorf("m%d is ready without the acknowledged write", i)
		}
	}
	c.startOthers()
}

// join adds a learner and starts it.
func (c *positionTest) join() {
	flags := recorded(c.t, addLearner(c.t, c.flags[0], c.members[0], fmt.Sprintf("m%d", c.size)))
	c.flags, c.members = append(c.flags, flags), append(c.members, start(c.t, flags))
	awaitKey(c.t, c.members[c.size], "earlier")
}

// addLearner adds a learner to the cluster of an initial member, and returns the flags of the learner.
func addLearner(t *testing.T, initial config.Member, by *Member, name string) config.Member {
	t.Helper()
	flags := single(t)
	flags.Name, flags.ListenPeerURLs = name, []string{freeURL(t)}
	flags.PeerCertFile, flags.PeerKeyFile, flags.PeerTrustedCAFile =
		initial.PeerCertFile, initial.PeerKeyFile, initial.PeerTrustedCAFile
	eventually(t, "etcd accepts a learner", func() bool {
		_, err := by.Client().MemberAddAsLearner(t.Context(), flags.ListenPeerURLs)
		return err == nil
	})
	flags.InitialCluster = initial.InitialCluster + "," + name + "=" + flags.ListenPeerURLs[0]
	flags.InitialClusterState = "existing"
	return flags
}

// restart stops a member, calls while, and starts the member.
func (c *positionTest) restart(i int, while func()) {
	stop(c.t, c.members[i])
	while()
	c.members[i] = start(c.t, c.flags[i])
	if i < c.size {
		await(c.t, "ready", c.members[i].Ready())
	}
}

// writer returns a voter that acknowledges the write.
func (c *positionTest) writer() *Member {
	if c.member < c.size {
		return c.members[c.member]
	}
	return c.members[0] // the voters that are stopped follow the first one
}

func (c *positionTest) remove(by *Member, i int) {
	id := uint64(c.members[i].server.MemberID())
	eventually(c.t, "etcd removes a voter", func() bool {
		_, err := by.Client().MemberRemove(c.t.Context(), id)
		return err == nil
	})
}

func (c *positionTest) isStale(i int) bool {
	for _, one := range c.stale {
		if one == i {
			return true
		}
	}
	return false
}

// stopOthers stops the running members. During a roll, the tested member has lost its pod by then, and the operator has
// recorded the newest entry that the member has acknowledged.
func (c *positionTest) stopOthers() {
	m := c.members[c.member]
	awaitProgress(c.t, m)
	if c.procedure == rolling {
		c.flags[c.member].Record = config.MemberRecord{
			Volume: c.flags[c.member].Record.Volume, Started: true, MemberID: uint64(m.server.MemberID()),
			Index: m.server.AppliedIndex(), Term: m.server.Term(), Directory: c.t.TempDir(),
		}
	}
	for i, m := range c.members {
		if !c.isStale(i) {
			stop(c.t, m)
		}
	}
}

// foreignData returns the data of another member with the same name, and of another member of the cluster if there is
// one.
func (c *positionTest) foreignData() map[string]string {
	other := single(c.t)
	other.Name = c.flags[c.member].Name
	m := start(c.t, other)
	await(c.t, "ready", m.Ready())
	stop(c.t, m)
	data := map[string]string{"of another cluster": other.DataDirectory}
	for i := range c.members {
		if i != c.member {
			data["of another member"] = copied(c.t, c.flags[i].DataDirectory)
			break
		}
	}
	return data
}

// applyFaults expects that the member does not start with any fault of its volume.
func (c *positionTest) applyFaults(foreign map[string]string) {
	flags := c.flags[c.member]
	kept := copied(c.t, flags.DataDirectory)
	expect := func(name, words string) {
		c.t.Run(name, func(t *testing.T) { expectLost(t, flags, words) })
		replace(c.t, flags.DataDirectory, kept)
	}
	faults["emptied"].apply(c.t, flags.DataDirectory)
	expect("emptied", "the volume was emptied or replaced")
	replace(c.t, flags.DataDirectory, c.earlier)
	expect("put back", "the volume is an earlier copy")
	remove(c.t, logOf(flags.DataDirectory))
	expect("database without log", "no write-ahead log")
	for name, directory := range foreign {
		replace(c.t, flags.DataDirectory, directory)
		expect("data "+name, "the data")
	}
}

// startOthers starts the members that were stopped, with their own data. The acknowledged write is there.
func (c *positionTest) startOthers() {
	for i := range c.members {
		if !c.isStale(i) {
			c.members[i] = start(c.t, c.flags[i])
		}
	}
	writer := c.writer()
	await(c.t, "ready", writer.Ready())
	awaitKey(c.t, writer, "acknowledged")
	put(c.t, writer, "later")
}
