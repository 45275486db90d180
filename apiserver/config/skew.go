package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// PreviousVersionVariable is the environment variable with the Kubernetes version that the API servers of the cluster
// have run so far, such as v1.36.3. The operator sets it. It is not a flag, because an image that does not know it must
// also start.
const PreviousVersionVariable = "QUORATE_PREVIOUS_VERSION"

// DamagedDataExitCode is the exit code of an API server whose embedded member cannot start because its data is damaged.
// The operator replaces such a member.
const DamagedDataExitCode = 3

// LostDataExitCode is the exit code of an API server whose embedded member must not start, because its data directory
// does not have the data with which the member has voted: the directory is empty, an earlier copy, or has the data of
// another member. The operator replaces such a member if the other members have a quorum.
const LostDataExitCode = 4

// LostWritesExitCode is the exit code of an API server whose embedded member has acknowledged writes that the other
// members lack. The operator keeps the volume of such a member, and replaces the member only when the user requests it.
const LostWritesExitCode = 5

// CheckSkew returns an error if the cluster, whose API servers have run the previous version, must not be served by
// this server's version. Upgrades go from one minor version to the next. Downgrades are rejected, because an older
// minor version may be unable to read objects that a newer version has stored. An empty previous version is not
// checked.
func CheckSkew(previous string) error {
	if previous == "" {
		return nil
	}
	from, err := version.ParseSemantic(previous)
	if err != nil {
		return fmt.Errorf("%s: %w", PreviousVersionVariable, err)
	}
	own := version.MustParse(KubernetesMajor + "." + KubernetesMinor)
	next := version.MajorMinor(from.Major(), from.Minor()+1)
	switch {
	case own.LessThan(version.MajorMinor(from.Major(), from.Minor())):
		return fmt.Errorf("this API server is Kubernetes %s and the cluster has run %s: a downgrade to an older minor "+
			"version is not supported; use an image of %d.%d or %s", own, previous, from.Major(), from.Minor(), next)
	case next.LessThan(own):
		return fmt.Errorf("this API server is Kubernetes %s and the cluster has run %s: minor versions cannot be skipped; "+
			"upgrade to an image of %s first", own, previous, next)
	}
	return nil
}
