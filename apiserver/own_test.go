package apiserver

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// unlimited are the numbers of clients in each file whose writes have no limit, because they only read, or because
// their writes are part of clients' requests.
var unlimited = map[string]int{
	"admission.go": 2, // looks up namespaces; allocates the addresses and ports of Services
	"cluster.go":   1, // actions such as bindings and evictions
	"auth.go":      1, // looks up service accounts and their Secrets
	"custom.go":    1, // reads the progress of following definitions
	"kubelets.go":  1, // looks up nodes and pods
	"local.go":     1, // informers
	"peers.go":     1, // looks up identity leases
	"rbac.go":      1, // follows roles and bindings
	"services.go":  1, // follows Services and their addresses
}

var (
	ownClient = regexp.MustCompile(`s\.objects(?:\.(\w+)(?:\("([a-z-]+)"\))?|[,)])`)
	reading   = regexp.MustCompile(`^(List|Follow\w*|AwaitFollowed)$`)
)

// TestControllersAreLimited checks that each of the server's controllers writes through a client of its own name.
func TestControllersAreLimited(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		if file == "own_test.go" {
			continue
		}
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		unnamed := 0
		for _, use := range ownClient.FindAllStringSubmatch(string(content), -1) {
			switch {
			case use[1] == "Named":
				names = append(names, use[2])
			case !reading.MatchString(use[1]):
				unnamed++
			}
		}
		if unnamed != unlimited[file] {
			t.Errorf("%s has %d clients without a name, want %d: name those of controllers, so that their writes are limited",
				file, unnamed, unlimited[file])
		}
	}
	slices.Sort(names)
	if unique := slices.Compact(slices.Clone(names)); len(unique) != len(names) || len(names) < 8 {
		t.Errorf("names of controllers: %v, want each once", names)
	}
}
