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
)

var update = flag.Bool("update", false, "write the actions that happen into the scripts")

// A script changes the world line by line:
//
//	want REPLICAS VOTERS    what the spec says
//	external                etcd is somebody else's
//	run                     plan, act and let time pass until all is quiet; below it, the actions: "  > action"
//	step                    plan and act once
//	tick                    let time pass
//	kill NAME               the pod object is deleted
//	fail NAME               the pod ends for good
//	wipe NAME               the claim is deleted
//	unbind NAME             the volume is gone, the claim is not
//	down NAME / up NAME     the process hangs / comes back
//	stuck NAME              as a learner it never catches up
//	lost NAME               it has been unhealthy for too long
//	orphan NAME             somebody adds a learner
//	lead NAME               it becomes the leader
//	outdate                 the spec of all pods changes
//	forget                  the intent is lost
//	state                   below it, the members and what else is there: "  = line"
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
		w.t.Fatalf("no such command: %s", command)
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

// play runs a script and returns it with what really happened.
func play(t *testing.T, w *world, script []byte) []byte {
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
			t.Fatalf("at %q; so far:\n%s", text, out.String())
		}
	}
	return out.Bytes()
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, newWorld(t), script)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if !*update && !bytes.Equal(got, script) {
				t.Errorf("%s says:\n%s\nwhat happened:\n%s", file, script, got)
			}
		})
	}
}
