package backup

import "strings"

// UpgradePolicy selects the changes of the image before which a backup is taken.
type UpgradePolicy string

// The upgrade policies.
const (
	EtcdMinorVersion UpgradePolicy = "EtcdMinorVersion" // if the minor version of etcd changes, or may change
	Always           UpgradePolicy = "Always"
	Never            UpgradePolicy = "Never"
)

// UpgradeState is the state of the backup that is taken before an upgrade.
type UpgradeState string

// The states of the backup.
const (
	UpgradeNone      UpgradeState = ""
	UpgradeDeleted   UpgradeState = "Deleted" // recorded, but it was deleted or is not created yet
	UpgradeSkipped   UpgradeState = "Skipped" // recorded that no destination was configured
	UpgradePending   UpgradeState = "Pending"
	UpgradeCompleted UpgradeState = "Completed"
	UpgradeFailed    UpgradeState = "Failed"
)

// Upgrade is the input of BeforeUpgrade: the state of a change of the image while some members run the former image.
type Upgrade struct {
	Policy      UpgradePolicy
	Voters      int
	Former      []string // etcd versions of the members with the former image; "": the member is unreachable
	Next        []string // known etcd versions of the next image
	Destination bool     // a destination for the backup is configured
	Backup      UpgradeState
}

// UpgradeStep is the step to take before the next member gets the new image.
type UpgradeStep string

// The steps.
const (
	Proceed    UpgradeStep = "Proceed"
	SkipBackup UpgradeStep = "SkipBackup" // record that there is no destination, and proceed
	TakeBackup UpgradeStep = "TakeBackup"
	Hold       UpgradeStep = "Hold" // wait until the backup is completed, or deleted so that another one is taken
)

// BeforeUpgrade returns the next step of an upgrade. The etcd version of an image may be unknown until a member runs
// it. With several voters, the first of them may therefore get the new image before the backup is taken: etcd changes
// its storage version only after all members run the new version, so a backup taken then can still be restored with the
// former version. With a single voter the backup always comes first. Once a backup has been recorded, the upgrade waits
// for it until all versions are known and do not require a backup.
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

// changesEtcd reports whether the upgrade changes the minor version of etcd, or may change it.
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

// minor returns the major and minor part of a version, such as "3.6", or "" if the version is unknown.
func minor(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}
