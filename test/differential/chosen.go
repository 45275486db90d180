package differential

import (
	"fmt"
	"regexp"
	"strconv"
)

// chosen names what a server picked out of many, by a number in the order of appearance. What the script asks for by
// itself stays as it is.
type chosen struct {
	what  string
	asked map[string]bool
	names map[string]string
}

// newChosen reads what a script asks for.
func newChosen(what, said string, pattern *regexp.Regexp) *chosen {
	c := &chosen{what: what, asked: map[string]bool{}, names: map[string]string{}}
	for _, asked := range pattern.FindAllString(said, -1) {
		c.asked[asked] = true
	}
	return c
}

// see gives the next number to what appears for the first time.
func (c *chosen) see(text string) {
	if !c.asked[text] && c.names[text] == "" {
		c.names[text] = fmt.Sprintf("<%s %d>", c.what, len(c.names)+1)
	}
}

// name is what is shown in place of a text.
func (c *chosen) name(text string) string {
	switch {
	case c.asked[text]:
		return text
	case c.names[text] != "":
		return c.names[text]
	}
	return "<" + c.what + ">"
}

// Reference is a revision that those of an answer's lists and bookmarks are compared with.
type Reference struct {
	Name     string // of the variable that it was captured in
	Revision int64
	OrNewer  bool // how much newer depends on what else happens on the server
}

func (r *Reference) show(revision int64) string {
	switch {
	case r.OrNewer && revision >= r.Revision:
		return "<revision " + r.Name + " or newer>"
	case revision == r.Revision:
		return "<revision " + r.Name + ">"
	case revision > r.Revision:
		return "<revision newer than " + r.Name + ">"
	}
	return "<revision older than " + r.Name + ">"
}

// moving shows the revision of a list or of a bookmark, which everything that happens on the server moves. What is none
// that a server can have had stays.
func (n *normalizer) moving(text string) string {
	revision, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || revision <= 0:
		return text
	case n.reference == nil:
		return "<any revision>"
	}
	return n.reference.show(revision)
}
