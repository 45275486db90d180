package discovery

import (
	"bytes"
	"cmp"
	"crypto/sha512"
	"fmt"
	"slices"
	"sync"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/deflate"
)

// aggregatedDocument is the aggregated discovery of several groups. Its JSON is put together from the JSON of the
// groups, of which most are the same in the next catalog.
type aggregatedDocument struct {
	*document
	tag func() (string, error) // entity tag: a hash of the groups' hashes
}

// part is the part of one group.
type part struct {
	name     string
	priority int32
	object   func() discoveryv2.APIGroupDiscovery
	encoded  func() (encodedGroup, error)
}

// parts returns the parts of groups of this server, merged with the group versions of extension API servers, in order.
func parts(groups []*groupDocuments, set *remote.Set) []part {
	all := make([]part, 0, len(groups))
	merged := mergedGroups(groups, set)
	for _, g := range groups {
		if merged[g.name] == nil {
			all = append(all, part{g.name, g.priority, func() discoveryv2.APIGroupDiscovery { return aggregate(g.group) }, g.encoded})
		}
	}
	if len(merged) == 0 {
		return all
	}
	for _, g := range merged {
		all = append(all, g.part())
	}
	slices.SortFunc(all, func(a, b part) int {
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.name, b.name))
	})
	return all
}

func newAggregated(groups []part) *aggregatedDocument {
	d := &aggregatedDocument{document: newDocument(func() runtime.Object {
		list := &discoveryv2.APIGroupDiscoveryList{TypeMeta: metav1.TypeMeta{
			Kind: "APIGroupDiscoveryList", APIVersion: discoveryv2.SchemeGroupVersion.String(),
		}}
		for _, g := range groups {
			list.Items = append(list.Items, g.object())
		}
		return list
	})}
	d.json = func() ([]byte, error) { return joinGroups(groups) }
	d.compressedJSON = func() ([]byte, error) { return joinCompressed(groups) }
	d.tag = sync.OnceValues(func() (string, error) { return entityTag(groups) })
	return d
}

func entityTag(groups []part) (string, error) {
	sum := sha512.New()
	for _, g := range groups {
		encoded, err := g.encoded()
		if err != nil {
			return "", err
		}
		_, _ = sum.Write(encoded.hash[:]) // never fails
	}
	return fmt.Sprintf("\"%X\"", sum.Sum(nil)), nil
}

const begin, end = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[`, "]}\n"

// joinCompressed returns what joinGroups does as a gzip stream.
func joinCompressed(groups []part) ([]byte, error) {
	constants := map[string]deflate.Part{}
	for _, text := range []string{begin, ",", end} {
		part, err := deflate.Compress([]byte(text))
		if err != nil {
			return nil, err
		}
		constants[text] = part
	}
	parts := []deflate.Part{constants[begin]}
	for i, g := range groups {
		encoded, err := g.encoded()
		if err != nil {
			return nil, err
		}
		if i > 0 {
			parts = append(parts, constants[","])
		}
		parts = append(parts, encoded.compressed)
	}
	return deflate.Join(append(parts, constants[end])...), nil
}

// joinGroups returns what the JSON serializer makes of the list.
func joinGroups(groups []part) ([]byte, error) {
	size := len(begin) + len(end)
	for _, g := range groups {
		encoded, err := g.encoded()
		if err != nil {
			return nil, err
		}
		size += len(encoded.json) + 1
	}
	joined := bytes.NewBuffer(make([]byte, 0, size))
	joined.WriteString(begin)
	for i, g := range groups {
		if i > 0 {
			joined.WriteByte(',')
		}
		encoded, _ := g.encoded() // succeeded above
		joined.Write(encoded.json)
	}
	joined.WriteString(end)
	return joined.Bytes(), nil
}
