package config

import (
	"encoding/json"
	"fmt"
)

// The gRPC method with which an embedded member sends a MemberReport to its clients. The request is a
// google.protobuf.Empty, the response a google.protobuf.StringValue that contains the report as JSON. A member of an
// earlier release responds with UNIMPLEMENTED, and a learner with an error.
const (
	MemberReportService = "quorate.etcd.Member"
	MemberReportName    = "Report"
	MemberReportMethod  = "/" + MemberReportService + "/" + MemberReportName
)

// MemberReport is the information about a member's data that etcd's own status lacks. The zero value means that nothing
// is known.
type MemberReport struct {
	// Run is a random name of the process. It changes when the process restarts.
	Run string `json:"run,omitempty"`
	// Compared is set if the member has compared its log with the log of the present leader, and the leader has all
	// entries that the member has acknowledged.
	Compared bool `json:"compared,omitempty"`
	// Difference describes which members have different data at which revision. It is empty if the member knows of no
	// difference, or only of differences that the members can resolve.
	Difference string `json:"difference,omitempty"`
}

// String returns the report as JSON.
func (r MemberReport) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return "{}" // it has no field that cannot be encoded
	}
	return string(text)
}

// ParseMemberReport parses the report of a member. It ignores fields of later releases.
func ParseMemberReport(text string) (MemberReport, error) {
	var report MemberReport
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return MemberReport{}, fmt.Errorf("parse the report of an etcd member: %w", err)
	}
	return report, nil
}
