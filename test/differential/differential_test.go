package differential

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// parallel is how many scripts run at a time.
const parallel = 6

// wholeVariable is the environment variable that asks for every resource; without it there is a sample of them.
const wholeVariable = "DIFFERENTIAL_WHOLE"

// sample is the whole core group and apps, and the first two resources of every other version.
func sample(resources []Resource) []Resource {
	seen := map[schema.GroupVersion]int{}
	return slices.DeleteFunc(slices.Clone(resources), func(r Resource) bool {
		seen[r.GroupVersion()]++
		return r.Group != "" && r.Group != "apps" && seen[r.GroupVersion()] > 2
	})
}

// Scripts that see what others change, which groups there are, and that change what others see, defaults of the
// whole cluster, which addresses services get and what is said to who may nothing, run by themselves: before all others
// or after.
var (
	first = []string{"admission-defaults", "documents"}
	last  = []string{
		"apiservices",
		"networking.k8s.io/v1 servicecidrs", "networking.k8s.io/v1beta1 servicecidrs", "rbac.authorization.k8s.io/v1 clusterrolebindings",
	}
)

// TestDifferential runs every script on both servers.
func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("runs kube-apiserver")
	}
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
	pair, err := StartPair(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pair.Stop(); err != nil {
			t.Error(err)
		}
	})
	resources, err := Resources(t.Context(), pair.Genuine)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(wholeVariable) == "" {
		resources = sample(resources)
	}
	generated, err := Generate(template, resources)
	if err != nil {
		t.Fatal(err)
	}
	scripts = append(scripts, generated...)
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
	t.Log("\n" + report(scripts, results))
}

// result counts the cases of one script, and the keys in etcd that it wrote.
type result struct{ cases, equal, intended int }

// compare runs a script on both servers and compares first the answers, then what was written to etcd.
func compare(t *testing.T, pair *Pair, script *Script, intended *intended) (r result) {
	genuine, ours := runBoth(t, pair, script, intended.headers)
	for i, c := range script.Cases {
		r.count(t, intended, script.Name+"/"+c.Name, c.Method+" "+c.Path, genuine.answers[i], ours.answers[i])
	}
	keys := maps.Clone(genuine.keys)
	maps.Copy(keys, ours.keys)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		name := script.Name + "/etcd " + strings.ReplaceAll(key, script.namespace(), "${ns}")
		r.count(t, intended, name, "", genuine.keys[key], ours.keys[key])
	}
	return r
}

// count judges one pair of texts.
func (r *result) count(t *testing.T, intended *intended, name, request, genuine, ours string) {
	r.cases++
	reason, expected := intended.cases[name]
	general := slices.ContainsFunc(intended.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	switch equal := genuine == ours; {
	case equal && expected:
		t.Errorf("%s: the difference is gone that was intended because %s", name, reason)
	case equal:
		r.equal++
	case expected, general:
		r.intended++
	default:
		t.Errorf("%s: %s\n(- genuine, + ours)\n%s", name, request, cmp.Diff(strings.Split(genuine, "\n"), strings.Split(ours, "\n")))
	}
}

// texts are what is compared of one server.
type texts struct {
	answers []string          // of the cases, in order
	keys    map[string]string // histories of keys in etcd
}

// runBoth runs a script on both servers at the same time.
func runBoth(t *testing.T, pair *Pair, script *Script, hidden []string) (genuine, ours texts) {
	var both [2]texts
	var errs [2]error
	var group sync.WaitGroup
	for i, server := range []*Server{pair.Genuine, pair.Ours} {
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
	n := newNormalizer(answers, hidden)
	return texts{n.Texts(script, answers), n.HistoryTexts(Histories(script, answers, writes))}, nil
}

// report is a table of the areas, as docs/compatibility.md shows it.
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

// intended are the differences that are wanted, with their reasons.
type intended struct {
	cases    map[string]string // by script/case
	prefixes []string          // of names of cases
	headers  []string          // that only kube-apiserver sends
}

// loadIntended reads lines of "script/case: reason", "script/*: reason" and "header NAME: reason".
func loadIntended(file string) (*intended, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	read := &intended{cases: map[string]string{}}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("%s: no reason: %q", file, line)
		}
		if header, ok := strings.CutPrefix(name, "header "); ok {
			read.headers = append(read.headers, header)
			continue
		}
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			read.prefixes = append(read.prefixes, prefix)
			continue
		}
		read.cases[name] = reason
	}
	return read, nil
}
