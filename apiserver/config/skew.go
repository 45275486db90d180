package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"
)

// PreviousVersionVariable is the environment variable with the Kubernetes version that the API servers of the cluster have
// run so far, such as v1.36.3. The operator sets it. It is no flag, because an image that does not know it must start too.
const PreviousVersionVariable = "QUORATE_PREVIOUS_VERSION"

// DamagedDataExitCode is the exit code of an API server whose embedded member cannot start because its data is damaged. The
// operator replaces such a member.
const DamagedDataExitCode = 3

// LostDataExitCode is the exit code of an API server whose embedded member must not start, because its data directory does
// not have the data that the member has voted with: it is empty, an earlier copy, or the data of another member. The operator
// replaces such a member if the others have a quorum.
const LostDataExitCode = 4

// CheckSkew returns an error if this server must not replace one of another version: upgrades go from one minor version
// to the next, and nothing that a newer minor version has stored can be relied on to be readable. "" is not checked.
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
		return fmt.Errorf("this API server is Kubernetes %s and the cluster has run %s: a downgrade to an older minor version "+
			"is not supported; use an image of %d.%d or %s", own, previous, from.Major(), from.Minor(), next)
	case next.LessThan(own):
		return fmt.Errorf("this API server is Kubernetes %s and the cluster has run %s: minor versions cannot be skipped; "+
			"upgrade to an image of %s first", own, previous, next)
	}
	return nil
}
