package membership

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the results in the scripts")

// execute runs one line of a script:
//
//	want REPLICAS VOTERS    set the desired replicas and voters
//	external                use an external etcd
//	run                     plan, act and advance the time until nothing changes; results are the actions: "  > action"
//	step                    plan and act once
//	tick                    advance the time
//	kill NAME               delete the pod
//	fail NAME               terminate the pod's containers
//	wipe NAME               delete the claim
//	unbind NAME             lose the volume, but not its claim
//	down NAME / up NAME     hang the process / let it continue
//	stuck NAME              never let it catch up as a learner
//	refuse NAME             empty its volume and restart it: it does not start again
//	keep NAME               stop it because it has acknowledged writes that the others lack
//	unproven NAME           let it perhaps have acknowledged writes that the others lack, while it is down
//	give-up NAME            let the user request its replacement
//	replaced NAME           delete its claim and create another one with the same name
//	lost NAME               let it have been unhealthy for too long
//	orphan NAME             add a learner that the operator does not know
//	lead NAME               make it the leader
//	outdate                 change the spec of all pods
//	forget                  lose the intent
//	revision NAME NUMBER    set the revision that a member reports without a quorum
//	recover [NAME|backup]   request a recovery: from the best survivor, from NAME, or from a backup
//	recovered               the data of the recovered member is prepared
//	restore / restored      a backup has to be restored / is restored
//	database NAME SIZE INUSE QUOTA [nospace]   set the use of a member's database, in MiB
//	full NAME               let defragmentations of a member fail
//	break                   let the response to the present defragmentation be an error
//	restart-operator        lose the responses that the operator waits for
//	hold-upgrade [TEXT]     set why outdated members keep their image
//	hold [TEXT]             set why rollouts and routine defragmentations wait
//	after DURATION          advance the clock
//	state                   results are the members, servers and claims: "  = line"
func (w *world) execute(fields []string) []string {
	name := ""
	if len(fields) > 1 {
		name = fields[1]
	}
	w.trace = nil
	switch fields[0] {
	case "want":
		w.replicas, w.voters = number(fields[1]), number(fields[2])
	case "external":
		w.external = true
	case "run":
		w.run()
		return prefixed("> ", w.trace)
	case "step":
		w.step()
		return prefixed("> ", w.trace)
	case "state":
		return prefixed("= ", w.state())
	case "tick":
		w.tick()
	case "kill":
		delete(w.pods, name)
	case "wipe":
		delete(w.claims, name)
	case "unbind":
		w.claims[name].Lost = true
	case "forget":
		w.intent = Intent{}
	case "recover":
		replacing := w.recovery.Stage != NoRecovery
		w.recovery = Recovery{Stage: RecoveryRequested, Replacing: replacing, FromBackup: name == "backup"}
		if name != "backup" {
			w.recovery.Member = name
		}
	case "recovered":
		w.recovery, w.restoring = Recovery{}, false
	case "revision":
		w.revisionOf[name] = int64(number(fields[2]))
	case "database":
		w.databases[name] = Database{
			Size: int64(number(fields[2])) << 20, InUse: int64(number(fields[3])) << 20, Quota: int64(number(fields[4])) << 20,
			NoSpace: len(fields) > 5,
		}
	case "break":
		w.failure = "connection lost"
	case "full":
		w.full[name] = true
	case "restart-operator":
		w.request = ""
	case "hold-upgrade":
		w.upgradeHeld = strings.Join(fields[1:], " ")
	case "hold":
		w.held = strings.Join(fields[1:], " ")
	case "after":
		passed, err := time.ParseDuration(name)
		if err != nil {
			w.t.Fatal(err)
		}
		w.now = w.now.Add(passed)
	case "restore", "restored":
		w.restoring = fields[0] == "restore"
	default:
		w.disturb(fields[0], name)
	}
	return nil
}

func (w *world) disturb(command, name string) {
	switch command {
	case "fail":
		w.pods[name].Failed, w.pods[name].Ready = true, false
	case "down":
		w.down[name] = true
	case "up":
		delete(w.down, name)
	case "stuck":
		w.stuck[name] = true
	case "lost":
		w.lost[name] = true
	case "refuse":
		w.refuses[name] = true
	case "keep":
		w.kept[name], w.claims[name].Kept = true, true
	case "unproven":
		w.unproven[name] = true
	case "give-up":
		delete(w.kept, name)
		w.down[name], w.lost[name] = true, true
	case "replaced":
		w.claims[name].Replaced = true
	case "orphan":
		w.nextID++
		w.members = append(w.members, Member{ID: w.nextID, Name: name, Learner: true})
	case "lead":
		for i := range w.members {
			w.members[i].Leader = w.members[i].Name == name
		}
	case "outdate":
		for _, p := range w.pods {
			p.Outdated = true
		}
	default:
		w.t.Fatalf("unknown command %q", command)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func prefixed(prefix string, lines []string) []string {
	out := make([]string, 0, len(lines))
	for _, line := range lines {
		out = append(out, "  "+prefix+line)
	}
	return out
}

// play runs a script and returns it with the actual results.
func runScript(t *testing.T, w *world, script []byte) []byte {
	var out bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		text := strings.TrimSpace(line)
		if strings.HasPrefix(text, "> ") || strings.HasPrefix(text, "= ") {
			continue
		}
		fmt.Fprintln(&out, line)
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		for _, result := range w.execute(strings.Fields(text)) {
			fmt.Fprintln(&out, result)
		}
		if t.Failed() {
			t.Fatalf("failed at %q:\n%s", text, out.String())
		}
	}
	return out.Bytes()
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata has no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, newWorld(t), script)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if !*update && !bytes.Equal(got, script) {
				t.Errorf("got:\n%s\nwant (%s):\n%s", got, file, script)
			}
		})
	}
}
