package backup

import "testing"

func TestBeforeUpgrade(t *testing.T) {
	old, patch, next := []string{"3.6.4"}, []string{"3.6.9"}, []string{"3.7.0"}
	for name, c := range map[string]struct {
		upgrade Upgrade
		want    UpgradeStep
	}{
		"nothing runs the former image": {Upgrade{Voters: 3, Next: next, Destination: true}, Proceed},
		"first of three members":        {Upgrade{Voters: 3, Former: old, Destination: true}, Proceed},
		"same minor":                    {Upgrade{Voters: 3, Former: old, Next: patch, Destination: true}, Proceed},
		"other minor":                   {Upgrade{Voters: 3, Former: old, Next: next, Destination: true}, TakeBackup},
		"one of the former ones is newer": {
			Upgrade{Voters: 3, Former: []string{"3.7.0", "3.6.4"}, Next: next, Destination: true}, TakeBackup,
		},
		"pending":                        {Upgrade{Voters: 3, Former: old, Next: next, Backup: UpgradePending}, Hold},
		"failed":                         {Upgrade{Voters: 3, Former: old, Next: next, Backup: UpgradeFailed}, Hold},
		"completed":                      {Upgrade{Voters: 3, Former: old, Next: next, Backup: UpgradeCompleted}, Proceed},
		"no destination":                 {Upgrade{Voters: 3, Former: old, Next: next}, SkipBackup},
		"no destination, recorded":       {Upgrade{Voters: 3, Former: old, Next: next, Backup: UpgradeSkipped}, Proceed},
		"single member, unknown version": {Upgrade{Voters: 1, Former: old, Destination: true}, TakeBackup},
		"single member, same minor":      {Upgrade{Voters: 1, Former: old, Next: patch, Destination: true}, Proceed},
		"always, first of three members": {Upgrade{Policy: Always, Voters: 3, Former: old, Destination: true}, TakeBackup},
		"unreachable": {
			Upgrade{Voters: 3, Former: []string{""}, Next: next, Destination: true}, TakeBackup,
		},
		"unreachable, pending": {
			Upgrade{Voters: 3, Former: []string{""}, Next: next, Backup: UpgradePending}, Hold,
		},
		"next one unreachable, pending": {Upgrade{Voters: 3, Former: old, Backup: UpgradePending}, Hold},
		"all unreachable, failed":       {Upgrade{Voters: 3, Former: []string{""}, Backup: UpgradeFailed}, Hold},
		"deleted": {
			Upgrade{Voters: 3, Former: old, Backup: UpgradeDeleted, Destination: true}, TakeBackup,
		},
		"known to be the same, pending": {Upgrade{Voters: 3, Former: old, Next: patch, Backup: UpgradePending}, Proceed},
		"never":                         {Upgrade{Policy: Never, Voters: 1, Former: old, Destination: true}, Proceed},
		"never, although one is unfinished": {
			Upgrade{Policy: Never, Voters: 1, Former: old, Backup: UpgradePending}, Proceed,
		},
	} {
		if got := BeforeUpgrade(c.upgrade); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
