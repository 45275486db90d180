// Package row renders table rows that many requests share, although rows contain ages.
//
// A printer shows times of an object as ages, such as "5m". Make has a row printed for the object with other times
// instead: each distinct time becomes a time centuries ago, whose age, such as "217y", is recognized in the printed
// cells. A Template is the printed row with the time in place of each such age, and Append fills in the ages of a
// moment.
//
// A printer may use times in other ways: it may show the duration between two times, or show another text after a
// time has passed. Make therefore also prints the unchanged object, and the object with all times moved into the
// past, and returns no template unless the template has the same rows. Rows without a template are printed for each
// request.
package row

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apiserver/pkg/registry/rest"
)

// Template is a row without its object, as {"cells":[...],"conditions":[...]: JSON that lacks the closing brace. It
// consists of pieces of text and times that alternate, beginning and ending with a piece: the length of the piece as an
// unsigned varint, its bytes, and the time as seconds since 1970, a signed varint, and nanoseconds, an unsigned one. A
// template of a row that cannot be shared begins with an empty piece, which IsNone reports.
type Template []byte

// none returns the template of rows that cannot be shared. It has a byte, because Format.Assemble of package encoding
// takes empty bytes for an item that the stored bytes contain.
func none() Template { return Template{0} }

// IsNone reports whether the row cannot be shared.
func (t Template) IsNone() bool { return len(t) == 0 || t[0] == 0 }

// year is the year of duration.HumanDuration.
const year = 365 * 24 * time.Hour

// The replaced times are firstAge and more years ago. duration.HumanDuration shows eight years and more as one number
// without fractions, and time.Duration ends at 292 years.
const (
	firstAge = 110
	maxTimes = 180
)

// varints is the usual size of the varints of one time and one piece, in bytes.
const varints = 12

// shift is how far Make moves times into the past to check a template: into other ages in each unit.
const shift = 1111*24*time.Hour + 13*time.Hour + 17*time.Minute + 19*time.Second

// Make returns the template of an object's row. IsNone of the template is true if the row cannot be shared. The caller
// must not use the object afterwards, because Make changes its times. An error is an error of the printer.
func Make(ctx context.Context, printer rest.TableConvertor, object runtime.Object) (Template, error) {
	before := time.Now() // the clock of printers
	want, err := printed(ctx, printer, object)
	if err != nil || want == nil {
		return none(), err
	}
	now := time.Now()
	times, ok := timesOf(object)
	if !ok {
		return none(), nil
	}
	mapTimes(object, func(t time.Time) time.Time { return now.Add(-age(indexOf(times, t))) })
	text, err := printed(ctx, printer, object)
	if err != nil || text == nil {
		return none(), nil //nolint:nilerr // the object itself was printed, but cannot be printed with other times
	}
	made := parse(text, times)
	if !made.isAt(want, before, now) {
		return none(), nil
	}
	mapTimes(object, func(t time.Time) time.Time { return times[indexOfAge(now.Sub(t))].Add(-shift) })
	before = time.Now()
	want, err = printed(ctx, printer, object)
	if err != nil || !made.isAt(want, before.Add(shift), time.Now().Add(shift)) {
		return none(), nil //nolint:nilerr // as above
	}
	return made, nil
}

// isAt reports whether the template has the row that was printed between two moments. Ages change in between at most
// once, since printing takes less than a second.
func (t Template) isAt(printed []byte, before, after time.Time) bool {
	return bytes.Equal(t.Append(nil, before), printed) || bytes.Equal(t.Append(nil, after), printed)
}

// printed returns the only row of an object without its end, or nil if the object has another number of rows.
func printed(ctx context.Context, printer rest.TableConvertor, object runtime.Object) ([]byte, error) {
	table, err := printer.ConvertToTable(ctx, object, &metav1.TableOptions{NoHeaders: true})
	if err != nil || len(table.Rows) != 1 {
		return nil, err
	}
	return Cells(nil, &table.Rows[0])
}

// Cells appends the cells and conditions of a row, without its object and the end.
func Cells(to []byte, row *metav1.TableRow) ([]byte, error) {
	cells, err := json.Marshal(row.Cells)
	if err != nil {
		return nil, err
	}
	to = append(append(to, `{"cells":`...), cells...)
	if len(row.Conditions) == 0 {
		return to, nil
	}
	conditions, err := json.Marshal(row.Conditions)
	if err != nil {
		return nil, err
	}
	return append(append(to, `,"conditions":`...), conditions...), nil
}

// timesOf returns the distinct times of an object, the latest first. It returns false if some cannot be replaced.
func timesOf(object runtime.Object) ([]time.Time, bool) {
	var times []time.Time
	complete := mapTimes(object, func(t time.Time) time.Time {
		times = append(times, t)
		return t
	})
	slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	times = slices.CompactFunc(times, time.Time.Equal)
	return times, complete && len(times) <= maxTimes
}

// indexOf returns the index of a time that times has.
func indexOf(times []time.Time, t time.Time) int {
	i, _ := slices.BinarySearchFunc(times, t, func(a, b time.Time) int { return b.Compare(a) })
	return i
}

// age returns the age of the time that replaces the time with an index, half a year more than it is shown as.
func age(index int) time.Duration { return time.Duration(firstAge+index)*year + year/2 }

// indexOfAge returns the index for an age that age has returned. Times in strings have lost fractions of seconds.
func indexOfAge(d time.Duration) int { return int(d/year) - firstAge }

// parse returns the template of a printed row whose object has replaced times.
func parse(text []byte, times []time.Time) Template {
	t := make(Template, 0, len(text)+varints*(len(times)+1))
	begin := 0
	for i := 3; i < len(text); i++ {
		if text[i] != 'y' || i-3 < begin {
			continue
		}
		n, ok := number(text[i-3 : i])
		if !ok || n < firstAge || n >= firstAge+len(times) {
			continue
		}
		t = appendPiece(t, text[begin:i-3])
		t = binary.AppendVarint(t, times[n-firstAge].Unix())
		t = binary.AppendUvarint(t, uint64(times[n-firstAge].Nanosecond()))
		begin = i + 1
	}
	return appendPiece(t, text[begin:])
}

// number returns the value of three decimal digits.
func number(digits []byte) (n int, ok bool) {
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = 10*n + int(digit-'0')
	}
	return n, true
}

func appendPiece(t Template, piece []byte) Template {
	return append(binary.AppendUvarint(t, uint64(len(piece))), piece...)
}

// Append appends the row, without its object and the end, as a printer would print it at a moment. It must not be
// called if IsNone is true.
func (t Template) Append(to []byte, now time.Time) []byte {
	for {
		length, n := binary.Uvarint(t)
		to = append(to, t[n:n+int(length)]...)
		if t = t[n+int(length):]; len(t) == 0 {
			return to
		}
		seconds, n := binary.Varint(t)
		t = t[n:]
		nanoseconds, n := binary.Uvarint(t)
		t = t[n:]
		to = append(to, shown(now.Sub(time.Unix(seconds, int64(nanoseconds))))...)
	}
}

// shown returns a duration as printers show it, in a JSON string as json.Marshal encodes it.
func shown(d time.Duration) string {
	text := duration.HumanDuration(d)
	if strings.HasPrefix(text, "<") { // the time is in the future
		return `\u003cinvalid\u003e`
	}
	return text
}
