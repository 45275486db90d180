package config

import (
	"errors"
	"fmt"

	kjson "sigs.k8s.io/json"
)

// MemberRecordVariable is the environment variable with the MemberRecord of the embedded member as JSON, which the
// operator sets. The record is not a flag, because an image that does not know the record must also start.
const MemberRecordVariable = "QUORATE_MEMBER_RECORD"

// MemberRecord has information about the data of a member from outside its data directory. A member whose data
// directory contradicts the record does not start. The zero value contradicts nothing.
type MemberRecord struct {
	// Volume identifies the volume of the data directory, for example by the UID of its PersistentVolumeClaim. It does
	// not change during the lifetime of a member.
	Volume string `json:"volume,omitempty"`
	// Started is set if the member has joined its cluster before, so that the data directory must contain data.
	Started bool `json:"started,omitempty"`
	// MemberID is etcd's ID of the member; 0 if it is unknown.
	MemberID uint64 `json:"memberID,omitempty"`
	// Index and Term identify an entry of the raft log that the member has acknowledged; 0 if none is known. The log
	// must contain the entry.
	Index uint64 `json:"index,omitempty"`
	Term  uint64 `json:"term,omitempty"`
	// Directory is a directory outside the volume in which the member itself keeps a record. It must be empty when the
	// member first starts, and should outlive the process, like an emptyDir volume of the member's pod. If it is empty,
	// the member keeps no record.
	Directory string `json:"directory,omitempty"`
}

// ParseMemberRecord parses the value of MemberRecordVariable. An empty value means the zero record.
func ParseMemberRecord(text string) (MemberRecord, error) {
	var record MemberRecord
	if text == "" {
		return record, nil
	}
	strict, err := kjson.UnmarshalStrict([]byte(text), &record)
	if err := errors.Join(append(strict, err)...); err != nil {
		return MemberRecord{}, fmt.Errorf("%s: %w", MemberRecordVariable, err)
	}
	return record, nil
}
