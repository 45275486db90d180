package codec

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// requesting returns a pod that requests quantities, as JSON. Each is a value in JSON.
func requesting(quantities ...string) string {
	requests := make([]string, len(quantities))
	for i, quantity := range quantities {
		requests[i] = fmt.Sprintf(`"r%d":%s`, i, quantity)
	}
	return `{"metadata":{"annotations":{"digest":"1e999999"}},"spec":{"containers":[{"resources":{"requests":{` +
		strings.Join(requests, ",") + `}}}]}}`
}

func quoted(text string) string { return `"` + text + `"` }

// TestLongQuantities sends quantities whose digits take long to compute.
func TestLongQuantities(t *testing.T) {
	guard := NewGuard(clientscheme.Scheme)
	many := strings.Split(strings.Repeat(`"1e999",`, 100)[:100*8-1], ",")
	for name, test := range map[string]struct {
		body, mediaType string
		want            error
	}{
		"usual": {
			requesting(`"100m"`, `"1Gi"`, `1.5`, `"1e3"`, `"-5"`, `"12345678901234567890E"`), runtime.ContentTypeJSON, nil,
		},
		"long": {
			requesting(quoted(strings.Repeat("1", 1000)), `"1e4000"`, `1e-400`), runtime.ContentTypeJSON, nil,
		},
		"no quantity": {
			requesting(`"1e99999999999999999999"`, `"1e9999999x"`, `null`, `true`), runtime.ContentTypeJSON, nil,
		},
		"exponent":          {requesting(`"1e100000000"`), runtime.ContentTypeJSON, errQuantity},
		"negative exponent": {requesting(`"1E-100000000"`), runtime.ContentTypeJSON, errQuantity},
		// Upstream's decoder truncates exponents to 32 bits.
		"truncated exponent": {requesting(`"1e4294967297"`), runtime.ContentTypeJSON, nil},
		"number":             {requesting(`1e100000000`), runtime.ContentTypeJSON, errQuantity},
		"space":              {requesting(`" 1e100000000 "`), runtime.ContentTypeJSON, errQuantity},
		"escape":             {requesting(`"1\u0065100000000"`), runtime.ContentTypeJSON, errQuantity},
		"digits":             {requesting(quoted(strings.Repeat("1", 6000))), runtime.ContentTypeJSON, errQuantity},
		"decimals": {
			requesting(quoted("0." + strings.Repeat("1", 6000) + "Gi")), runtime.ContentTypeJSON, errQuantity,
		},
		"zeros":               {requesting(quoted(strings.Repeat("0", 6000) + "1")), runtime.ContentTypeJSON, nil},
		"repeated key":        {requesting(`"1e100000000","r0":"1"`), runtime.ContentTypeJSON, errQuantity},
		"many":                {requesting(many...), runtime.ContentTypeJSON, errLong},
		"some":                {requesting(many[:20]...), runtime.ContentTypeJSON, nil},
		"invalid JSON":        {`{"spec":{"containers":[ xx "1e100000000"`, runtime.ContentTypeJSON, nil},
		"YAML":                {requesting(`1e100000000`), runtime.ContentTypeYAML, errQuantity},
		"YAML, escape":        {requesting(`"1\x65100000000"`), runtime.ContentTypeYAML, errQuantity},
		"YAML, broken line":   {requesting("\"1e1000\\\n  00000\""), runtime.ContentTypeYAML, errQuantity},
		"YAML, binary":        {requesting(`!!binary MWUxMDAwMDAwMDA=`), runtime.ContentTypeYAML, errQuantity},
		"protobuf":            {string(requestingProtobuf("1e100000000")), runtime.ContentTypeProtobuf, errQuantity},
		"protobuf, usual":     {string(requestingProtobuf("1e10")), runtime.ContentTypeProtobuf, nil},
		"kind without number": {`{"data":{"a":"1e100000000"}}`, runtime.ContentTypeJSON, nil},
	} {
		t.Run(name, func(t *testing.T) {
			kind := podKind
			if name == "kind without number" {
				kind = configMapKind
			}
			if got := guard.Check([]byte(test.body), test.mediaType, kind); !errors.Is(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// requestingProtobuf returns a pod that requests a quantity, as protobuf.
func requestingProtobuf(quantity string) []byte {
	requests := part(2, part(1, []byte("cpu")), part(2, part(1, []byte(quantity))))
	return envelope(podKind, part(2, part(2, part(8, requests))))
}

// TestRequestingProtobuf checks that the decoder finds the quantity.
func TestRequestingProtobuf(t *testing.T) {
	object, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(requestingProtobuf("5"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := object.(*corev1.Pod).Spec.Containers[0].Resources.Requests.Cpu(); got.Cmp(resource.MustParse("5")) != 0 {
		t.Errorf("got %v, want 5", got)
	}
}

// TestManyValues sends bodies that become very many structs.
func TestManyValues(t *testing.T) {
	guard := NewGuard(clientscheme.Scheme)
	containers := func(n int, element string) string {
		return `{"spec":{"containers":[` + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + `]}}`
	}
	messages := func(n int) string { return string(envelope(podKind, part(2, []byte(strings.Repeat("\x12\x00", n))))) }
	for name, test := range map[string]struct {
		body, mediaType string
		want            error
	}{
		"objects":          {containers(maxValues, "{}"), runtime.ContentTypeJSON, errValues},
		"nulls":            {containers(maxValues, "null"), runtime.ContentTypeJSON, errValues},
		"fewer":            {containers(maxValues-10, "{}"), runtime.ContentTypeJSON, nil},
		"strings":          {containers(maxValues, `"{n"`), runtime.ContentTypeJSON, nil},
		"text in a string": {containers(1, quoted(`\"`+strings.Repeat("{", maxValues+1))), runtime.ContentTypeJSON, nil},
		"messages":         {messages(maxFields), runtime.ContentTypeProtobuf, errFields},
		"fewer messages":   {messages(maxFields / 2), runtime.ContentTypeProtobuf, nil},
	} {
		if got := guard.Check([]byte(test.body), test.mediaType, podKind); !errors.Is(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
