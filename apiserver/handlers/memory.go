package handlers

import (
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/watchcache"
)

// Most bytes of a response are encodings that the watch cache owns and that all requests share. A ByteLimit bounds the
// memory that responses hold in addition to the cache: encodings that the cache does not have yet, and bodies that are
// reformatted as a whole.
const (
	// maxResponseMemory bounds the bytes that all responses together hold in addition to the watch cache.
	maxResponseMemory = 256 << 20
	// freeMemory is the number of bytes that each response may hold without acquiring them from the limit.
	freeMemory = 256 << 10

	// prettyFactor and yamlFactor are the approximate bytes of memory for each byte of a body while it is indented or
	// converted to YAML.
	prettyFactor, yamlFactor = 3, 5
)

// acquireMemory waits until the response may hold the bytes in addition to the watch cache. The first call must cover
// the whole response: later calls do nothing. A read releases its seat before it waits, because it may wait for clients
// that do not read their responses, and other requests of its priority level must not. A write keeps its seat, because
// its result is in memory.
func (c *call) acquireMemory(bytes int64) (err error) {
	if c.memory != nil || bytes <= freeMemory {
		return nil
	}
	if c.memory = c.responseMemory.TryAcquire(c.r.Context(), bytes); c.memory != nil {
		return nil
	}
	if verb := c.record.Info.Verb; verb == "get" || verb == "list" {
		c.record.ReleaseSeat()
	}
	c.memory, err = c.responseMemory.Acquire(c.r.Context(), bytes)
	return err
}

// shrinkMemory reduces the memory that the response holds to the given number of bytes.
func (c *call) shrinkMemory(bytes int64) {
	if c.memory != nil {
		c.memory.Shrink(bytes)
	}
}

// reformatFactor returns the approximate bytes of memory for each byte of the body while it is reformatted, or 0 if it
// is not.
func (o output) reformatFactor() int64 {
	switch {
	case o.media == codec.YAML:
		return yamlFactor
	case o.pretty:
		return prettyFactor
	}
	return 0
}

// listMemory returns the approximate bytes that a list of entries holds in addition to the watch cache.
func (c *call) listMemory(f encoding.Format, entries []*watchcache.Entry) int64 {
	total, uncached := estimate(f, entries)
	return uncached + total*c.output.reformatFactor()
}

// estimate returns the approximate size of the encodings of all entries, and of the encodings that the watch cache does
// not have.
func estimate(f encoding.Format, entries []*watchcache.Entry) (total, uncached int64) {
	for _, entry := range entries {
		size := f.EstimateSize(entry.Stored())
		total += size
		if !entry.Keeps(f) {
			uncached += size
		}
	}
	return total, uncached
}
