package differential

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
)

const (
	// clockSlack is the time by which a server's clock may be behind the start of the servers.
	clockSlack = time.Minute
	// soon is the time by which a server's clock may be ahead of the receipt of a response.
	soon = 2 * time.Second
	// grain is the unit to which times in the future are rounded up. The times of a response differ by less between the
	// servers.
	grain = 10
)

// anyTime matches a time in the format of JSON or of Go.
var anyTime = regexp.MustCompile(`(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d+)?( \+0000 UTC( m=[+-][0-9.]+)?|Z)`)

// clock replaces times of a server's clock by words. It keeps other times.
type clock struct {
	began time.Time         // when the server was started
	now   time.Time         // when the current response was received
	said  string            // text of the script, whose times are kept
	ahead map[string]string // words for times that were in the future when they were first seen, by field and time
}

// words replaces the times in the value of a field. Text without a format has no field.
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

// precision returns the number of digits after the decimal point, which is fixed for times of the API.
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
