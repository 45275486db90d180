package codec

import (
	"encoding/binary"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

var errMalformedCBOR = errors.New("malformed CBOR")

// cborToken reads the head of the first data item. rest follows the head. ok is false if the head is incomplete or
// invalid, or if the item has an indefinite length: then only major is valid.
func cborToken(data []byte) (major byte, argument uint64, rest []byte, ok bool) {
	if len(data) == 0 {
		return 0, 0, nil, false
	}
	major, info, rest := data[0]>>5, data[0]&0x1f, data[1:]
	if info < cborInline {
		return major, uint64(info), rest, true
	}
	size := 1 << (info - cborInline)
	if info > cborInline+3 || len(rest) < size {
		return major, 0, nil, false
	}
	var wide [8]byte
	copy(wide[len(wide)-size:], rest)
	return major, binary.BigEndian.Uint64(wide[:]), rest[size:], true
}

// cborSkip returns the data that follows the first data item. ok is false if the item is incomplete, malformed, or
// contains an item of indefinite length, which upstream's encoder does not write.
func cborSkip(data []byte) (rest []byte, ok bool) {
	for left := uint64(1); left > 0; left-- {
		major, argument, after, ok := cborToken(data)
		if !ok {
			return nil, false
		}
		data = after
		switch major {
		case cborBytes, cborText:
			if argument > uint64(len(data)) {
				return nil, false
			}
			data = data[argument:]
		case cborMap, cborArray:
			if argument > uint64(len(data)) { // each element has at least one byte
				return nil, false
			}
			left += argument
			if major == cborMap {
				left += argument
			}
		case cborTag:
			left++
		}
	}
	return data, true
}

// cborString reads a byte string or a text string.
func cborString(data []byte) (content, rest []byte, ok bool) {
	major, length, rest, ok := cborToken(data)
	if !ok || major != cborBytes && major != cborText || length > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:length], rest[length:], true
}

// cborMember returns the value of a member of a map, nil if the map does not have the member. ok is false under the
// conditions of cborSkip, or if the data is not a map whose keys are strings.
func cborMember(data []byte, name string) (value []byte, ok bool) {
	major, entries, data, ok := cborToken(data)
	if !ok || major != cborMap {
		return nil, false
	}
	for ; entries > 0; entries-- {
		key, member, ok := cborString(data)
		if !ok {
			return nil, false
		}
		if data, ok = cborSkip(member); !ok {
			return nil, false
		}
		if string(key) == name {
			return member[:len(member)-len(data)], true
		}
	}
	return nil, true
}

// cborPath returns the value under a path in an object, nil if there is none.
func cborPath(data []byte, path ...string) (value []byte, ok bool) {
	data = data[len(cborMagic):]
	for _, name := range path {
		if data, ok = cborMember(data, name); !ok || data == nil || len(data) == 1 && data[0] == cborNull {
			return nil, ok
		}
	}
	return data, true
}

// decodeCBORPath decodes the value under a path in a stored object. It leaves value unchanged if there is none. It
// decodes the whole object only if upstream's encoder has not written it: lengths may then be indefinite, and a tag can
// make a number a string.
func decodeCBORPath(stored []byte, value any, path ...string) error {
	if found, ok := cborPath(stored, path...); ok && (found == nil || direct.Unmarshal(found, value) == nil) {
		return nil
	}
	var whole map[string]any
	if err := direct.Unmarshal(stored, &whole); err != nil {
		return fmt.Errorf("%w: %w", errMalformedCBOR, err)
	}
	canonical, err := direct.Marshal(whole)
	if err != nil {
		return err
	}
	found, ok := cborPath(append(cborMagic[:len(cborMagic):len(cborMagic)], canonical...), path...)
	switch {
	case !ok:
		return errMalformedCBOR
	case found == nil:
		return nil
	}
	return direct.Unmarshal(found, value)
}

// cborCosts describes what decoding a CBOR body costs.
type cborCosts struct {
	// values is the number of maps and nulls.
	values int
	// depth is the maximum number of nested arrays, maps and tags.
	depth int
	// hasLongQuantities is set if the body may have quantities of many digits: a string looks like one, or the body has
	// floating-point numbers, tagged strings, or strings of indefinite length.
	hasLongQuantities bool
}

// cborCost reads a body up to the end of its first data item, or up to the first error, which decoding reports. It
// stops when the costs exceed maxValues or maxEmbeddedNesting.
func cborCost(data []byte) (costs cborCosts) {
	// open has, for each array, map or tag that has begun and not ended, the number of items that it still lacks, or -1
	// if its length is indefinite.
	var open []int64
	for begun := false; !begun || len(open) > 0; begun = true {
		if len(data) == 0 {
			return costs
		}
		if data[0] == cborSimple<<5|cborIndefinite { // the end of an item of indefinite length
			if len(open) == 0 || open[len(open)-1] >= 0 {
				return costs
			}
			data, open = data[1:], closeCBOR(open[:len(open)-1])
			continue
		}
		var inner int64
		var ok bool
		if inner, data, ok = costs.add(data); !ok {
			return costs
		}
		if inner == 0 {
			open = closeCBOR(open)
			continue
		}
		open = append(open, inner)
		costs.depth = max(costs.depth, len(open))
		if costs.values > maxValues || costs.depth > maxEmbeddedNesting {
			return costs
		}
	}
	return costs
}

// closeCBOR subtracts a complete item from the count of the innermost open item. An open item whose count becomes 0 is
// complete too, and is removed. Invariant: no count in the result is 0.
func closeCBOR(open []int64) []int64 {
	for len(open) > 0 && open[len(open)-1] > 0 {
		if open[len(open)-1]--; open[len(open)-1] > 0 {
			break
		}
		open = open[:len(open)-1]
	}
	return open
}

// add adds the costs of the head of the first data item, and returns the number of items in it, or -1 if its length is
// indefinite.
func (c *cborCosts) add(data []byte) (inner int64, rest []byte, ok bool) {
	if data[0] == cborNull || data[0]>>5 == cborMap {
		c.values++
	}
	if data[0]&0x1f == cborIndefinite {
		c.hasLongQuantities = true
		return -1, data[1:], true
	}
	major, argument, rest, ok := cborToken(data)
	if !ok {
		return 0, nil, false
	}
	switch major {
	case cborBytes, cborText:
		if argument > uint64(len(rest)) {
			return 0, nil, false
		}
		c.hasLongQuantities = c.hasLongQuantities || mayHaveLongQuantities(rest[:argument])
		return 0, rest[argument:], true
	case cborArray, cborMap:
		if argument > uint64(len(rest)) {
			return 0, nil, false
		}
		if major == cborMap {
			argument *= 2
		}
		return int64(argument), rest, true
	case cborTag:
		c.hasLongQuantities = c.hasLongQuantities || argument != selfDescribed
		return 1, rest, true
	case cborSimple:
		c.hasLongQuantities = c.hasLongQuantities || data[0]&0x1f > cborInline
	}
	return 0, rest, true
}

// selfDescribed is the number of the tag in cborMagic.
const selfDescribed = 55799

// checkCBOR applies the limits of JSON bodies to a CBOR body.
func (g *Guard) checkCBOR(body []byte, kind schema.GroupVersionKind) error {
	costs, quantities := cborCost(body), g.pathsOf(kind)
	switch {
	case costs.depth > maxEmbeddedNesting:
		return errEmbedded
	case costs.values > maxValues:
		return errValues
	case costs.depth > maxJSONNesting && g.layoutOf(kind).nests():
		return errJSONNesting
	case quantities == nil || !costs.hasLongQuantities:
		return nil
	}
	text, err := CBORToJSON(body)
	if err != nil {
		return nil // decoding reports the error
	}
	return quantities.checkQuantities(text)
}
