package backup

import "strings"

// UpgradePolicy selects the image changes before which a backup is taken.
type UpgradePolicy string

// Policies.
const (
	EtcdMinorVersion UpgradePolicy = "EtcdMinorVersion" // if the image has, or may have, another minor version of etcd
	Always           UpgradePolicy = "Always"
	Never            UpgradePolicy = "Never"
)

// UpgradeState is the state of the backup before an upgrade.
type UpgradeState string

// The states of the backup.
const (
	UpgradeNone      UpgradeState = ""
	UpgradeDeleted   UpgradeState = "Deleted" // recorded, but deleted to be repeated, or not created yet
	UpgradeSkipped   UpgradeState = "Skipped" // there was no destination
	UpgradePending   UpgradeState = "Pending"
	UpgradeCompleted UpgradeState = "Completed"
	UpgradeFailed    UpgradeState = "Failed"
)

// Upgrade is the input of BeforeUpgrade: a change of the image.
type Upgrade struct {
	Policy      UpgradePolicy
	Voters      int
	Former      []string // etcd versions of the members that run the former image; "": the member is unreachable
	Next        []string // known etcd versions of the image
	Destination bool     // a destination is configured
	Backup      UpgradeState
}

// UpgradeStep is the step to take before the next member gets the image.
type UpgradeStep string

// The steps.
const (
	Proceed    UpgradeStep = "Proceed"
	SkipBackup UpgradeStep = "SkipBackup" // record that there is no destination, and proceed
	TakeBackup UpgradeStep = "TakeBackup"
	Hold       UpgradeStep = "Hold" // until the backup is completed, or deleted to be repeated
)

// BeforeUpgrade returns the next step of an upgrade. The etcd version of an image is unknown until a member runs it.
// With several voters, the first one may therefore run the image before the backup is taken: etcd changes its data
// only after all members run the new version. With a single voter, the backup always comes first. A backup that has
// started is awaited until all versions are known and none requires one.
func BeforeUpgrade(u Upgrade) UpgradeStep {
	switch {
	case len(u.Former) == 0, u.Policy == Never, u.Policy != Always && !u.changesEtcd():
		return Proceed
	case u.Backup == UpgradeCompleted, u.Backup == UpgradeSkipped:
		return Proceed
	case u.Backup != UpgradeNone && u.Backup != UpgradeDeleted:
		return Hold
	case !u.Destination:
		return SkipBackup
	}
	return TakeBackup
}

// changesEtcd reports whether the image has, or may have, another minor version of etcd.
func (u Upgrade) changesEtcd() bool {
	if len(u.Next) == 0 {
		return u.Voters == 1 || u.Backup != UpgradeNone
	}
	for _, former := range u.Former {
		for _, next := range u.Next {
			if minor(former) != minor(next) {
				return true
			}
		}
	}
	return false
}

// minor returns the first two parts of a version, and "" of an unknown one.
func minor(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}
