package differential

import (
	"regexp"
	"testing"
)

var numbered = regexp.MustCompile(`<(?:service address|node port) \d+>`)

// followRedraws gives the allocated values of Quorate the numbers that kube-apiserver's values have in the same places.
// kube-apiserver sometimes allocates a value again that a script has released, so that two values of Quorate have one
// counterpart. The texts are unchanged if one value of Quorate has two counterparts: Quorate has then allocated a value
// twice.
func (ours *texts) followRedraws(theirs texts) {
	counterparts := map[string]string{}
	pair := func(own, other string) bool {
		values, others := numbered.FindAllString(own, -1), numbered.FindAllString(other, -1)
		if len(values) != len(others) {
			return false
		}
		for i, value := range values {
			if known, ok := counterparts[value]; ok && known != others[i] {
				return false
			}
			counterparts[value] = others[i]
		}
		return true
	}
	for i := range ours.answers {
		if !pair(ours.answers[i], theirs.answers[i]) {
			return
		}
	}
	for key := range ours.keys {
		if !pair(ours.keys[key], theirs.keys[key]) {
			return
		}
	}
	rename := func(text string) string {
		return numbered.ReplaceAllStringFunc(text, func(value string) string { return counterparts[value] })
	}
	for i := range ours.answers {
		ours.answers[i] = rename(ours.answers[i])
	}
	for key := range ours.keys {
		ours.keys[key] = rename(ours.keys[key])
	}
}

func TestFollowRedraws(t *testing.T) {
	theirs := texts{
		answers: []string{"<node port 1>", "<node port 2>", "<node port 1>"}, keys: map[string]string{"a": "<node port 1>"},
	}
	ours := texts{
		answers: []string{"<node port 1>", "<node port 2>", "<node port 3>"}, keys: map[string]string{"a": "<node port 3>"},
	}
	ours.followRedraws(theirs)
	if ours.answers[2] != "<node port 1>" || ours.keys["a"] != "<node port 1>" || ours.answers[1] != "<node port 2>" {
		t.Errorf("a value that kube-apiserver has drawn twice: %v", ours)
	}
	twice := texts{
		answers: []string{"<node port 1>", "<node port 1>", "<node port 2>"}, keys: map[string]string{"a": "<node port 2>"},
	}
	twice.followRedraws(theirs)
	if twice.answers[1] != "<node port 1>" || twice.answers[2] != "<node port 2>" {
		t.Errorf("a value that this server has drawn twice must differ: %v", twice)
	}
}
