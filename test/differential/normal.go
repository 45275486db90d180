package differential

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

var (
	// shownHeaders are the headers whose values are compared. For all other headers, only the presence is compared.
	shownHeaders = []string{
		"Allow", "Cache-Control", "Connection", "Content-Encoding", "Content-Type", "Location", "Retry-After",
		"Vary", "Warning", "Www-Authenticate", "X-Content-Type-Options",
	}
	// flowHeaders contain UIDs. They are compared if the script reads the object with the UID.
	flowHeaders = []string{"X-Kubernetes-Pf-Flowschema-Uid", "X-Kubernetes-Pf-Prioritylevel-Uid"}
	// framing are headers whose values the HTTP libraries choose.
	framing = []string{"Content-Length"}
)

// normalizer makes the responses of one server to one script comparable. It replaces values that the server has chosen
// by numbers, in the order of their appearance, or by words.
type normalizer struct {
	hidden    []string // headers that are not compared
	uids      map[string]string
	names     map[string]string // generated names
	addresses *chosen           // addresses of Services
	ports     *chosen           // node ports
	asked     map[string]bool   // revisions that the script contains
	revisions []int64           // revisions of objects, ascending
	values    [][]any           // parsed values of each response
	clock     *clock
	reference *Reference // reference of the response that is being normalized
}

// newNormalizer reads the responses of a server that was started at the given time.
func newNormalizer(script *Script, answers []Answer, began time.Time, hidden []string) *normalizer {
	said := script.text()
	n := &normalizer{
		hidden: append(slices.Clone(hidden), framing...), uids: map[string]string{}, names: map[string]string{},
		addresses: newChosen("service address", said, serviceAddress), ports: newChosen("node port", said, portNumber),
		asked: map[string]bool{}, clock: &clock{began: began, said: said, ahead: map[string]string{}},
	}
	for _, found := range askedRevision.FindAllStringSubmatch(said, -1) {
		n.asked[found[1]] = true
	}
	n.values = make([][]any, len(answers))
	for i := range answers {
		n.values[i] = bodyValues(&answers[i])
		for _, value := range n.values[i] {
			n.collect(value)
		}
	}
	slices.Sort(n.revisions)
	n.revisions = slices.Compact(n.revisions)
	return n
}

// Texts returns the normalized responses as text.
func (n *normalizer) Texts(script *Script, answers []Answer) []string {
	texts := make([]string, len(answers))
	for i := range answers {
		texts[i] = n.text(&script.Cases[i], &answers[i], n.values[i])
	}
	return texts
}

// bodyValues parses the body or the events of a response.
func bodyValues(a *Answer) []any {
	bodies := a.Events
	if len(a.Body) > 0 {
		bodies = [][]byte{plainBody(a)}
	}
	values := make([]any, len(bodies))
	for i, body := range bodies {
		values[i] = parse(body)
	}
	return values
}

// parse parses JSON. It returns other bodies as text.
func parse(body []byte) (value any) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil || decoder.More() {
		return string(body)
	}
	return value
}

// plainBody decodes bodies in other encodings to JSON.
func plainBody(a *Answer) []byte {
	body, err := decompressed(a)
	if err == nil {
		switch mediaType, _, _ := strings.Cut(a.Header.Get("Content-Type"), ";"); mediaType {
		case protobufType:
			body, err = protobufJSON(body)
		case cborType:
			body, err = cborJSON(body)
		case "application/yaml":
			body, err = yaml.YAMLToJSON(body)
		}
	}
	if err != nil {
		return fmt.Appendf(nil, "%q", err.Error())
	}
	return body
}

func decompressed(a *Answer) ([]byte, error) {
	if a.Header.Get("Content-Encoding") != "gzip" {
		return a.Body, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(a.Body))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

// collect collects the UIDs, revisions and generated names in a value.
func (n *normalizer) collect(value any) {
	switch container := value.(type) {
	case map[string]any:
		n.collectMetadata(container["metadata"], isList(container))
		if address, _ := container["clusterIP"].(string); serviceAddress.MatchString(address) {
			n.addresses.see(address)
		}
		for _, key := range slices.Sorted(maps.Keys(container)) {
			if slices.Contains(ports, key) && inRange(container[key]) {
				n.ports.see(fmt.Sprint(container[key]))
			}
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
	if name, _ := metadata["name"].(string); anyUID.MatchString(name) {
		base = "uid-"
	}
	if name, _ := metadata["name"].(string); base != "" && name != "" && n.names[name] == "" {
		n.names[name] = fmt.Sprintf("%s#%d", base, len(n.names)+1)
	}
	text := fmt.Sprint(metadata["resourceVersion"])
	if revision, err := strconv.ParseInt(text, 10, 64); err == nil &&
		metadata["creationTimestamp"] != nil && !n.asked[text] {
		n.revisions = append(n.revisions, revision)
	}
}

// text returns the normalized response as text.
func (n *normalizer) text(c *Case, a *Answer, values []any) string {
	n.clock.now, n.reference = a.At, a.Reference
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
	_, outlined := c.directive("outline")
	for _, value := range values {
		if unordered {
			n.hideRevisions(value)
		}
		if text, ok := value.(string); ok && outlined {
			value = outline(text)
		}
		b.WriteString(n.show(value, sorted))
	}
	return b.String()
}

// show formats a normalized value in lines.
func (n *normalizer) show(value any, sorted bool) string {
	if text, ok := value.(string); ok {
		return n.plain(text) + "\n"
	}
	value = n.normal(value)
	if sorted {
		sortItems(value)
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(value) // cannot fail, because the value was decoded from JSON
	return encoded.String()
}

func (n *normalizer) writeHeaders(b *strings.Builder, header http.Header) {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		switch {
		case slices.Contains(n.hidden, name):
		case slices.Contains(flowHeaders, name):
			uid := n.uids[header.Get(name)]
			if uid == "" {
				uid = "a UID"
			}
			fmt.Fprintf(b, "%s: %s\n", name, uid)
		case !slices.Contains(shownHeaders, name):
			fmt.Fprintf(b, "%s: present\n", name)
		default:
			for _, value := range slices.Sorted(slices.Values(header[name])) {
				fmt.Fprintf(b, "%s: %s\n", name, n.plain(value))
			}
		}
	}
}

// outline returns the first line of a table and the first word of each other line, without the widths of columns.
func outline(table string) string {
	head, rows, _ := strings.Cut(table, "\n")
	var words []string
	for row := range strings.Lines(rows) {
		word, _, _ := strings.Cut(row, " ")
		words = append(words, word)
	}
	slices.Sort(words)
	return strings.Join(strings.Fields(head), " ") + "\n" + strings.Join(slices.Compact(words), "\n")
}

func sortItems(value any) {
	object, _ := value.(map[string]any)
	items, _ := object["items"].([]any)
	slices.SortFunc(items, func(a, b any) int {
		name := []string{"metadata", "name"}
		return strings.Compare(fmt.Sprint(lookup(a, name)), fmt.Sprint(lookup(b, name)))
	})
}

// normal replaces the values that differ between any two servers.
func (n *normalizer) normal(value any) any {
	switch container := value.(type) {
	case map[string]any:
		if container["type"] == "BOOKMARK" {
			n.hideRevisions(container)
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

// hideRevisions removes the revisions that every write on the server changes, such as those in bookmarks.
func (n *normalizer) hideRevisions(value any) {
	switch container := value.(type) {
	case map[string]any:
		for key, field := range container {
			if text, ok := field.(string); ok && key == "resourceVersion" {
				container[key] = n.moving(text)
				continue
			}
			n.hideRevisions(field)
		}
	case []any:
		for _, item := range container {
			n.hideRevisions(item)
		}
	}
}

// field normalizes a field, depending on its name.
func (n *normalizer) field(key string, value any, inList bool) any {
	text, isText := value.(string)
	switch {
	case key == "metadata" && inList:
		return n.listMetadata(value)
	case key == "managedFields":
		return n.managers(value)
	case key == "cells":
		return n.cells(value)
	case key == "resourceVersion" && isText:
		return n.revision(text)
	case slices.Contains(ports, key) && inRange(value):
		return n.ports.name(fmt.Sprint(value))
	case isText:
		return n.plain(n.clock.words(key, text))
	}
	return n.normal(value)
}

// ports are fields that servers fill from --service-node-port-range.
var ports = []string{"nodePort", "healthCheckNodePort"}

func inRange(value any) bool {
	number, ok := value.(json.Number)
	if !ok {
		return false
	}
	port, err := number.Int64()
	return err == nil && port >= 30000 && port < 33000 // a dry run of kube-apiserver may exceed the range
}

// cells normalizes the cells of a table's row.
func (n *normalizer) cells(value any) any {
	row, ok := n.normal(value).([]any)
	if !ok {
		return value
	}
	for i, cell := range row {
		if text, ok := cell.(string); ok && age.MatchString(`"`+text+`"`) {
			row[i] = "<age>"
		}
	}
	return row
}

// managers sorts the entries of managed fields. Servers sort them by time, which has a precision of a second.
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

// listMetadata normalizes the revision of a list and its continue token.
func (n *normalizer) listMetadata(value any) any {
	metadata, ok := value.(map[string]any)
	if !ok {
		return value
	}
	if revision, ok := metadata["resourceVersion"].(string); ok && metadata["creationTimestamp"] == nil {
		metadata["resourceVersion"] = n.moving(revision)
	}
	if token, _ := metadata["continue"].(string); token != "" {
		metadata["continue"] = n.plain(n.continueText(token))
	}
	return metadata
}

// continueText returns the content of a continue token as text.
func (n *normalizer) continueText(token string) string {
	decoded, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return token
	}
	var content map[string]any
	if json.Unmarshal(decoded, &content) != nil {
		return token
	}
	if revision, ok := content["rv"].(float64); ok {
		content["rv"] = n.moving(strconv.FormatInt(int64(revision), 10))
	}
	return fmt.Sprint(content)
}

func (n *normalizer) revision(text string) string {
	revision, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n.asked[text] {
		return text
	}
	if i, found := slices.BinarySearch(n.revisions, revision); found {
		return fmt.Sprintf("revision %d", i+1)
	}
	return "<revision>"
}

var (
	currentWord   = regexp.MustCompile(`current: \d+`)
	undecodable   = regexp.MustCompile(`not decodable revision=\d+`)
	tooOld        = regexp.MustCompile(`(too old resource version: )\d+ \(\d+\)`)
	anyUID        = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	askedRevision = regexp.MustCompile(`resourceVersion\\?":\\?"(\d+)`)
	anyRevision   = regexp.MustCompile(`(ResourceVersion in (precondition|object meta): |resourceVersion\\?":\\?"|resourceVersion:|ResourceVersion in record \()(\d+)`)
	// embedded matches the managed fields of an object that a message quotes. Their order depends on whether a second has
	// passed between two writes.
	embedded      = regexp.MustCompile(`\\*"managedFields\\*":\[[^\]]*\]`)
	nodePort      = regexp.MustCompile(`(:|nodePort\\*":)3[0-2]\d{3}\b`)
	portNumber    = regexp.MustCompile(`\b3[0-2]\d{3}\b`)
	generatedName = regexp.MustCompile(`\b(generated-|gen-)[bcdfghjklmnpqrstvwxz2456789]{5}\b`)
	eventName     = regexp.MustCompile(`\.1[0-9a-f]{15}\b`)
	address       = regexp.MustCompile(`(127\.0\.0\.1|localhost):\d+`)
	// refusedAddress matches an address that a client requested and the server did not allocate.
	refusedAddress = regexp.MustCompile(
		`(failed to allocate IP: IPAddress\.networking\.k8s\.io \\*")10\.0\.\d{1,2}\.\d{1,3}\b`,
	)
	// serviceAddress matches an address in --service-cluster-ip-range.
	serviceAddress = regexp.MustCompile(`\b10\.0\.\d{1,2}\.\d{1,3}\b`)
	// cells matches the cells of a table's row as text, among them the age.
	cells = regexp.MustCompile(`"cells":\[[^\]]*\]`)
	age   = regexp.MustCompile(`"(\d+[smhd]){1,2}"`)
)

// mounted is the volume with a service account's token that admission adds to pods.
var mounted = regexp.MustCompile(`kube-api-access-[a-z0-9]{5}\b`)

// plain normalizes text without a format.
func (n *normalizer) plain(text string) string {
	text = embedded.ReplaceAllString(text, "<managed fields>")
	text = cells.ReplaceAllStringFunc(text, func(row string) string { return age.ReplaceAllString(row, `"<age>"`) })
	text = n.clock.words("", text)
	text = webToken.ReplaceAllStringFunc(text, n.token)
	text = address.ReplaceAllString(text, "<address>")
	text = nodePort.ReplaceAllStringFunc(text, func(found string) string {
		number := portNumber.FindString(found)
		return strings.TrimSuffix(found, number) + n.ports.name(number)
	})
	text = undecodable.ReplaceAllString(text, "not decodable revision=<revision>")
	text = currentWord.ReplaceAllString(text, "current: <revision>")
	text = tooOld.ReplaceAllString(text, "${1}<revision> (<revision>)")
	text = anyRevision.ReplaceAllString(text, "${1}<revision>")
	text = mounted.ReplaceAllString(text, "kube-api-access-<random>")
	text = refusedAddress.ReplaceAllString(text, "${1}<service address>")
	text = serviceAddress.ReplaceAllStringFunc(text, n.addresses.name)
	text = anyUID.ReplaceAllStringFunc(text, func(uid string) string {
		if known := n.uids[uid]; known != "" {
			return known
		}
		return "<uid>"
	})
	for name, replacement := range n.names {
		text = strings.ReplaceAll(text, name, replacement)
	}
	text = eventName.ReplaceAllString(text, ".<time>")
	return generatedName.ReplaceAllString(text, "${1}<random>")
}
