package differential

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

const (
	// clockSlack is how long before the servers' start a time of their clocks may be.
	clockSlack = time.Minute
	// soon is how long after its receipt such a time may be.
	soon = 2 * time.Second
	// grain is the unit that times ahead are rounded up to; the servers differ by less in the time of a response.
	grain = 10
)

// anyTime matches a time as JSON or as Go prints it.
var anyTime = regexp.MustCompile(`(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?( \+0000 UTC( m=[+-][0-9.]+)?|Z)`)

// clock replaces times of a server's clock by words; other times stay.
type clock struct {
	began time.Time         // the server's start
	now   time.Time         // when the current response was received
	said  string            // by the script
	ahead map[string]string // words of times that lay ahead when they were first seen, by field and time
}

// words replaces the times in the value of a field; free text has no field.
func (c *clock) words(field, text string) string {
	return anyTime.ReplaceAllStringFunc(text, func(found string) string { return c.word(field, found) })
}

func (c *clock) word(field, text string) string {
	parts := anyTime.FindStringSubmatch(text)
	at, err := time.Parse(time.DateTime, parts[1]+" "+parts[2])
	switch {
	case err != nil || strings.Contains(c.said, text) || at.Before(c.began.Add(-clockSlack)):
		return text
	case c.ahead[field+text] != "":
		return c.ahead[field+text]
	case at.After(c.now.Add(soon)):
		c.ahead[field+text] = fmt.Sprintf("<in %v s>", math.Ceil(at.Sub(c.now).Seconds()/grain)*grain)
		return c.ahead[field+text]
	}
	return "<time" + precision(parts[3], parts[4]) + ">"
}

// precision is the number of digits behind the point, which is fixed for times of the API.
func precision(fraction, zone string) string {
	const micro = len(".000000")
	switch {
	case fraction == "" || zone != "Z":
		return ""
	case len(fraction) == micro:
		return ".6"
	}
	return ".n"
}
