package selection

import (
	"strconv"
	"strings"

	apisharding "k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apiserver/pkg/sharding"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/watchcache"
)

// Shard is a parsed shardSelector (KEP-5866). A Shard selects an object if the hash of the object's UID, or of its
// namespace, is in one of several ranges. It is immutable.
type Shard struct {
	// Text is the selector in its canonical form, which lists return in their metadata.
	Text        string
	byNamespace bool
	ranges      []hashRange
}

// hashRange is a range of hashes; last is inclusive, because the end of the last range does not fit into 64 bits.
type hashRange struct{ first, last uint64 }

// ParseShard parses a shardSelector with upstream's parser, whose errors it returns.
func ParseShard(text string) (*Shard, error) {
	selector, err := sharding.Parse(text)
	if err != nil {
		return nil, err
	}
	requirements := selector.Requirements()
	s := &Shard{Text: selector.String()}
	for _, requirement := range requirements {
		s.byNamespace = requirement.Key == "object.metadata.namespace" // the parser requires the same key in all ranges
		s.ranges = append(s.ranges, rangeOf(requirement))
	}
	return s, nil
}

// Size returns the number of ranges.
func (s *Shard) Size() int { return len(s.ranges) }

// rangeOf converts a range whose bounds the parser has checked: 16 hexadecimal digits, or 2^64 as the end.
func rangeOf(requirement apisharding.ShardRangeRequirement) hashRange {
	first, _ := strconv.ParseUint(strings.TrimPrefix(requirement.Start, "0x"), 16, 64)
	end, err := strconv.ParseUint(strings.TrimPrefix(requirement.End, "0x"), 16, 64)
	if err != nil { // 2^64
		end = 0
	}
	return hashRange{first: first, last: end - 1}
}

// hash returns the 64-bit FNV-1a hash of a text, as upstream's sharding.HashField. The result of hash/fnv is equal, and
// needs two allocations for each object of a list.
func hash(text string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	sum := uint64(offset)
	for i := range len(text) {
		sum = (sum ^ uint64(text[i])) * prime
	}
	return sum
}

// selects reports whether the shard has an entry.
func (s *Shard) selects(e *watchcache.Entry) (bool, error) {
	value := e.Namespace()
	if !s.byNamespace {
		var err error
		if value, err = codec.UID(e.Stored()); err != nil {
			return false, err
		}
	}
	sum := hash(value)
	for _, r := range s.ranges {
		if r.first <= sum && sum <= r.last {
			return true, nil
		}
	}
	return false, nil
}
