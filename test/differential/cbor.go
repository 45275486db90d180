package differential

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	cborType         = "application/cbor"
	cborSequenceType = "application/cbor-seq"
)

// cborPrefix begins self-described CBOR.
var cborPrefix = []byte{0xd9, 0xd9, 0xf7}

// cborBody encodes a value in JSON or YAML as self-described CBOR.
func cborBody(text []byte) ([]byte, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("body to send as CBOR: %w", err)
	}
	var value any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &value); err != nil {
		return nil, fmt.Errorf("body to send as CBOR: %w", err)
	}
	encoded, err := direct.Marshal(value)
	return append(bytes.Clone(cborPrefix), encoded...), err
}

// cborJSON decodes a body that is self-described CBOR to JSON.
func cborJSON(body []byte) ([]byte, error) {
	if !bytes.HasPrefix(body, cborPrefix) {
		return nil, fmt.Errorf("the CBOR is not self-described: %x", body[:min(len(body), 8)])
	}
	return itemJSON(body)
}

// itemJSON decodes CBOR to JSON.
func itemJSON(body []byte) ([]byte, error) {
	var value any
	if err := direct.Unmarshal(body, &value); err != nil {
		return nil, fmt.Errorf("CBOR body: %w", err)
	}
	return json.Marshal(value)
}

// nextItem returns the reader of a CBOR sequence, which returns each item as JSON. It ignores its argument, because the
// framer reads the body itself. The framer removes the prefix of items.
func nextItem(body io.ReadCloser) func(*bufio.Reader) ([]byte, error) {
	reader := cbor.NewFramer().NewFrameReader(body)
	return func(*bufio.Reader) ([]byte, error) {
		const chunk = 64 << 10
		var item []byte
		for buffer := make([]byte, chunk); ; {
			n, err := reader.Read(buffer)
			item = append(item, buffer[:n]...)
			if errors.Is(err, io.ErrShortBuffer) {
				continue
			}
			if err != nil {
				return nil, err
			}
			return itemJSON(item)
		}
	}
}

// storedCBOR returns a value that is stored as CBOR as JSON, with its format.
func storedCBOR(value []byte) (content []byte, form string, err error) {
	var object any
	if err := direct.Unmarshal(value, &object); err != nil {
		return nil, "", err
	}
	again, err := direct.Marshal(object)
	if err != nil {
		return nil, "", err
	}
	form = "CBOR in canonical form"
	if !bytes.Equal(again, value[len(cborPrefix):]) {
		form = fmt.Sprintf("CBOR, not canonical: %x", value)
	}
	content, err = json.Marshal(object)
	return content, form, err
}
