package rotation

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the results into the scripts")

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world executes the commands of a script, one per line:
//
//	overlap DURATION                 set the overlap
//	publication DURATION             set the publication time
//	due REASON                       a rotation is due; without REASON: none is due
//	replica NAME [missing=A,B] [static=C]   create a replica, or replace the credentials that it does not use
//	unreachable NAME                 the credentials of a replica become unknown
//	restart NAME                     recreate a replica: it then has all credentials that are read at the start
//	remove NAME                      delete a replica
//	kubeconfig NAME                  add a kubeconfig that is not updated for the stage yet
//	done NAME                        update a kubeconfig
//	deployment NAME                  add a Deployment of a companion that is not updated for the stage yet
//	rolled-out NAME                  update a Deployment
//	after DURATION                   advance the clock
//	plan                             print the decision in lines that begin with ">", and enter the stage
type world struct {
	t *testing.T
	o Observation
}

func (w *world) execute(fields []string) (results []string) {
	switch command, args := fields[0], fields[1:]; command {
	case "overlap":
		w.o.Overlap = w.duration(args[0])
	case "publication":
		w.o.Publication = w.duration(args[0])
	case "due":
		w.o.Due = strings.Join(args, " ")
	case "replica":
		w.replica(args[0], args[1:])
	case "unreachable":
		w.find(args[0]).Unreachable = "connection refused"
	case "restart":
		w.find(args[0]).Static, w.find(args[0]).Created = nil, w.o.Now
	case "remove":
		w.o.Replicas = slices.DeleteFunc(w.o.Replicas, func(r Replica) bool { return r.Name == args[0] })
	case "kubeconfig":
		w.o.Kubeconfigs = append(w.o.Kubeconfigs, args[0])
	case "deployment":
		w.o.Companions = append(w.o.Companions, args[0])
	case "rolled-out":
		w.o.Companions = slices.DeleteFunc(w.o.Companions, func(name string) bool { return name == args[0] })
	case "done":
		w.o.Kubeconfigs = slices.DeleteFunc(w.o.Kubeconfigs, func(name string) bool { return name == args[0] })
	case "after":
		w.o.Now = w.o.Now.Add(w.duration(args[0]))
	case "plan":
		return w.plan()
	default:
		w.t.Fatalf("unknown command %q", command)
	}
	return nil
}

func (w *world) plan() (results []string) {
	d := Plan(w.o)
	if d.Changed(w.o) {
		results = append(results, fmt.Sprintf("> enter %q: %s", d.Next, d.Reason))
		w.o.Stage, w.o.Since = d.Next, w.o.Now
	} else {
		results = append(results, fmt.Sprintf("> %q: %s", d.Next, d.Waiting))
	}
	if len(d.Restart) > 0 {
		results = append(results, "> restart "+strings.Join(d.Restart, " "))
	}
	return results
}

func (w *world) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) find(name string) *Replica {
	i := slices.IndexFunc(w.o.Replicas, func(r Replica) bool { return r.Name == name })
	if i < 0 {
		w.o.Replicas = append(w.o.Replicas, Replica{Name: name, Created: w.o.Now})
		i = len(w.o.Replicas) - 1
	}
	return &w.o.Replicas[i]
}

func (w *world) replica(name string, credentials []string) {
	r := w.find(name)
	r.Missing, r.Static, r.Unreachable = nil, nil, ""
	for _, credential := range credentials {
		kind, list, _ := strings.Cut(credential, "=")
		if kind == "missing" {
			r.Missing = strings.Split(list, ",")
		} else {
			r.Static = strings.Split(list, ",")
		}
	}
}

func runScript(t *testing.T, script []byte) []byte {
	w := &world{t: t, o: Observation{Now: start}}
	var out bytes.Buffer
	for lines := bufio.NewScanner(bytes.NewReader(script)); lines.Scan(); {
		text := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(text, "> ") {
			continue
		}
		fmt.Fprintln(&out, lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		for _, result := range w.execute(strings.Fields(text)) {
			fmt.Fprintln(&out, "  "+result)
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
			got := runScript(t, script)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if !bytes.Equal(got, script) {
				t.Errorf("got:\n%s\nwant (%s):\n%s", got, file, script)
			}
		})
	}
}

func TestDue(t *testing.T) {
	at := func(hours int) time.Time { return start.Add(time.Duration(hours) * time.Hour) }
	request := at(10)
	for name, c := range map[string]struct {
		created, renewal time.Time
		before           *time.Time
		now              time.Time
		due              bool
	}{
		"young":                       {at(0), at(100), nil, at(1), false},
		"old":                         {at(0), at(100), nil, at(100), true},
		"never by age":                {at(0), time.Time{}, nil, at(1000), false},
		"requested":                   {at(0), at(100), &request, at(10), true},
		"requested for later":         {at(0), at(100), &request, at(9), false},
		"created since the request":   {at(11), at(100), &request, at(12), false},
		"created at the request":      {at(10), at(100), &request, at(12), false},
		"requested, and old since":    {at(11), at(100), &request, at(101), true},
		"zero creation and a request": {time.Time{}, time.Time{}, &request, at(12), true},
	} {
		if got := Due(c.created, c.renewal, c.before, c.now); (got != "") != c.due {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
