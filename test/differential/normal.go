package differential

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// shownHeaders are compared by value; of the others it only matters whether they are there.
var (
	shownHeaders   = []string{"Cache-Control", "Connection", "Content-Encoding", "Content-Type", "Location", "Retry-After", "Vary", "Warning", "X-Content-Type-Options"}
	presentHeaders = []string{"Audit-Id", "Date", "Etag", "Last-Modified"}
)

// normalizer makes the answers of one server to one script comparable: what is chosen by the server becomes a number
// in the order of its appearance, or a word.
type normalizer struct {
	uids      map[string]string
	names     map[string]string // generated
	revisions []int64           // of objects, ascending
}

// Normalize turns a script's answers into texts.
func Normalize(script *Script, answers []Answer) []string {
	n := &normalizer{uids: map[string]string{}, names: map[string]string{}}
	values := make([][]any, len(answers))
	for i := range answers {
		values[i] = n.values(&answers[i])
		for _, value := range values[i] {
			n.collect(value)
		}
	}
	slices.Sort(n.revisions)
	n.revisions = slices.Compact(n.revisions)
	texts := make([]string, len(answers))
	for i := range answers {
		texts[i] = n.text(&script.Cases[i], &answers[i], values[i])
	}
	return texts
}

// values parses what an answer consists of. What is no JSON stays text.
func (n *normalizer) values(a *Answer) []any {
	bodies := a.Events
	if len(a.Body) > 0 {
		bodies = [][]byte{plainBody(a)}
	}
	values := make([]any, len(bodies))
	for i, body := range bodies {
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		if err := decoder.Decode(&values[i]); err != nil || decoder.More() {
			values[i] = string(body)
		}
	}
	return values
}

// plainBody turns other encodings into JSON.
func plainBody(a *Answer) []byte {
	var converted []byte
	var err error
	switch mediaType, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";"); mediaType {
	case protobufType:
		converted, err = protobufJSON(a.Body)
	case "application/yaml":
		converted, err = yaml.YAMLToJSON(a.Body)
	default:
		return a.Body
	}
	if err != nil {
		return fmt.Appendf(nil, "%q", err.Error())
	}
	return converted
}

// collect finds what objects are identified by.
func (n *normalizer) collect(value any) {
	switch container := value.(type) {
	case map[string]any:
		n.collectMetadata(container["metadata"], isList(container))
		for _, key := range sortedKeys(container) {
			n.collect(container[key])
		}
	case []any:
		for _, item := range container {
			n.collect(item)
		}
	}
}

func isList(object map[string]any) bool {
	kind, _ := object["kind"].(string)
	return strings.HasSuffix(kind, "List") || kind == "Table"
}

func (n *normalizer) collectMetadata(value any, list bool) {
	metadata, ok := value.(map[string]any)
	if !ok || list {
		return
	}
	if uid, _ := metadata["uid"].(string); uid != "" && n.uids[uid] == "" {
		n.uids[uid] = fmt.Sprintf("uid-%d", len(n.uids)+1)
	}
	base, _ := metadata["generateName"].(string)
	if name, _ := metadata["name"].(string); base != "" && name != "" && n.names[name] == "" {
		n.names[name] = fmt.Sprintf("%s#%d", base, len(n.names)+1)
	}
	if revision, err := strconv.ParseInt(fmt.Sprint(metadata["resourceVersion"]), 10, 64); err == nil && metadata["creationTimestamp"] != nil {
		n.revisions = append(n.revisions, revision)
	}
}

// text is what is compared.
func (n *normalizer) text(c *Case, a *Answer, values []any) string {
	var b strings.Builder
	if a.Code != 0 {
		fmt.Fprintf(&b, "%d %s\n", a.Code, http.StatusText(a.Code))
	}
	n.writeHeaders(&b, a.Header)
	if _, only := c.directive("head"); only {
		return b.String()
	}
	_, sorted := c.directive("sort")
	_, unordered := c.directive("unordered")
	for _, value := range values {
		if text, ok := value.(string); ok {
			b.WriteString(n.plain(text) + "\n")
			continue
		}
		if unordered {
			hideRevisions(value)
		}
		value = n.normal(value)
		if sorted {
			sortItems(value)
		}
		var encoded bytes.Buffer
		encoder := json.NewEncoder(&encoded)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(value) // came from JSON
		b.Write(encoded.Bytes())
	}
	return b.String()
}

func (n *normalizer) writeHeaders(b *strings.Builder, header http.Header) {
	for _, name := range shownHeaders {
		for _, value := range slices.Sorted(slices.Values(header[name])) {
			fmt.Fprintf(b, "%s: %s\n", name, n.plain(value))
		}
	}
	for _, name := range presentHeaders {
		if header.Get(name) != "" {
			fmt.Fprintf(b, "%s: present\n", name)
		}
	}
}

func sortItems(value any) {
	object, _ := value.(map[string]any)
	items, _ := object["items"].([]any)
	slices.SortFunc(items, func(a, b any) int {
		name := []string{"metadata", "name"}
		return strings.Compare(fmt.Sprint(lookup(a, name)), fmt.Sprint(lookup(b, name)))
	})
}

// normal replaces what differs between any two servers.
func (n *normalizer) normal(value any) any {
	switch container := value.(type) {
	case map[string]any:
		if container["type"] == "BOOKMARK" {
			hideRevisions(container)
		}
		list := isList(container)
		normal := make(map[string]any, len(container))
		for key, field := range container {
			normal[n.plain(key)] = n.field(key, field, list)
		}
		return normal
	case []any:
		for i, item := range container {
			container[i] = n.normal(item)
		}
	case string:
		return n.plain(container)
	}
	return value
}

// hideRevisions of what may be compared without: of a bookmark, which everything that happens on the server moves.
func hideRevisions(value any) {
	switch container := value.(type) {
	case map[string]any:
		for key, field := range container {
			if key == "resourceVersion" {
				container[key] = "<any revision>"
				continue
			}
			hideRevisions(field)
		}
	case []any:
		for _, item := range container {
			hideRevisions(item)
		}
	}
}

// field normalizes a field by its name.
func (n *normalizer) field(key string, value any, inList bool) any {
	text, isText := value.(string)
	switch {
	case key == "metadata" && inList:
		return n.listMetadata(value)
	case key == "managedFields":
		return n.managers(value)
	case key == "resourceVersion" && isText:
		return n.revision(text)
	case isText && timestamp.MatchString(text):
		return "<time>"
	}
	return n.normal(value)
}

// managers sorts managed fields, which servers sort by seconds.
func (n *normalizer) managers(value any) any {
	entries, ok := n.normal(value).([]any)
	if !ok {
		return value
	}
	slices.SortStableFunc(entries, func(a, b any) int { return strings.Compare(managerKey(a), managerKey(b)) })
	return entries
}

func managerKey(entry any) string {
	fields, _ := entry.(map[string]any)
	return fmt.Sprint(fields["manager"], fields["operation"], fields["subresource"], fields["apiVersion"])
}

// listMetadata hides the revision of a list, which everything that happens on the server moves.
func (n *normalizer) listMetadata(value any) any {
	metadata, ok := value.(map[string]any)
	if !ok {
		return value
	}
	if metadata["resourceVersion"] != nil && metadata["creationTimestamp"] == nil {
		metadata["resourceVersion"] = "<revision of list>"
	}
	if token, _ := metadata["continue"].(string); token != "" {
		metadata["continue"] = continueText(token)
	}
	return metadata
}

// continueText shows where a list goes on.
func continueText(token string) string {
	decoded, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return token
	}
	var content map[string]any
	if json.Unmarshal(decoded, &content) != nil {
		return token
	}
	if revision, _ := content["rv"].(float64); revision > 0 {
		content["rv"] = "<revision of list>"
	}
	return fmt.Sprint(content)
}

func (n *normalizer) revision(text string) string {
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return text
	}
	if i, found := slices.BinarySearch(n.revisions, revision); found {
		return fmt.Sprintf("revision %d", i+1)
	}
	return "<revision>"
}

var (
	timestamp   = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)
	anyTime     = regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( \+0000 UTC( m=\+[0-9.]+)?|Z)`)
	currentWord = regexp.MustCompile(`current: \d+`)
	anyUID      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anyRevision = regexp.MustCompile(`(ResourceVersion in (precondition|object meta): |resourceVersion\\?":\\?"|resourceVersion:|ResourceVersion in record \()(\d+)`)
	// embedded are the managed fields of an object that a message quotes; their order depends on whether a second has
	// passed between two writes.
	embedded = regexp.MustCompile(`\\*"managedFields\\*":\[[^\]]*\]`)
	address  = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	ageCell  = regexp.MustCompile(`^\d+s$`)
)

// plain normalizes free text.
func (n *normalizer) plain(text string) string {
	text = embedded.ReplaceAllString(text, "<managed fields>")
	if ageCell.MatchString(text) {
		return "<age>"
	}
	text = anyTime.ReplaceAllString(text, "<time>")
	text = currentWord.ReplaceAllString(text, "current: <revision>")
	text = anyRevision.ReplaceAllString(text, "${1}<revision>")
	text = address.ReplaceAllString(text, "<address>")
	text = anyUID.ReplaceAllStringFunc(text, func(uid string) string {
		if known := n.uids[uid]; known != "" {
			return known
		}
		return "<uid>"
	})
	for name, replacement := range n.names {
		text = strings.ReplaceAll(text, name, replacement)
	}
	return text
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
