package apiserver

import (
	"testing"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
)

// Definitions of an extension server may be stored from a time when their group was chosen.
func TestOnlyServedGroupsArePublished(t *testing.T) {
	c := &catalogs{groups: config.Extension{Groups: []string{"a.b"}}}
	versions := []*resource.Version{{Name: "v1"}}
	all := []*resource.Definition{
		{Group: "a.b", Plural: "x", Versions: versions}, {Group: "c.d", Plural: "y", Versions: versions},
	}
	served := c.served(all)
	if len(served) != 2 || served[0] != all[0] {
		t.Errorf("the definitions are %v", served)
	}
	if served[1].Plural != "y" || len(served[1].Versions) != 0 {
		t.Errorf("a resource of another group has the versions %v", served[1].Versions)
	}
	if len(all[1].Versions) != 1 {
		t.Error("the argument was changed")
	}
}
