package config

import "testing"

func TestParseMemberRecord(t *testing.T) {
	for text, valid := range map[string]bool{
		``: true, `{"directory": "/var/run/quorate"}`: true, `{"Directory": "/var/run/quorate"}`: false,
		`{"unknown": 1}`: false, `{"directory": "/a", "directory": "/b"}`: false, `{"directory": "/a"} {}`: false, `{`: false,
	} {
		record, err := ParseMemberRecord(text)
		if (err == nil) != valid || err != nil && record != (MemberRecord{}) {
			t.Errorf("%q: got %+v, %v", text, record, err)
		}
	}
}
