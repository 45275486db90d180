package limits

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	"quorate.dev/test/upstream"
)

const (
	isCBOR      = "application/cbor"
	isApplyCBOR = "application/apply-patch+cbor"
)

// The major types of CBOR data items, and heads of items of indefinite length.
const (
	cborInteger = iota << 5
	_
	cborBytes
	cborText
	cborArray
	cborMap
	cborTag

	cborNull       = 0xf6
	cborIndefinite = 0x1f
	cborBreak      = 0xff
)

// cborHead returns the head of a data item whose argument has eight bytes.
func cborHead(major byte, argument uint64) []byte {
	const eightBytes = 27
	return binary.BigEndian.AppendUint64([]byte{major | eightBytes}, argument)
}

// cborString returns a byte string, as which Kubernetes' encoder writes strings.
func cborString(text string) []byte { return append(cborHead(cborBytes, uint64(len(text))), text...) }

// cborRepeated returns an array that has an item n times.
func cborRepeated(n int, item ...byte) []byte {
	return append(cborHead(cborArray, uint64(n)), bytes.Repeat(item, n)...)
}

// cborNested returns levels of an opening sequence that ends in the head of an array or map with one item or entry.
func cborNested(levels int, opening ...byte) []byte {
	return append(bytes.Repeat(opening, levels), cborNull)
}

// placeholder is a string in a JSON object in whose place cborWith puts CBOR.
const placeholder = "PLACEHOLDER"

// cborWith returns an object in CBOR. An item replaces the value that is the string placeholder.
func cborWith(object string, item []byte) []byte {
	var value any
	if err := json.Unmarshal([]byte(object), &value); err != nil {
		panic(err) // an object of this file is wrong
	}
	encoded, err := direct.Marshal(value)
	if err != nil {
		panic(err)
	}
	before, after, found := bytes.Cut(encoded, append([]byte{cborBytes | byte(len(placeholder))}, placeholder...))
	if !found {
		panic("no placeholder in " + object)
	}
	return slices.Concat([]byte{0xd9, 0xd9, 0xf7}, before, item, after)
}

// postCBOR returns a request that creates an object in CBOR as a dry run.
func postCBOR(path, object string, item []byte) sent {
	return sent{method: http.MethodPost, path: path, contentType: isCBOR, body: cborWith(object, item)}.dry()
}

const (
	cborConfigMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"unknown":"` + placeholder + `"}`
	cborOwners    = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","ownerReferences":"` + placeholder + `"}}`
	cborData      = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":"` + placeholder + `"}`
	cborNumber    = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","generation":"` + placeholder + `"}}`
	cborPod       = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":"` + placeholder + `"}}`
	cborFree      = `{"apiVersion":"attacks.test/v1","kind":"Frees","metadata":{"name":"x"},"spec":"` + placeholder + `"}`
)

// cborAttacks are attacks with bodies in CBOR. The cost of a value in CBOR is as high as in JSON, and its body can be
// a third as large.
func cborAttacks() []attack {
	free := func() []sent {
		return define("frees", `{"x-kubernetes-preserve-unknown-fields":true}`)
	}
	request := func(path, object string, item []byte) func() sent {
		return func() sent { return postCBOR(path, object, item) }
	}
	const most = bodyLimit - 1000
	frees := customPath("frees")
	quantity := withQuantity("q", placeholder)
	return []attack{
		{name: "CBOR, 3 million containers", request: request(pods, cborPod, cborRepeated(most, cborMap))},
		{name: "CBOR, 3 million nulls", request: request(configMaps, cborConfigMap, cborRepeated(most, cborNull))},
		{name: "CBOR, 3 million owner references", request: request(configMaps, cborOwners, cborRepeated(most, cborMap))},
		{name: "CBOR, 3 million integers", request: request(configMaps, cborConfigMap, cborRepeated(most, cborInteger))},
		{name: "CBOR, 3 million arrays", request: request(configMaps, cborConfigMap, cborRepeated(most, cborArray))},
		{name: "CBOR, 3 million empty strings", request: request(configMaps, cborConfigMap, cborRepeated(most, cborBytes))},
		{name: "CBOR, array of 2^40 items", request: request(configMaps, cborConfigMap, cborHead(cborArray, 1<<40))},
		{name: "CBOR, map of 2^62 entries", request: request(configMaps, cborData, cborHead(cborMap, 1<<62))},
		{name: "CBOR, string of 2^63 bytes", request: request(configMaps, cborConfigMap, cborHead(cborText, 1<<63))},
		{name: "CBOR, string of 3 million chunks", request: request(configMaps, cborConfigMap, slices.Concat(
			[]byte{cborBytes | cborIndefinite}, bytes.Repeat([]byte{cborBytes}, most), []byte{cborBreak}))},
		{name: "CBOR, 1 million tags", request: request(configMaps, cborConfigMap,
			cborNested(most/3, 0xd9, 0xd9, 0xf7))},
		{name: "CBOR, 3 million levels", request: request(configMaps, cborConfigMap, cborNested(most, cborArray|1))},
		{name: "CBOR, 3 million indefinite levels", request: request(configMaps, cborConfigMap,
			cborNested(most, cborArray|cborIndefinite))},
		{name: "CBOR, integer of 3 million bytes", request: request(configMaps, cborNumber, slices.Concat(
			[]byte{cborTag | 2}, cborHead(cborBytes, most), bytes.Repeat([]byte{0x77}, most)))},
		{name: "CBOR, 1 million duplicate keys", request: request(configMaps, cborData, slices.Concat(
			cborHead(cborMap, most/3), bytes.Repeat([]byte{cborBytes | 1, 'a', cborBytes}, most/3)))},
		{name: "CBOR, 300,000 keys", request: request(configMaps, cborData, cborKeys(300_000))},
		{name: "CBOR, quantity with exponent 100 million", request: request(pods, quantity, cborString("1e100000000"))},
		{name: "CBOR, quantity in chunks", request: request(pods, quantity, slices.Concat(
			[]byte{cborBytes | cborIndefinite}, cborString("1e1"), cborString("00000000"), []byte{cborBreak}))},
		{name: "CBOR, quantity with 3 million digits", request: request(pods, quantity,
			cborString(string(bytes.Repeat([]byte{'7'}, most))))},
		{name: "CBOR, schemaless object, 9,000 levels", before: free,
			request: request(frees, cborFree, cborNested(9_000, cborMap|1, cborBytes|1, 'a'))},
		{name: "CBOR, schemaless object of 3 million arrays",
			request: request(frees, cborFree, cborSpec(cborRepeated(most, cborArray)))},
		{name: "CBOR, schemaless object of 3 million maps",
			request: request(frees, cborFree, cborSpec(cborRepeated(most, cborMap)))},
		{name: "CBOR, schemaless object of 3 million nulls",
			request: request(frees, cborFree, cborSpec(cborRepeated(most, cborNull)))},
		{name: "CBOR, apply, 3 million nulls", request: func() sent {
			return patch(configMaps+"/x?fieldManager=m", isApplyCBOR,
				string(cborWith(cborConfigMap, cborRepeated(most, cborNull)))).dry()
		}},
		{name: "CBOR, apply, 3 million integers", request: func() sent {
			return patch(frees+"/x?fieldManager=m", isApplyCBOR,
				string(cborWith(cborFree, cborSpec(cborRepeated(most, cborInteger))))).dry()
		}},
	}
}

// cborSpec returns a map whose only entry has an item.
func cborSpec(item []byte) []byte { return append([]byte{cborMap | 1, cborBytes | 1, 'a'}, item...) }

// cborKeys returns a map of n keys with empty strings as values.
func cborKeys(n int) []byte {
	keys := cborHead(cborMap, uint64(n))
	for i := range n {
		key := strconv.Itoa(i)
		keys = append(append(append(keys, cborText|byte(len(key))), key...), cborBytes)
	}
	return keys
}

// TestCBORAttacks sends expensive requests in CBOR to a server with the feature gate CBORServingAndStorage.
func TestCBORAttacks(t *testing.T) {
	upstream.NeedsTime(t)
	runAttacks(t, []string{"--feature-gates=CBORServingAndStorage=true"}, cborAttacks())
}
