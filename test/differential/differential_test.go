package differential

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/google/go-cmp/cmp"
)

// parallel is how many scripts run at a time.
const parallel = 6

// alone is the script that sees what the others change: which groups there are.
const alone = "documents"

// TestDifferential runs every script on both servers.
func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("runs kube-apiserver")
	}
	scripts, err := LoadScripts("testdata")
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
	results := make([]result, len(scripts))
	slots := make(chan struct{}, parallel)
	for i, script := range scripts {
		if script.Name == alone {
			t.Run(alone, func(t *testing.T) { results[i] = compare(t, pair, script, intended) })
		}
	}
	t.Run("scripts", func(t *testing.T) {
		for i, script := range scripts {
			if script.Name == alone {
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
	t.Log("\n" + report(scripts, results))
}

// result counts the cases of one script.
type result struct{ cases, equal, intended int }

func compare(t *testing.T, pair *Pair, script *Script, intended map[string]string) (r result) {
	genuine, ours := runBoth(t, pair, script)
	r.cases = len(script.Cases)
	for i, c := range script.Cases {
		name := script.Name + "/" + c.Name
		reason, expected := intended[name]
		switch equal := genuine[i] == ours[i]; {
		case equal && expected:
			t.Errorf("%s: the difference is gone that was intended because %s", name, reason)
		case equal:
			r.equal++
		case expected:
			r.intended++
		default:
			t.Errorf("%s: %s %s\n(- genuine, + ours)\n%s", name, c.Method, c.Path,
				cmp.Diff(strings.Split(genuine[i], "\n"), strings.Split(ours[i], "\n")))
		}
	}
	return r
}

// runBoth runs a script on both servers at the same time and returns the normalized answers.
func runBoth(t *testing.T, pair *Pair, script *Script) (genuine, ours []string) {
	var answers [2][]Answer
	var errs [2]error
	var group sync.WaitGroup
	for i, server := range []*Server{pair.Genuine, pair.Ours} {
		group.Go(func() { answers[i], errs[i] = Run(t.Context(), server, script) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return Normalize(script, answers[0]), Normalize(script, answers[1])
}

// report is a table of the areas: the part of a script's name before the first dash.
func report(scripts []*Script, results []result) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "area\tcases\tequal\tintended\tdifferent")
	var order []string
	sums := map[string]result{}
	var all result
	for i, script := range scripts {
		area, _, _ := strings.Cut(script.Name, "-")
		if _, ok := sums[area]; !ok {
			order = append(order, area)
		}
		sums[area] = sums[area].plus(results[i])
		all = all.plus(results[i])
	}
	for _, area := range order {
		sums[area].row(w, area)
	}
	all.row(w, "all")
	w.Flush()
	return b.String()
}

func (r result) plus(other result) result {
	return result{r.cases + other.cases, r.equal + other.equal, r.intended + other.intended}
}

func (r result) row(w *tabwriter.Writer, area string) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", area, r.cases, r.equal, r.intended, r.cases-r.equal-r.intended)
}

// loadIntended reads lines of "script/case: reason".
func loadIntended(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	intended := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("%s: no reason: %q", file, line)
		}
		intended[name] = reason
	}
	return intended, nil
}
