package apiserver

import (
	"testing"

	"quorate.dev/apiserver/resource"
)

// Definitions of an extension server may be stored from a time when their group was chosen.
func TestOnlyServedGroupsArePublished(t *testing.T) {
	c := &catalogs{serves: func(group string) bool { return group == "a.b" }}
	all := []*resource.Definition{{Group: "a.b", Plural: "x"}, {Group: "c.d", Plural: "y"}, {Group: "a.b", Plural: "z"}}
	if served := c.served(all); len(served) != 2 || served[0] != all[0] || served[1] != all[2] {
		t.Errorf("served are %v", served)
	}
	if all[1].Plural != "y" {
		t.Error("the argument was changed")
	}
}
