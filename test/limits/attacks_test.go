package limits

import (
	"net/http"
	"os"
	"testing"
	"time"

	"quorate.dev/test/upstream"
)

// sent is a request.
type sent struct {
	method, path, contentType string
	header                    map[string]string
	body                      []byte
}

// attack is one request that is cheap for its client and was, or could be, expensive for the server.
type attack struct {
	name string
	// before has the requests that create what the attack needs.
	before func() []sent
	// denied returns a request that is denied as soon as what before creates is in effect; nil: the attack does not wait.
	denied func() sent
	// request returns the attack.
	request func() sent
}

// maxCPU is the CPU time that a request of 3 MB, the largest that is accepted, may take: decoding, validating and
// encoding it takes a second or two on both servers. Requests that take more are not proportional to their size.
const maxCPU = 4 * time.Second

// evaluationCPU is the CPU time that a request may take if expressions are evaluated. The evaluation ends when its
// thread has used two seconds; decoding the object, and collecting the garbage of the evaluation, take as much again
// and more.
const evaluationCPU = 8 * time.Second

// standard has the attacks that are sent by default, and the status codes of their responses. The others are sent when
// QUORATE_ATTACKS is set.
var standard = map[string]int{
	"pod, quantity with 3 million digits":        http.StatusBadRequest,
	"pod, quantity with exponent 100 million":    http.StatusBadRequest,
	"applied pod, exponent 100 million":          http.StatusBadRequest,
	"rule with quantity(), exponent 100 million": http.StatusUnprocessableEntity,
	"pod, 35,000 projected sources":              http.StatusCreated,
	"schemaless object, 9,000 levels":            http.StatusCreated,
	"rules on each of 300,000 elements":          http.StatusUnprocessableEntity,
	"create, 5,000 managers":                     http.StatusCreated,
	"JSON, 700,000 containers of a pod":          http.StatusBadRequest,
	"YAML, anchors nested 9 times":               http.StatusBadRequest,
	"protobuf, 1.5 million containers":           http.StatusBadRequest,
	"CBOR, 3 million containers":                 http.StatusBadRequest,
	"CBOR, quantity in chunks":                   http.StatusBadRequest,
	"CBOR, array of 2^40 items":                  http.StatusBadRequest,
}

// allowances has the CPU time of attacks that may take more than maxCPU. Rules of definitions are compiled one by one.
// A policy whose expressions have taken two seconds ends; each of its expressions that are left takes up to a second,
// because the library for CEL looks at the context after each hundredth step only.
var allowances = map[string]time.Duration{
	"definition with 15,000 rules":              30 * time.Second,
	"rule, nested all() over 20,000 elements":   evaluationCPU,
	"rules on each of 300,000 elements":         evaluationCPU,
	"failing rules on each of 300,000 elements": evaluationCPU,
	"transition rule, 40,000 elements":          evaluationCPU,
	"ratcheting, 60,000 elements":               evaluationCPU,
	"policy, nested comprehension":              evaluationCPU,
	"policy, 20 expressions with variables":     40 * time.Second,
	"policy, 1,000 parameters":                  evaluationCPU,
	"mutating policy, map()":                    evaluationCPU,
	"webhook, match condition":                  evaluationCPU,
}

// TestAttacks sends expensive requests to a server with default flags.
func TestAttacks(t *testing.T) {
	upstream.NeedsTime(t)
	runAttacks(t, nil, attacks())
}

// runAttacks sends attacks to a server with arguments, one at a time. None may take more than maxCPU of CPU time, also
// after its client has gone. With QUORATE_LIMITS_UPSTREAM, the requests go to kube-apiserver, for comparison, and its
// CPU time is reported only.
func runAttacks(t *testing.T, arguments []string, all []attack) {
	s := newServer(t, arguments)
	s.options.Answers = "/version" // so that a loaded machine has the time of prepare too
	s.launch(t)
	t.Cleanup(func() { s.Kill() })
	s.prepare(t, s.httpClient(t), []sent{post(configMaps, `{"metadata":{"name":"first"}}`)}) // loads the schema
	for _, attack := range all {
		if _, ok := standard[attack.name]; !ok && os.Getenv("QUORATE_ATTACKS") == "" {
			continue
		}
		t.Run(attack.name, func(t *testing.T) { attack.run(t, s) })
		select {
		case <-s.Ended():
			s.launch(t)
		default:
		}
	}
}

// run sends the attack and checks what it cost. A server that does not end its work is killed.
func (a attack) run(t *testing.T, s *server) {
	client := s.httpClient(t)
	if a.before != nil {
		s.prepare(t, client, a.before())
	}
	if a.denied != nil {
		s.awaitDenial(t, client, a.denied())
	}
	result := s.measure(t, client, a.request(), max(clientPatience, allowances[a.name]))
	t.Logf("RESULT %-45s %v", a.name, result)
	if !result.settled {
		s.Kill()
	}
	if isUpstream() {
		return
	}
	if result.cpu > max(allowances[a.name], maxCPU) || !result.settled {
		t.Errorf("the request took %v of CPU time", result.cpu)
	}
	if want := standard[a.name]; want != 0 && result.code != want {
		t.Errorf("got status code %d, want %d: %s", result.code, want, shorten(result.message, 1000))
	}
}
