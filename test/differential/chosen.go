package differential

import (
	"fmt"
	"regexp"
	"strconv"
)

// chosen replaces values that a server allocates, such as addresses, by numbers in the order of their appearance.
// Values that the script itself contains are kept.
type chosen struct {
	what  string
	asked map[string]bool
	names map[string]string
}

// newChosen returns a chosen that keeps the values that a script requests.
func newChosen(what, said string, pattern *regexp.Regexp) *chosen {
	c := &chosen{what: what, asked: map[string]bool{}, names: map[string]string{}}
	for _, asked := range pattern.FindAllString(said, -1) {
		c.asked[asked] = true
	}
	return c
}

// see assigns the next number to a value when it appears for the first time.
func (c *chosen) see(text string) {
	if !c.asked[text] && c.names[text] == "" {
		c.names[text] = fmt.Sprintf("<%s %d>", c.what, len(c.names)+1)
	}
}

// name returns the replacement of a value.
func (c *chosen) name(text string) string {
	switch {
	case c.asked[text]:
		return text
	case c.names[text] != "":
		return c.names[text]
	}
	return "<" + c.what + ">"
}

// Reference is a revision with which the revisions of a response's lists and bookmarks are compared.
type Reference struct {
	Name     string // name of the variable in which the revision was captured
	Revision int64
	OrNewer  bool // the revision may be newer, by how much depends on other writes
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

// moving returns the text for the revision of a list or bookmark, which every write on the server changes. A number
// that cannot be a revision of the server is returned unchanged.
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
