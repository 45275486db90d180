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

// encoder writes events as JSON lines, byte for byte as upstream's encoder for audit.k8s.io/v1 does. Upstream's encoder
// costs more than all other parts of auditing, mostly for conversion and reflection.
type encoder struct {
	line []byte
	// err is the first error of the current event.
	err error

	// clock is the text of second up to its fraction. It is cached, because most timestamps of an event and of the next
	// event are in the same second.
	second int64
	clock  []byte
}

// encode returns the line of an event. The line is valid until the next call.
func (e *encoder) encode(event *auditapi.Event) ([]byte, error) {
	e.line, e.err = append(e.line[:0], `{"kind":"Event","apiVersion":"audit.k8s.io/v1"`...), nil
	e.member(`,"level":`, string(event.Level))
	e.member(`,"auditID":`, string(event.AuditID))
	e.member(`,"stage":`, string(event.Stage))
	e.member(`,"requestURI":`, event.RequestURI)
	e.member(`,"verb":`, event.Verb)
	e.raw(`,"user":`)
	e.user(&event.User)
	if event.ImpersonatedUser != nil {
		e.raw(`,"impersonatedUser":`)
		e.user(event.ImpersonatedUser)
	}
	if event.AuthenticationMetadata != nil {
		e.raw(`,"authenticationMetadata":`)
		e.open()
		e.textIfSet("impersonationConstraint", event.AuthenticationMetadata.ImpersonationConstraint)
		e.close()
	}
	e.texts("sourceIPs", event.SourceIPs)
	e.textIfSet("userAgent", event.UserAgent)
	if event.ObjectRef != nil {
		e.raw(`,"objectRef":`)
		e.objectRef(event.ObjectRef)
	}
	if event.ResponseStatus != nil {
		e.raw(`,"responseStatus":`)
		e.status(event.ResponseStatus)
	}
	if event.RequestObject != nil {
		e.raw(`,"requestObject":`)
		e.append(json.Marshal(event.RequestObject))
	}
	if event.ResponseObject != nil {
		e.raw(`,"responseObject":`)
		e.append(json.Marshal(event.ResponseObject))
	}
	e.raw(`,"requestReceivedTimestamp":`)
	e.time(event.RequestReceivedTimestamp)
	e.raw(`,"stageTimestamp":`)
	e.time(event.StageTimestamp)
	if len(event.Annotations) > 0 {
		e.raw(`,"annotations":`)
		e.annotations(event.Annotations)
	}
	e.raw("}\n")
	return e.line, e.err
}

func (e *encoder) raw(text string) { e.line = append(e.line, text...) }

// member appends a member that follows another one. name includes the comma, the quotes and the colon.
func (e *encoder) member(name, value string) {
	e.raw(name)
	e.quote(value)
}

func (e *encoder) open()  { e.line = append(e.line, '{') }
func (e *encoder) close() { e.line = append(e.line, '}') }

// name appends the name of a member, preceded by a comma unless it is the first member. The name must need no escapes.
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

// quote appends a string as encoding/json encodes it.
func (e *encoder) quote(value string) {
	if isPlain(value) {
		e.line = append(e.line, '"')
		e.line = append(e.line, value...)
		e.line = append(e.line, '"')
		return
	}
	// Marshalling a string cannot fail.
	quoted, _ := json.Marshal(value)
	e.line = append(e.line, quoted...)
}

// isPlain reports whether a string needs no escapes.
func isPlain(value string) bool {
	for ; len(value) >= 8; value = value[8:] {
		word := uint64(value[0]) | uint64(value[1])<<8 | uint64(value[2])<<16 | uint64(value[3])<<24 |
			// The compiler merges this into one load.
			uint64(value[4])<<32 | uint64(value[5])<<40 | uint64(value[6])<<48 | uint64(value[7])<<56
		if hasSpecial(word) {
			return false
		}
	}
	for i := range len(value) {
		if !plain[value[i]] {
			return false
		}
	}
	return true
}

// hasSpecial reports whether any of eight bytes needs an escape, because it is less than ' ', is not ASCII, or is a
// character in "\<>&.
func hasSpecial(word uint64) bool {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	// Each byte of brackets is zero where a byte of word is < or >.
	brackets := (word | ones*('<'^'>')) ^ ones*'>'
	// Each byte of quotes is zero where a byte of word is " or &.
	quotes := (word | ones*('"'^'&')) ^ ones*'&'
	escapes := word ^ ones*'\\'
	// A high bit of (x-n)&^x is set exactly if some byte of x is less than n.
	found := (word-ones*' ')&^word | (brackets-ones)&^brackets | (quotes-ones)&^quotes | (escapes-ones)&^escapes
	return (found|word)&high != 0
}

// plain is set for the bytes that encoding/json copies into strings without escapes.
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

// key appends the i-th key of a map, and the colon.
func (e *encoder) key(i int, key string) {
	if i > 0 {
		e.line = append(e.line, ',')
	}
	e.quote(key)
	e.line = append(e.line, ':')
}

// sortedKeys appends the keys of a map to an empty slice and sorts them.
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

// status appends a Status. The Status of most events has only a code.
func (e *encoder) status(status *metav1.Status) {
	if *status == (metav1.Status{Code: status.Code}) && status.Code != 0 {
		e.line = append(e.line, `{"metadata":{},"code":`...)
		e.line = append(strconv.AppendInt(e.line, int64(status.Code), 10), '}')
		return
	}
	e.append(json.Marshal(status))
}

func (e *encoder) time(at metav1.MicroTime) {
	if at.IsZero() {
		e.raw("null")
		return
	}
	if second := at.Unix(); second != e.second || len(e.clock) == 0 {
		e.second, e.clock = second, at.UTC().AppendFormat(e.clock[:0], "2006-01-02T15:04:05.")
	}
	e.line = append(append(e.line, '"'), e.clock...)
	e.line = append(appendDigits(e.line, at.Nanosecond()/int(time.Microsecond), 6), 'Z', '"')
}

// appendDigits appends a non-negative number of at most the given number of digits, with leading zeros.
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

func (e *encoder) append(value []byte, err error) {
	e.line = append(e.line, value...)
	if e.err == nil {
		e.err = err
	}
}
