package differential

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// auditTimeout bounds the wait for the last event of a request. A server writes it after the response.
const auditTimeout = 20 * time.Second

// Audited returns a script in which each request has an Audit-ID and is followed by an AUDIT case.
func Audited(script *Script, name string) *Script {
	audited := &Script{Name: name, Area: script.Area}
	for i, c := range script.Cases {
		id, given := c.Header["Audit-Id"]
		if !given {
			id = fmt.Sprintf("%s-%d", name, i)
			c.Header = map[string]string{"Audit-Id": id}
			for header, value := range script.Cases[i].Header {
				c.Header[header] = value
			}
		}
		audited.Cases = append(audited.Cases, c)
		if !c.hasEvents() {
			continue
		}
		events := Case{Name: c.Name + ", events", Method: "AUDIT", Path: id}
		if _, head := c.directive("head"); head { // the bodies of such responses are not compared
			events.Directives = append(events.Directives, Directive{Name: "bodiless"})
		}
		audited.Cases = append(audited.Cases, events)
	}
	return audited
}

// hasEvents reports whether the case is one request that ends and that the policy of the test audits.
func (c *Case) hasEvents() bool {
	if strings.ToUpper(c.Method) != c.Method || c.Path == "/healthz" ||
		strings.Contains("EVENTS REST CALLS REVIEWS STORE AUDIT KUBECTL UPGRADE CONVERSIONS", c.Method) {
		return false
	}
	_, unended := c.directive("open")
	_, repeated := c.directive("until")
	return !unended && !repeated
}

// audit waits for the events of a request, and returns them without the values that differ between any two servers.
func (r *run) audit(ctx context.Context, c *Case) *Answer {
	answer := &Answer{}
	var events []auditv1.Event
	complete := func(context.Context) (bool, error) {
		var err error
		events, err = r.server.auditEvents(r.expand(c.Path))
		return isComplete(events), err
	}
	if err := wait.PollUntilContextTimeout(ctx, untilInterval, auditTimeout, true, complete); err != nil {
		answer.failed("wait for the audit events of %s: %v", c.Path, err)
	}
	for i := range events {
		event := &events[i]
		if event.StageTimestamp.Before(&event.RequestReceivedTimestamp) {
			answer.failed("stage %s precedes its request", event.Stage)
		}
		if _, bodiless := c.directive("bodiless"); bodiless {
			event.ResponseObject = nil
		}
		shown, err := comparable(event)
		if err != nil {
			answer.failed("event: %v", err)
		}
		answer.Events = append(answer.Events, shown)
	}
	return answer
}

// isComplete reports whether all events of a request have been read. The policy of the test audits every request up to
// its end; a request that is rejected before its authentication has one event.
func isComplete(events []auditv1.Event) bool {
	if len(events) == 0 {
		return false
	}
	switch last := events[len(events)-1]; last.Stage {
	case "ResponseComplete", "Panic":
		return true
	case "ResponseStarted":
		return len(events) == 1 && last.User.Username == ""
	}
	return false
}

// chosenByServer are the query parameters whose values come from responses.
var chosenByServer = regexp.MustCompile(`\b(resourceVersion|continue)=[^&]+`)

func comparable(event *auditv1.Event) ([]byte, error) {
	encoded, err := json.Marshal(event)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return nil, err
	}
	for _, differs := range []string{"auditID", "requestReceivedTimestamp", "stageTimestamp"} {
		delete(fields, differs)
	}
	if uri, ok := fields["requestURI"].(string); ok {
		fields["requestURI"] = chosenByServer.ReplaceAllString(uri, "${1}=<chosen>")
	}
	annotations, _ := fields["annotations"].(map[string]any)
	for key := range annotations {
		if strings.HasPrefix(key, "apiserver.latency.k8s.io/") {
			delete(annotations, key)
		}
	}
	return json.Marshal(fields)
}

// anyRequest selects the events of all requests.
const anyRequest = ""

// auditEvents reads the complete events of a request from the log.
func (s *Server) auditEvents(id string) ([]auditv1.Event, error) {
	log, err := os.ReadFile(s.AuditLog)
	if err != nil {
		return nil, err
	}
	log = log[:bytes.LastIndexByte(log, '\n')+1]
	var events []auditv1.Event
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, len(log)+1)
	for lines.Scan() {
		if id != anyRequest && !bytes.Contains(lines.Bytes(), []byte(`"auditID":"`+id+`"`)) {
			continue
		}
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, err
		}
		events = append(events, event)
	}
	return events, lines.Err()
}
