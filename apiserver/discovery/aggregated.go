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

// aggregatedDocument is the aggregated discovery of several groups. Its JSON is assembled from the JSON of the groups,
// most of which do not change from one catalog to the next.
type aggregatedDocument struct {
	*document
	// tag returns the entity tag, a hash of the groups' hashes.
	tag func() (string, error)
}

// part is the part of one group in an aggregated document.
type part struct {
	name     string
	priority int32
	object   func() discoveryv2.APIGroupDiscovery
	encoded  func() (encodedGroup, error)
}

// parts returns the parts of this server's groups, merged with the group versions of extension API servers, in the
// order of discovery.
func parts(groups []*groupDocuments, set *remote.Set) []part {
	all := make([]part, 0, len(groups))
	merged := mergedGroups(groups, set)
	for _, g := range groups {
		if merged[g.name] == nil {
			all = append(all, part{
				g.name, g.priority, func() discoveryv2.APIGroupDiscovery { return aggregate(g.group) }, g.encoded,
			})
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
		// Write of a hash never returns an error.
		_, _ = sum.Write(encoded.hash[:])
	}
	return fmt.Sprintf("\"%X\"", sum.Sum(nil)), nil
}

const begin, end = `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[`, "]}\n"

// joinCompressed returns the document of joinGroups as a gzip stream.
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

// joinGroups returns the JSON document of the groups, byte for byte as the JSON serializer encodes the list.
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
		// The same call has succeeded in the first loop.
		encoded, _ := g.encoded()
		joined.Write(encoded.json)
	}
	joined.WriteString(end)
	return joined.Bytes(), nil
}
