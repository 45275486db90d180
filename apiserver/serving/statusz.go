package serving

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/clock"
)

// Statusz serves /statusz: the start time and versions of this process, and its paths for debugging. paths returns all
// paths of the index.
func Statusz(build version.Info, started time.Time, c clock.PassiveClock, paths func() []string) http.Handler {
	return pageHandler{statusz{build: build, started: started, clock: c, paths: paths}}
}

type statusz struct {
	build   version.Info
	started time.Time
	clock   clock.PassiveClock
	paths   func() []string
}

func (statusz) path() string { return "/statusz" }
func (statusz) kind() string { return "Statusz" }

func (s statusz) writeText(w io.Writer) {
	up := s.uptime()
	_, _ = fmt.Fprintf(w, "\nStarted: %s\nUp: %d hr %02d min %02d sec\nGo version: %s\nBinary version: %s\nEmulation "+
		"version: %s\nPaths: %s\n",
		s.started.Format(time.UnixDate), up/3600, up/60%60, up%60, s.build.GoVersion, s.version(), s.emulated(),
		strings.Join(debugging(s.paths()), " "))
}

func (s statusz) object(header pageHeader) runtime.Object {
	return &statuszObject{
		pageHeader: header, StartTime: metav1.NewTime(s.started), UptimeSeconds: s.uptime(), GoVersion: s.build.GoVersion,
		BinaryVersion: s.version(), EmulationVersion: s.emulated(), Paths: debugging(s.paths()),
	}
}

// uptime returns the uptime in whole seconds.
func (s statusz) uptime() int64 { return int64(s.clock.Since(s.started) / time.Second) }

// version returns the Kubernetes version with the patch version, and without the suffix of this server's own versions.
func (s statusz) version() string {
	parsed, err := utilversion.Parse(s.build.GitVersion)
	if err != nil {
		return s.build.Major + "." + s.build.Minor
	}
	return fmt.Sprintf("%d.%d.%d", parsed.Major(), parsed.Minor(), parsed.Patch())
}

func (s statusz) emulated() string { return s.build.EmulationMajor + "." + s.build.EmulationMinor }

// statuszObject is the page as an object of the group config.k8s.io.
type statuszObject struct {
	pageHeader       `json:",inline"`
	StartTime        metav1.Time `json:"startTime"`
	UptimeSeconds    int64       `json:"uptimeSeconds"`
	GoVersion        string      `json:"goVersion"`
	BinaryVersion    string      `json:"binaryVersion"`
	EmulationVersion string      `json:"emulationVersion,omitempty"`
	Paths            []string    `json:"paths"`
}

// DeepCopyObject implements runtime.Object.
func (o *statuszObject) DeepCopyObject() runtime.Object {
	copied := *o
	copied.Paths = slices.Clone(o.Paths)
	return &copied
}

// apiPaths are the first segments of the paths that are not for debugging.
var apiPaths = []string{"", "api", "apis", "openid", "openapi", ".well-known"}

// debugging returns the sorted first segments, with a slash, of the paths that are for debugging.
func debugging(paths []string) []string {
	found := map[string]bool{}
	for _, path := range paths {
		first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !slices.Contains(apiPaths, first) {
			found["/"+first] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
