// Package differential sends the same scripted requests to kube-apiserver and to our API server and compares the
// responses: status, relevant headers, body or watch events.
//
// A script is a text file of cases:
//
//	--- name of the case
//	@directive
//	POST /api/v1/namespaces/${ns}/configmaps?dryRun=All
//	Header: value
//
//	body
//
// ${port.NAME} is the port of an extension API server: see apiserver.go. ${ns} is the namespace of the script;
// ${fill:N} is N times the letter x, ${nested:N} a list N lists deep, ${operations:N} a JSON patch of N operations,
// ${requirements:N}, ${values:N} and ${names:N} that many terms of selectors, ${bytes:HEX} raw bytes; other variables
// are captured from earlier responses. The directives:
//
//	@capture NAME PATH   keeps a field of the response, as in metadata.uid or items.0.metadata.name
//	@user TOKEN          sends a bearer token instead of the administrator's certificate; "none" sends nothing
//	@protobuf            sends the body, written as JSON or YAML, as protobuf
//	@cbor                sends or stores the body, written as JSON or YAML, as self-described CBOR
//	@open NAME           keeps the response open as a stream; the case compares only status and headers
//	@until TEXT          repeats the request until the body or a warning contains TEXT
//	@sort                compares the items of a list in the order of their names
//	@revision NAME       compares the revisions of lists, tables and bookmarks with the captured one; followed by "or
//	                     newer", accepts newer ones. Without it, these revisions are not compared
//	@unordered           does not compare the order of revisions, where servers write in any order
//	@pick POINTER...     compares only these values of a JSON body; "null" if there is no such value
//	@head                compares only status and headers
//	@outline             compares only the first line of a table, and the first words of the others, sorted
//	@bodiless            compares audit events without the response
//	@events N            reads that many events of a watch, or all up to the first that contains a text, and disconnects
//	@refused             the stream of the events may have been refused; it has none then
//	@each NAME VALUE...  makes a case for each value of ${NAME}; several make a case for each combination; "-" is nothing
//
// "UPGRADE PATH" is a GET that asks for the protocol of the header Upgrade; the body is a line that is sent when the
// server has switched to it.
//
// Some requests are not HTTP requests:
//
//	KUBECTL ARGUMENTS  runs kubectl as the administrator
//	AUDIT ID           waits for the audit events of the request with that Audit-ID
//	CALLS all          shows the calls of admission webhooks since the last such request
//	REVIEWS all        shows the calls of authentication and authorization webhooks since the last such request
//	CONVERSIONS all    shows the objects that were sent to conversion webhooks since the last such request
//	EVENTS NAME N      waits for the next N events of an open stream, or for all events up to the first that contains
//	                   the text N
//	REST NAME          waits for all events of an open stream until the stream ends
//	STORE KEY          puts the body into etcd
//
// A line that begins with "===" is a heading. A wait that times out or a capture that finds nothing is an error, even
// if both servers agree.
//
// Everything that a script writes to etcd is compared too, write by write: see etcd.go. A template is expanded to a
// script for every resource of discovery: see generate.go.
package differential

import (
	"bufio"
	"fmt"
	"net/textproto"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Script is one file of cases, which run in order.
type Script struct {
	Name  string
	Area  string // heading of the report under which the script is listed
	Cases []Case
}

var unsuitable = regexp.MustCompile(`[^a-z0-9]+`)

// slug turns a name into a valid name of a namespace, which is also a valid label value.
func slug(name string) string {
	const longest = 60
	short := unsuitable.ReplaceAllString(strings.ReplaceAll(strings.ToLower(name), ".k8s.io", ""), "-")
	return strings.Trim(short[:min(len(short), longest)], "-")
}

func (s *Script) namespace() string { return "d-" + slug(s.Name) }

// text returns everything that the script sends, before variables are replaced.
func (s *Script) text() string {
	var b strings.Builder
	for _, c := range s.Cases {
		fmt.Fprintln(&b, c.Path, c.Header, c.Body)
	}
	return b.String()
}

// Case is one request.
type Case struct {
	Name       string
	Directives []Directive
	Method     string
	Path       string // URL path and query, or the arguments of a request that is not an HTTP request
	Header     map[string]string
	Body       string
}

// Directive is a line that begins with "@".
type Directive struct {
	Name      string
	Arguments string
}

// directive returns the arguments of the first directive of that name.
func (c *Case) directive(name string) (string, bool) {
	for _, d := range c.Directives {
		if d.Name == name {
			return d.Arguments, true
		}
	}
	return "", false
}

// LoadScripts reads every script of a directory.
func LoadScripts(directory string) ([]*Script, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.script"))
	if err != nil {
		return nil, err
	}
	var scripts []*Script
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		script, err := ParseScript(strings.TrimSuffix(filepath.Base(file), ".script"), string(text))
		if err != nil {
			return nil, err
		}
		script.Area, _, _ = strings.Cut(script.Name, "-")
		scripts = append(scripts, script)
	}
	return scripts, nil
}

const (
	caseMark    = "--- " // begins a case
	headingMark = "==="  // ends a case
)

// ParseScript reads a script. Text before the first case is a comment.
func ParseScript(name, text string) (*Script, error) {
	script := &Script{Name: name}
	seen := map[string]bool{}
	sections := strings.Split("\n"+text, "\n"+caseMark)
	for _, section := range sections[1:] {
		section, _, _ = strings.Cut(section, "\n"+headingMark)
		c, err := parseCase(section)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, c := range c.combinations() {
			if seen[c.Name] {
				return nil, fmt.Errorf("%s: two cases are called %q", name, c.Name)
			}
			seen[c.Name] = true
			script.Cases = append(script.Cases, *c)
		}
	}
	return script, nil
}

// nothing is the value of @each that represents the empty string.
const nothing = "-"

// combinations returns a case for each combination of the values of its @each directives.
func (c *Case) combinations() []*Case {
	i := slices.IndexFunc(c.Directives, func(d Directive) bool { return d.Name == "each" })
	if i < 0 {
		return []*Case{c}
	}
	var all []*Case
	values := strings.Fields(c.Directives[i].Arguments)
	for _, value := range values[1:] {
		one := c.with("${"+values[0]+"}", value)
		one.Directives = slices.Delete(one.Directives, i, i+1)
		all = append(all, one.combinations()...)
	}
	return all
}

// with returns the case with one variable replaced and the value appended to its name.
func (c *Case) with(variable, value string) *Case {
	name := c.Name + " " + value
	if value == nothing {
		value = ""
	}
	replace := func(text string) string { return strings.ReplaceAll(text, variable, value) }
	one := &Case{
		Name: name, Method: replace(c.Method), Path: replace(c.Path), Header: map[string]string{}, Body: replace(c.Body),
	}
	for name, text := range c.Header {
		one.Header[replace(name)] = replace(text)
	}
	for _, d := range c.Directives {
		one.Directives = append(one.Directives, Directive{d.Name, replace(d.Arguments)})
	}
	return one
}

func parseCase(section string) (*Case, error) {
	lines := bufio.NewScanner(strings.NewReader(section))
	lines.Buffer(nil, len(section)+1)
	lines.Scan()
	c := &Case{Name: strings.TrimSpace(lines.Text()), Header: map[string]string{}}
	if err := c.parseRequest(lines); err != nil {
		return nil, fmt.Errorf("case %q: %w", c.Name, err)
	}
	var body []string
	for lines.Scan() {
		body = append(body, lines.Text())
	}
	c.Body = strings.TrimRight(strings.Join(body, "\n"), "\n")
	return c, nil
}

// parseRequest reads directives, the request line and headers, up to an empty line.
func (c *Case) parseRequest(lines *bufio.Scanner) error {
	for lines.Scan() && lines.Text() != "" {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "@"):
			name, arguments, _ := strings.Cut(line[1:], " ")
			c.Directives = append(c.Directives, Directive{name, arguments})
		case c.Method == "":
			var ok bool
			if c.Method, c.Path, ok = strings.Cut(line, " "); !ok {
				return fmt.Errorf("no request line: %q", line)
			}
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				return fmt.Errorf("no header: %q", line)
			}
			c.Header[textproto.CanonicalMIMEHeaderKey(name)] = strings.TrimSpace(value)
		}
	}
	if c.Method == "" {
		return fmt.Errorf("has no request")
	}
	return nil
}
