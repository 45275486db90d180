package differential

import (
	"fmt"
	"regexp"
	"strconv"
)

// chosen replaces values that a server allocates by numbers in the order of appearance. Values in the script stay.
type chosen struct {
	what  string
	asked map[string]bool
	names map[string]string
}

// newChosen reads the values that a script requests.
func newChosen(what, said string, pattern *regexp.Regexp) *chosen {
	c := &chosen{what: what, asked: map[string]bool{}, names: map[string]string{}}
	for _, asked := range pattern.FindAllString(said, -1) {
		c.asked[asked] = true
	}
	return c
}

// see assigns the next number to a value that appears for the first time.
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

// Reference is a revision that those of a response's lists and bookmarks are compared with.
type Reference struct {
	Name     string // of the variable that it was captured in
	Revision int64
	OrNewer  bool // other writes on the server decide how much newer
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

// moving shows the revision of a list or of a bookmark, which every write on the server moves. A number that cannot be a
// revision of the server stays.
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
