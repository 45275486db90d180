package etcd

import (
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// describeDifference returns a text that says which voters have different data at a revision, and what happens next. It
// returns "" if the result of the comparison is not a difference.
func (m *Member) describeDifference(
	result agreement, revision int64, hashes map[types.ID]string, voters []types.ID,
) string {
	if result != undecided && result != deviates {
		return ""
	}
	names := map[types.ID]string{}
	for _, id := range voters {
		names[id] = id.String()
		if member := m.server.Cluster().Member(id); member != nil && member.Name != "" {
			names[id] = member.Name
		}
	}
	return describeHashes(result, revision, hashes, names)
}

// describeHashes groups the names of the voters by the hash of their data.
func describeHashes(result agreement, revision int64, hashes map[types.ID]string, names map[types.ID]string) string {
	equal, missing := map[string][]string{}, []string{}
	for id, name := range names {
		if sum, ok := hashes[id]; ok {
			equal[sum] = append(equal[sum], name)
		} else {
			missing = append(missing, name)
		}
	}
	var groups []string
	for _, members := range equal {
		slices.Sort(members)
		groups = append(groups, strings.Join(members, " and "))
	}
	slices.Sort(groups)
	slices.Sort(missing)
	text := fmt.Sprintf("at revision %d, the data of %s differs from that of %s", revision, groups[0],
		strings.Join(groups[1:], ", and from that of "))
	if len(missing) > 0 {
		text += "; " + strings.Join(missing, " and ") + " did not respond"
	}
	if result == deviates {
		return text + "; a member that differs from the majority stops when all voters respond, and is replaced"
	}
	return text + "; no data has a majority of the voters, so the members cannot know which is right"
}
