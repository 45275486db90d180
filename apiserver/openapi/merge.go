package openapi

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"quorate.dev/apiserver/aggregator/remote"
)

// mergeV2 merges documents of extension API servers into a version 2 document, a gzip stream, with the same result as
// kube-aggregator's merge: paths that the document has already stay as they are; a definition or parameter with a
// name that the document has for other content is renamed. The document may be large, and is read as a stream: only
// the members whose names the other documents have too are decoded. A document that cannot be merged is left out and
// passed to skip.
func mergeV2(local []byte, all []*remote.Documents, skip func(*remote.Documents, error)) ([]byte, error) {
	added := &spec.Swagger{}
	var sources []*spec.Swagger
	var origins []*remote.Documents
	for _, documents := range all {
		if documents.V2 == nil {
			continue
		}
		source, err := documents.V2.Decode()
		if err != nil {
			skip(documents, err)
			continue
		}
		sources, origins = append(sources, source), append(origins, documents)
	}
	content, err := gzip.NewReader(bytes.NewReader(local))
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI: %w", err)
	}
	layout, err := scan(content, namesOf(sources), added)
	if err != nil {
		return nil, err
	}
	for i, source := range sources {
		if err := mergeOne(added, source); err != nil {
			skip(origins[i], err)
		}
	}
	return layout.splice(local, added)
}

// mergeOne merges source into target. kube-openapi's merge panics on some documents; target is then unchanged.
func mergeOne(target, source *spec.Swagger) (err error) {
	merged := *target
	merged.Definitions = maps.Clone(target.Definitions)
	merged.Parameters = maps.Clone(target.Parameters)
	if target.Paths != nil {
		merged.Paths = &spec.Paths{Paths: maps.Clone(target.Paths.Paths)}
	}
	for name, definition := range merged.Definitions { // the merge adds extensions, also to a nil map
		if definition.Extensions = maps.Clone(definition.Extensions); definition.Extensions == nil {
			definition.Extensions = spec.Extensions{}
		}
		merged.Definitions[name] = definition
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("merge OpenAPI documents: %v", r)
		}
	}()
	if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(&merged, source); err != nil {
		return fmt.Errorf("merge OpenAPI documents: %w", err)
	}
	*target = merged
	return nil
}

// names has the names of the members of a document's objects paths, definitions and parameters.
type names map[string]map[string]bool

func namesOf(sources []*spec.Swagger) names {
	found := names{"paths": {}, "definitions": {}, "parameters": {}}
	for _, source := range sources {
		if source.Paths != nil {
			for path := range source.Paths.Paths {
				found["paths"][path] = true
			}
		}
		for name := range source.Definitions {
			found["definitions"][name] = true
		}
		for name := range source.Parameters {
			found["parameters"][name] = true
		}
	}
	return found
}

// layout has byte offsets of an encoded version 2 document.
type layout struct {
	// ends has the offsets of the closing braces of paths, definitions and parameters.
	ends map[string]int
	// empty has the objects among paths, definitions and parameters that have no members.
	empty map[string]bool
	// end is the offset of the document's closing brace.
	end int
	// definitions has the places of the definitions that were decoded.
	definitions map[string]span
	// decoded has the names of all members that were decoded.
	decoded names
}

type span struct{ start, end int }

// scan finds the places where members can be added, and decodes the wanted members into found. It also decodes members
// whose name is a wanted name with a numeric suffix (unnumbered), because the merge must know which names it cannot
// give to renamed definitions.
func scan(document io.Reader, wanted names, found *spec.Swagger) (*layout, error) {
	l := &layout{
		ends: map[string]int{}, empty: map[string]bool{}, definitions: map[string]span{},
		decoded: names{"paths": {}, "definitions": {}, "parameters": {}},
	}
	decoder := json.NewDecoder(document)
	if err := open(decoder); err != nil {
		return nil, err
	}
	for decoder.More() {
		name, err := key(decoder)
		if err != nil {
			return nil, err
		}
		if wanted[name] == nil {
			var ignored json.RawMessage
			if err := decoder.Decode(&ignored); err != nil {
				return nil, fmt.Errorf("decode OpenAPI: %w", err)
			}
			continue
		}
		if err := l.scanMembers(decoder, name, wanted[name], found); err != nil {
			return nil, err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, fmt.Errorf("decode OpenAPI: %w", err)
	}
	l.end = int(decoder.InputOffset()) - 1
	return l, nil
}

// scanMembers scans the members of one object: paths, definitions or parameters.
func (l *layout) scanMembers(decoder *json.Decoder, of string, wanted map[string]bool, found *spec.Swagger) error {
	if err := open(decoder); err != nil {
		return err
	}
	l.empty[of] = !decoder.More()
	for decoder.More() {
		name, err := key(decoder)
		if err != nil {
			return err
		}
		var content json.RawMessage
		if err := decoder.Decode(&content); err != nil {
			return fmt.Errorf("decode OpenAPI: %w", err)
		}
		if !wanted[name] && !wanted[unnumbered(name)] {
			continue
		}
		if err := l.add(of, name, content, int(decoder.InputOffset()), found); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("decode OpenAPI: %w", err)
	}
	l.ends[of] = int(decoder.InputOffset()) - 1
	return nil
}

// unnumbered returns the name of a definition without the suffix (_v2, _v3 and so on) that the merge adds when it
// renames the definition.
func unnumbered(name string) string {
	end := len(name)
	for end > 0 && name[end-1] >= '0' && name[end-1] <= '9' {
		end--
	}
	if end < len(name) && end > 2 && name[end-2:end] == "_v" {
		return name[:end-2]
	}
	return name
}

// add decodes a member of paths, definitions or parameters, which ends at an offset in the document.
func (l *layout) add(of, name string, content []byte, end int, found *spec.Swagger) (err error) {
	l.decoded[of][name] = true
	switch of {
	case "paths":
		if found.Paths == nil {
			found.Paths = &spec.Paths{Paths: map[string]spec.PathItem{}}
		}
		found.Paths.Paths[name] = spec.PathItem{} // the merge only needs the name
	case "definitions":
		var definition spec.Schema
		err = definition.UnmarshalJSON(content)
		if found.Definitions == nil {
			found.Definitions = spec.Definitions{}
		}
		found.Definitions[name] = definition
		l.definitions[name] = span{end - len(content), end}
	case "parameters":
		var parameter spec.Parameter
		err = parameter.UnmarshalJSON(content)
		if found.Parameters == nil {
			found.Parameters = map[string]spec.Parameter{}
		}
		found.Parameters[name] = parameter
	}
	if err != nil {
		return fmt.Errorf("decode %s of OpenAPI: %w", name, err)
	}
	return nil
}

// edit is the replacement of a span of a document.
type edit struct {
	span
	content []byte
}

// splice returns the document with the members that only merged has, and with the definitions of merged, to which the
// merge may have added group version kinds.
func (l *layout) splice(document []byte, merged *spec.Swagger) ([]byte, error) {
	var edits []edit
	added := map[string]map[string]any{"paths": {}, "definitions": {}, "parameters": {}}
	if merged.Paths != nil {
		for name, item := range merged.Paths.Paths {
			added["paths"][name] = item
		}
	}
	for name, parameter := range merged.Parameters {
		added["parameters"][name] = parameter
	}
	for name, definition := range merged.Definitions {
		at, exists := l.definitions[name]
		if !exists {
			added["definitions"][name] = definition
			continue
		}
		content, err := json.Marshal(definition)
		if err != nil {
			return nil, fmt.Errorf("encode OpenAPI: %w", err)
		}
		edits = append(edits, edit{at, content})
	}
	for of, all := range added {
		maps.DeleteFunc(all, func(name string, _ any) bool { return l.decoded[of][name] })
		if len(all) == 0 {
			continue
		}
		edit, err := l.insert(of, all)
		if err != nil {
			return nil, err
		}
		edits = append(edits, edit)
	}
	return apply(document, edits)
}

// insert returns the edit that adds members to paths, definitions or parameters.
func (l *layout) insert(of string, all map[string]any) (edit, error) {
	content, err := json.Marshal(all)
	if err != nil {
		return edit{}, fmt.Errorf("encode OpenAPI: %w", err)
	}
	end, exists := l.ends[of]
	switch {
	case !exists:
		return edit{span{l.end, l.end}, fmt.Appendf(nil, ",%q:%s", of, content)}, nil
	case l.empty[of]:
		content = content[1 : len(content)-1]
	default:
		content[0] = ','
		content = content[:len(content)-1]
	}
	return edit{span{end, end}, content}, nil
}

// apply returns a gzip stream with edits in its content. The spans of the edits must not overlap.
func apply(document []byte, edits []edit) ([]byte, error) {
	slices.SortFunc(edits, func(a, b edit) int { return a.start - b.start })
	source, err := gzip.NewReader(bytes.NewReader(document))
	if err != nil {
		return nil, fmt.Errorf("decompress OpenAPI: %w", err)
	}
	var edited bytes.Buffer
	target, err := gzip.NewWriterLevel(&edited, gzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress OpenAPI: %w", err)
	}
	at := 0
	for _, e := range edits {
		if _, err := io.CopyN(target, source, int64(e.start-at)); err != nil {
			return nil, fmt.Errorf("copy OpenAPI: %w", err)
		}
		if _, err := target.Write(e.content); err != nil {
			return nil, fmt.Errorf("compress OpenAPI: %w", err)
		}
		if _, err := io.CopyN(io.Discard, source, int64(e.end-e.start)); err != nil {
			return nil, fmt.Errorf("decompress OpenAPI: %w", err)
		}
		at = e.end
	}
	if _, err := io.Copy(target, source); err != nil { //nolint:gosec // the content is this server's own
		return nil, fmt.Errorf("copy OpenAPI: %w", err)
	}
	if err := target.Close(); err != nil {
		return nil, fmt.Errorf("compress OpenAPI: %w", err)
	}
	return edited.Bytes(), nil
}

var errNoObject = errors.New("decode OpenAPI: expected an object")

// open reads the opening brace of an object.
func open(decoder *json.Decoder) error {
	token, err := decoder.Token()
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("decode OpenAPI: %w", err)
	}
	if token != json.Delim('{') {
		return errNoObject
	}
	return nil
}

// key reads the name of a member.
func key(decoder *json.Decoder) (string, error) {
	token, err := decoder.Token()
	if err != nil {
		return "", fmt.Errorf("decode OpenAPI: %w", err)
	}
	name, ok := token.(string)
	if !ok {
		return "", errNoObject
	}
	return name, nil
}
