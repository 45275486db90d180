package differential

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// parallel is the number of scripts that run concurrently.
const parallel = 6

// wholeVariable is the environment variable that selects all resources instead of a sample.
const wholeVariable = "DIFFERENTIAL_WHOLE"

// patience bounds the waits for the servers' controllers.
const patience = 30 * time.Second

// sample selects all resources of the core group and of apps, and the first two resources of every other version.
func sample(resources []Resource) []Resource {
	seen := map[schema.GroupVersion]int{}
	return slices.DeleteFunc(slices.Clone(resources), func(r Resource) bool {
		seen[r.GroupVersion()]++
		return r.Group != "" && r.Group != "apps" && seen[r.GroupVersion()] > 2
	})
}

// first and last are scripts that run alone, before or after all others, because they depend on cluster-wide state or
// change it (API groups, defaults, Service addresses, messages for users without permissions, pages of a cluster-scoped
// resource that other scripts create), or depend on the age of events.
var (
	first = []string{"admission-defaults", "documents", "watch", "watch-old"}
	last  = []string{
		"apiextensions.k8s.io/v1 customresourcedefinitions", "apiservices", "crd-groups", "fairness",
		"networking.k8s.io/v1 servicecidrs", "networking.k8s.io/v1beta1 servicecidrs",
		"rbac.authorization.k8s.io/v1 clusterrolebindings",
	}
)

// shortStep is the distance of the scripts that TestDifferential runs without -run.
const shortStep = 8

// every returns every nth script, beginning with the first.
func every(n int, scripts []*Script) []*Script {
	var out []*Script
	for i := 0; i < len(scripts); i += n {
		out = append(out, scripts[i])
	}
	return out
}

// startPairOf starts both servers with additional flags, and stops them at the end of the test.
func startPairOf(t *testing.T, flags ...string) *Pair {
	t.Helper()
	pair, err := StartPair(t.Context(), t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	return pair
}

// TestDifferential runs each script on both servers. Without -run, it runs every eighth script.
func TestDifferential(t *testing.T) {
	upstream.NeedsProcesses(t)
	scripts, err := LoadScripts("testdata")
	if err != nil {
		t.Fatal(err)
	}
	template, err := LoadTemplate("testdata/regular.template")
	if err != nil {
		t.Fatal(err)
	}
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	pair := startPairOf(t)
	resources, err := Resources(t.Context(), pair.Upstream)
	if err != nil {
		t.Fatal(err)
	}
	whole := os.Getenv(wholeVariable) != ""
	if !whole {
		resources = sample(resources)
	}
	generated, err := Generate(template, resources)
	if err != nil {
		t.Fatal(err)
	}
	scripts = append(scripts, generated...)
	if !upstream.Selected() {
		scripts = every(shortStep, scripts)
	}
	results := compareScripts(t, pair, scripts, intended)
	if whole { // takes up to 15 s, until kube-apiserver looks for compactions
		t.Run("compacted", func(t *testing.T) { compareCompacted(t, compact(t, pair)) })
	}
	t.Log("\n" + report(scripts, results))
	if slices.ContainsFunc(results, func(r result) bool { return r.cases == 0 }) {
		return // -run selects some by name
	}
	if whole {
		t.Run("documented table", func(t *testing.T) { compareDocumented(t, report(scripts, results)) })
	}
	t.Run("rest of etcd", func(t *testing.T) { compareRest(t, pair, intended) })
	for _, name := range intended.unmatched() {
		if whole || slices.ContainsFunc(scripts, func(s *Script) bool { return strings.HasPrefix(name, s.Name+"/") }) {
			t.Errorf("testdata/intended.txt: there is no case %s", name)
		}
	}
}

// compareScripts runs scripts on both servers and returns the results in the same order: first the scripts that need a
// new server, then most of the others at the same time, and at the end the ones that disturb others.
func compareScripts(t *testing.T, pair *Pair, scripts []*Script, intended *intended) []result {
	results := make([]result, len(scripts))
	slots := make(chan struct{}, parallel)
	alone := func(names []string) {
		for i, script := range scripts {
			if slices.Contains(names, script.Name) {
				t.Run(script.Name, func(t *testing.T) { results[i] = compare(t, pair, script, intended) })
			}
		}
	}
	alone(first)
	t.Run("scripts", func(t *testing.T) {
		for i, script := range scripts {
			if slices.Contains(first, script.Name) || slices.Contains(last, script.Name) {
				continue
			}
			t.Run(script.Name, func(t *testing.T) {
				t.Parallel()
				slots <- struct{}{}
				defer func() { <-slots }()
				results[i] = compare(t, pair, script, intended)
			})
		}
	})
	alone(last)
	return results
}

// compareDocumented compares the table with docs/compatibility.md.
func compareDocumented(t *testing.T, table string) {
	const document = "../../docs/compatibility.md"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n\n"+table+"\n") {
		t.Errorf("%s has another table; replace it by:\n%s", document, table)
	}
}

// compareRest compares the keys in etcd that no script has written, after the controllers of both servers have
// finished.
func compareRest(t *testing.T, pair *Pair, intended *intended) {
	const name = "rest of etcd"
	var theirs, ours, keys map[string]string
	same := func(context.Context) (done bool, err error) {
		if theirs, err = pair.Upstream.Etcd.Rest(t.Context()); err != nil {
			return false, err
		}
		if ours, err = pair.Ours.Etcd.Rest(t.Context()); err != nil {
			return false, err
		}
		keys = maps.Clone(theirs)
		maps.Copy(keys, ours)
		return !slices.ContainsFunc(slices.Collect(maps.Keys(keys)), func(key string) bool {
			return theirs[key] != ours[key] && !intended.allows(name+key, theirs[key], ours[key])
		}), nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Second, patience, true, same); err != nil &&
		!wait.Interrupted(err) {
		t.Fatal(err)
	}
	var r result
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		r.count(t, intended, name+key, "", theirs[key], ours[key])
	}
}

// result counts the cases of one script and the keys in etcd that it has written.
type result struct{ cases, equal, intended int }

// compare runs a script on both servers and compares the responses and the writes to etcd.
func compare(t *testing.T, pair *Pair, script *Script, intended *intended) (r result) {
	theirs, ours := runBoth(t, pair, script, intended.headers)
	ours.followRedraws(theirs)
	for i, c := range script.Cases {
		name := script.Name + "/" + c.Name
		for _, failures := range []string{theirs.failures[i], ours.failures[i]} {
			if failures != "" {
				t.Errorf("%s: %s", name, failures)
			}
		}
		r.count(t, intended, name, c.Method+" "+c.Path, theirs.answers[i], ours.answers[i])
	}
	keys := maps.Clone(theirs.keys)
	maps.Copy(keys, ours.keys)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		name := script.Name + "/etcd " + strings.ReplaceAll(key, script.namespace(), "${ns}")
		r.count(t, intended, name, "", theirs.keys[key], ours.keys[key])
	}
	return r
}

// count compares two texts and counts the result.
func (r *result) count(t *testing.T, intended *intended, name, request, theirs, ours string) {
	r.cases++
	wanted := intended.of(name)
	switch equal := theirs == ours; {
	case equal && wanted != nil && !wanted.isGeneral():
		t.Errorf("%s: no difference, although one is intended: %s", name, wanted.reason)
	case equal:
		r.equal++
	case intended.allows(name, theirs, ours):
		r.intended++
	default:
		t.Errorf("%s: %s\n(- kube-apiserver, + ours)\n%s", name, request,
			cmp.Diff(strings.Split(theirs, "\n"), strings.Split(ours, "\n")))
	}
}

// texts are the compared texts of one server for one script.
type texts struct {
	answers  []string          // responses of the cases, in order
	failures []string          // waits and captures of the cases that have failed
	keys     map[string]string // histories of keys in etcd
}

// runBoth runs a script on both servers concurrently.
func runBoth(t *testing.T, pair *Pair, script *Script, hidden []string) (theirs, ours texts) {
	var both [2]texts
	var errs [2]error
	var group sync.WaitGroup
	for i, server := range []*Server{pair.Upstream, pair.Ours} {
		hidden := hidden
		if server == pair.Ours {
			hidden = nil
		}
		group.Go(func() { both[i], errs[i] = runOne(t.Context(), server, script, hidden) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return both[0], both[1]
}

func runOne(ctx context.Context, server *Server, script *Script, hidden []string) (texts, error) {
	before, err := server.Etcd.Now(ctx)
	if err != nil {
		return texts{}, err
	}
	answers, err := Run(ctx, server, script)
	if err != nil {
		return texts{}, err
	}
	writes, err := server.Etcd.Since(ctx, before)
	if err != nil {
		return texts{}, err
	}
	histories := Histories(script, answers, writes)
	server.Etcd.Account(histories)
	n := newNormalizer(script, answers, server.Began, hidden)
	return texts{n.Texts(script, answers), failures(server, answers), n.HistoryTexts(histories)}, nil
}

// failures returns the waits and captures of each case that have failed.
func failures(server *Server, answers []Answer) []string {
	said := make([]string, len(answers))
	for i, answer := range answers {
		if len(answer.Failures) > 0 {
			said[i] = server.Name + ": " + strings.Join(answer.Failures, "; ")
		}
	}
	return said
}

// report returns the table of areas in docs/compatibility.md.
func report(scripts []*Script, results []result) string {
	var b strings.Builder
	b.WriteString("| area | cases | equal | intended | different |\n| --- | --: | --: | --: | --: |\n")
	var order []string
	sums := map[string]result{}
	var all result
	for i, script := range scripts {
		area := script.Area
		if _, ok := sums[area]; !ok {
			order = append(order, area)
		}
		sums[area] = sums[area].plus(results[i])
		all = all.plus(results[i])
	}
	for _, area := range order {
		sums[area].row(&b, area)
	}
	all.row(&b, "all")
	return b.String()
}

func (r result) plus(other result) result {
	return result{r.cases + other.cases, r.equal + other.equal, r.intended + other.intended}
}

func (r result) row(b *strings.Builder, area string) {
	fmt.Fprintf(b, "| %s | %d | %d | %d | %d |\n", area, r.cases, r.equal, r.intended, r.cases-r.equal-r.intended)
}
