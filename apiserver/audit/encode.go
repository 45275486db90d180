package audit

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
)

// appendEvent appends the line of an event as upstream's encoder for audit.k8s.io/v1 writes it. That encoder costs more
// than the rest of auditing, mostly for conversion and reflection.
func appendEvent(to []byte, event *auditapi.Event) ([]byte, error) {
	e := encoder{line: append(to, `{"kind":"Event","apiVersion":"audit.k8s.io/v1"`...)}
	e.text("level", string(event.Level))
	e.text("auditID", string(event.AuditID))
	e.text("stage", string(event.Stage))
	e.text("requestURI", event.RequestURI)
	e.text("verb", event.Verb)
	e.name("user")
	e.user(&event.User)
	if event.ImpersonatedUser != nil {
		e.name("impersonatedUser")
		e.user(event.ImpersonatedUser)
	}
	if event.AuthenticationMetadata != nil {
		e.name("authenticationMetadata")
		e.open()
		e.textIfSet("impersonationConstraint", event.AuthenticationMetadata.ImpersonationConstraint)
		e.close()
	}
	e.texts("sourceIPs", event.SourceIPs)
	e.textIfSet("userAgent", event.UserAgent)
	if event.ObjectRef != nil {
		e.name("objectRef")
		e.objectRef(event.ObjectRef)
	}
	if event.ResponseStatus != nil {
		e.name("responseStatus")
		e.status(event.ResponseStatus)
	}
	if event.RequestObject != nil {
		e.marshal("requestObject", event.RequestObject)
	}
	if event.ResponseObject != nil {
		e.marshal("responseObject", event.ResponseObject)
	}
	e.time("requestReceivedTimestamp", event.RequestReceivedTimestamp)
	e.time("stageTimestamp", event.StageTimestamp)
	if len(event.Annotations) > 0 {
		e.name("annotations")
		e.annotations(event.Annotations)
	}
	return append(e.line, '}', '\n'), e.err
}

// encoder appends the members of JSON objects.
type encoder struct {
	line []byte
	err  error // the first one
}

func (e *encoder) open()  { e.line = append(e.line, '{') }
func (e *encoder) close() { e.line = append(e.line, '}') }

// name appends the name of a member, which needs no escapes, after a comma if it is not the first one.
func (e *encoder) name(name string) {
	if e.line[len(e.line)-1] != '{' {
		e.line = append(e.line, ',')
	}
	e.line = append(e.line, '"')
	e.line = append(e.line, name...)
	e.line = append(e.line, '"', ':')
}

func (e *encoder) text(name, value string) {
	e.name(name)
	e.quote(value)
}

func (e *encoder) textIfSet(name, value string) {
	if value != "" {
		e.text(name, value)
	}
}

func (e *encoder) texts(name string, values []string) {
	if len(values) > 0 {
		e.name(name)
		e.array(values)
	}
}

func (e *encoder) array(values []string) {
	e.line = append(e.line, '[')
	for i, value := range values {
		if i > 0 {
			e.line = append(e.line, ',')
		}
		e.quote(value)
	}
	e.line = append(e.line, ']')
}

// quote appends a string as encoding/json does.
func (e *encoder) quote(value string) {
	if isPlain(value) {
		e.line = append(e.line, '"')
		e.line = append(e.line, value...)
		e.line = append(e.line, '"')
		return
	}
	quoted, _ := json.Marshal(value) // marshalling a string cannot fail
	e.line = append(e.line, quoted...)
}

// isPlain reports whether a string needs no escapes.
func isPlain(value string) bool {
	for i := range len(value) {
		if !plain[value[i]] {
			return false
		}
	}
	return true
}

// plain has the bytes that encoding/json copies into strings.
var plain = func() (plain [256]bool) {
	for char := ' '; char < utf8.RuneSelf; char++ {
		plain[char] = !strings.ContainsRune(`"\<>&`, char)
	}
	return plain
}()

func (e *encoder) user(user *authenticationv1.UserInfo) {
	e.open()
	e.textIfSet("username", user.Username)
	e.textIfSet("uid", user.UID)
	e.texts("groups", user.Groups)
	if len(user.Extra) > 0 {
		e.name("extra")
		e.extra(user.Extra)
	}
	e.close()
}

func (e *encoder) extra(extra map[string]authenticationv1.ExtraValue) {
	e.open()
	for i, key := range sortedKeys(extra, nil) {
		e.key(i, key)
		if extra[key] == nil {
			e.line = append(e.line, "null"...)
			continue
		}
		e.array(extra[key])
	}
	e.close()
}

// key appends the i-th key of a map.
func (e *encoder) key(i int, key string) {
	if i > 0 {
		e.line = append(e.line, ',')
	}
	e.quote(key)
	e.line = append(e.line, ':')
}

// sortedKeys appends the keys of a map to an empty slice.
func sortedKeys[V any](of map[string]V, to []string) []string {
	to = slices.AppendSeq(to, maps.Keys(of))
	slices.Sort(to)
	return to
}

func (e *encoder) objectRef(reference *auditapi.ObjectReference) {
	e.open()
	e.textIfSet("resource", reference.Resource)
	e.textIfSet("namespace", reference.Namespace)
	e.textIfSet("name", reference.Name)
	e.textIfSet("uid", string(reference.UID))
	e.textIfSet("apiGroup", reference.APIGroup)
	e.textIfSet("apiVersion", reference.APIVersion)
	e.textIfSet("resourceVersion", reference.ResourceVersion)
	e.textIfSet("subresource", reference.Subresource)
	e.close()
}

// status appends a Status. That of most events has only a code.
func (e *encoder) status(status *metav1.Status) {
	if *status == (metav1.Status{Code: status.Code}) && status.Code != 0 {
		e.line = append(e.line, `{"metadata":{},"code":`...)
		e.line = append(strconv.AppendInt(e.line, int64(status.Code), 10), '}')
		return
	}
	e.append(json.Marshal(status))
}

func (e *encoder) time(name string, at metav1.MicroTime) {
	e.name(name)
	if at.IsZero() {
		e.line = append(e.line, "null"...)
		return
	}
	e.line = append(e.line, '"')
	e.line = append(appendTime(e.line, at.UTC()), '"')
}

// appendTime appends a time in metav1.RFC3339Micro. time.Time.AppendFormat would be the largest part of the encoding.
func appendTime(to []byte, at time.Time) []byte {
	const maxYear = 9999
	year, month, day := at.Date()
	if year < 0 || year > maxYear {
		return at.AppendFormat(to, metav1.RFC3339Micro)
	}
	hour, minute, second := at.Clock()
	to = append(appendDigits(to, year, 4), '-')
	to = append(appendDigits(to, int(month), 2), '-')
	to = append(appendDigits(to, day, 2), 'T')
	to = append(appendDigits(to, hour, 2), ':')
	to = append(appendDigits(to, minute, 2), ':')
	to = append(appendDigits(to, second, 2), '.')
	return append(appendDigits(to, at.Nanosecond()/int(time.Microsecond), 6), 'Z')
}

// appendDigits appends a number that is not negative with leading zeros.
func appendDigits(to []byte, number, digits int) []byte {
	to = append(to, "000000"[:digits]...)
	for i := len(to) - 1; number > 0; i-- {
		to[i] += byte(number % 10)
		number /= 10
	}
	return to
}

func (e *encoder) annotations(annotations map[string]string) {
	var few [8]string
	e.open()
	for i, key := range sortedKeys(annotations, few[:0]) {
		e.key(i, key)
		e.quote(annotations[key])
	}
	e.close()
}

func (e *encoder) marshal(name string, value any) {
	e.name(name)
	e.append(json.Marshal(value))
}

func (e *encoder) append(value []byte, err error) {
	e.line = append(e.line, value...)
	if e.err == nil {
		e.err = err
	}
}
