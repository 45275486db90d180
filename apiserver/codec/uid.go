package codec

import "fmt"

// objectMetaUID is the field number of metav1.ObjectMeta.uid.
const objectMetaUID = 5

// UID returns the UID of a stored object without decoding the rest of the object, empty if the object has none.
func UID(stored []byte) (uid string, err error) {
	if IsCBOR(stored) {
		if err := decodeCBORPath(stored, &uid, "metadata", "uid"); err != nil {
			return "", fmt.Errorf("read the UID: %w", err)
		}
		return uid, nil
	}
	if !IsProtobuf(stored) {
		text, err := asJSON(stored)
		if err != nil {
			return "", fmt.Errorf("read the UID: %w", err)
		}
		return jsonUID(text)
	}
	metadata, err := protobufMetadata(stored)
	if err != nil {
		return "", err
	}
	value, err := messageField(metadata, objectMetaUID)
	if err != nil {
		return "", fmt.Errorf("read the UID: %w", err)
	}
	return string(value), nil
}

// CBORAPIVersion returns the apiVersion of an object that is stored as CBOR, empty if it has none. IsCBOR must hold for
// the object.
func CBORAPIVersion(stored []byte) (version string, err error) {
	err = decodeCBORPath(stored, &version, "apiVersion")
	return version, err
}

func jsonUID(stored []byte) (uid string, err error) {
	if err := jsonMetadata(stored, "uid", &uid); err != nil {
		return "", fmt.Errorf("read the UID: %w", err)
	}
	return uid, nil
}
