package handlers

import (
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/watchcache"
)

// Responses are mostly put together from encodings that all requests share. What a response holds besides is bounded, for
// all of them together: encodings that the cache does not keep, and bodies that are laid out anew as a whole.
const (
	// encodedAtOnce bounds the bytes that responses hold of their own at the same time.
	encodedAtOnce = 256 << 20
	// littleRoom is what a response takes without waiting for others.
	littleRoom = 256 << 10

	// What a body takes, in bytes for each of its own, while it is laid out for people or turned into YAML.
	prettyFactor, yamlFactor = 3, 5
	// jsonFactor is about how many bytes of JSON a byte of protobuf becomes.
	jsonFactor = 2
	// metadataSize is about what the metadata of an object takes at most.
	metadataSize = 2 << 10
)

// takeRoom waits until there is room for a response that holds so many bytes of its own. A request takes room once, for
// all that it will need: the second time it has it already.
func (c *call) takeRoom(bytes int64) (err error) {
	if c.room != nil || bytes <= littleRoom {
		return nil
	}
	c.room, err = c.encoded.Acquire(c.r.Context(), bytes)
	return err
}

// leaveRoom gives back what is not needed for so many bytes.
func (c *call) leaveRoom(bytes int64) {
	if c.room != nil {
		c.room.Shrink(bytes)
	}
}

// layoutFactor is what a body takes while it is laid out anew, in bytes for each of its own.
func (o output) layoutFactor() int64 {
	switch {
	case o.media == codec.YAML:
		return yamlFactor
	case o.pretty:
		return prettyFactor
	}
	return 0
}

// room is about how many bytes a response of entries holds of its own.
func (e *encoder) room(entries []*watchcache.Entry) int64 {
	var all, own int64
	for _, entry := range entries {
		size := e.estimate(entry)
		all += size
		if !entry.Keeps(&e.formats[frameNone]) {
			own += size
		}
	}
	return own + all*e.call.output.layoutFactor()
}

// estimate is about how many bytes the encoding of an entry has.
func (e *encoder) estimate(entry *watchcache.Entry) int64 {
	stored := entry.Stored()
	size := int64(len(stored))
	if e.media == codec.JSON && codec.IsProtobuf(stored) {
		size *= jsonFactor
	}
	if e.call.output.as == metadataOnly {
		size = min(size, metadataSize)
	}
	return size
}
