package limits

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

const (
	bodyLimit = 3 << 20 // of both servers
	namespace = "/api/v1/namespaces/default/"

	configMaps  = namespace + "configmaps"
	pods        = namespace + "pods"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	isJSON      = "application/json"
	isYAML      = "application/yaml"
	isProtobuf  = "application/vnd.kubernetes.protobuf"
	isMerge     = "application/merge-patch+json"
	isStrategic = "application/strategic-merge-patch+json"
	isApply     = "application/apply-patch+yaml"
)

func post(path, body string) sent {
	return sent{method: http.MethodPost, path: path, contentType: isJSON, body: []byte(body)}
}
func get1(path string) sent { return sent{method: http.MethodGet, path: path} }
func put(path, body string) sent {
	return sent{method: http.MethodPut, path: path, contentType: isJSON, body: []byte(body)}
}

func patch(path, contentType, body string) sent {
	return sent{method: http.MethodPatch, path: path, contentType: contentType, body: []byte(body)}
}

func apply(path, manager, body string) sent {
	return patch(path+"?fieldManager="+url.QueryEscape(manager), isApply, body)
}

// dry returns the same request as a dry run.
func (s sent) dry() sent {
	separator := "?"
	if strings.Contains(s.path, "?") {
		separator = "&"
	}
	s.path += separator + "dryRun=All"
	return s
}

// repeat joins n texts that a function returns.
func repeat(n int, separator string, text func(i int) string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteString(separator)
		}
		b.WriteString(text(i))
	}
	return b.String()
}

// nested returns levels of an opening text, an inner one, and levels of a closing one.
func nested(levels int, opening, inner, closing string) string {
	return strings.Repeat(opening, levels) + inner + strings.Repeat(closing, levels)
}

// pod returns a pod whose only container has further fields, and whose spec has.
func pod(name, container, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{%s"containers":[{"name":"c","image":"i"%s}]}}`,
		name, spec, container)
}

// withQuantity returns a pod that requests a quantity.
func withQuantity(name, quantity string) string {
	return pod(name, `,"resources":{"requests":{"cpu":"`+quantity+`"}}`, "")
}

// definition returns a CustomResourceDefinition of the group attacks.test with a schema of its spec.
func definition(plural, schema string) string {
	kind := strings.ToUpper(plural[:1]) + plural[1:]
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.attacks.test"},
		"spec":{"group":"attacks.test","scope":"Namespaced","names":{"plural":"%[1]s","singular":"%[1]s","kind":"%[2]s","listKind":"%[2]sList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":%[3]s}}}}]}}`,
		plural, kind, schema)
}

// define returns the requests that define a resource and wait until it is served.
func define(plural, schema string) []sent {
	return []sent{post(definitions, definition(plural, schema)), get1(customPath(plural))}
}

func customPath(plural string) string { return "/apis/attacks.test/v1/namespaces/default/" + plural }

// custom returns an object of a definition.
func custom(plural, name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"attacks.test/v1","kind":"%s","metadata":{"name":%q},"spec":%s}`,
		strings.ToUpper(plural[:1])+plural[1:], name, spec)
}

// compressed compresses the body of a request with gzip.
func compressed(s sent) sent {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(s.body)
	_ = z.Close()
	s.body, s.header = b.Bytes(), map[string]string{"Content-Encoding": "gzip"}
	return s
}

// asYAML sends a body as YAML.
func asYAML(s sent) sent { s.contentType = isYAML; return s }

// inEnvelope returns a protobuf body with the kind of an object and the bytes of its message.
func inEnvelope(apiVersion, kind string, message []byte) []byte {
	typeMeta := append(delimited(1, []byte(apiVersion)), delimited(2, []byte(kind))...)
	return append([]byte("k8s\x00"), append(delimited(1, typeMeta), delimited(2, message)...)...)
}

// delimited returns a length-delimited protobuf field.
func delimited(number int, content []byte) []byte {
	head := []byte{byte(number<<3 | 2)}
	for n := len(content); ; n >>= 7 {
		if n < 0x80 {
			head = append(head, byte(n))
			break
		}
		head = append(head, byte(n)|0x80)
	}
	return append(head, content...)
}
