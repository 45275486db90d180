package audit

import (
	"bytes"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"sigs.k8s.io/randfill"
)

// TestEncode compares lines of random events with those of upstream's encoder.
func TestEncode(t *testing.T) {
	texts := []string{"", "plain", "<a&b>", "quote\" and \\", "line\nbreak\x00\x7f", "ü\u2028", "\xff invalid"}
	objects := []string{`{"a": [1, "<x>"] }` + "\n", "null", `"text"`, "", "{", "1"}
	filler := randfill.NewWithSeed(1).NilChance(0.4).NumElements(0, 4).MaxDepth(6).Funcs(
		func(s *string, c randfill.Continue) { *s = texts[c.Intn(len(texts))] },
		func(at *metav1.MicroTime, c randfill.Continue) {
			seconds := c.Int63n(3) // Most times follow one of the same second.
			if c.Bool() {
				seconds = c.Int63n(1<<40) - 1<<38
			}
			*at = metav1.MicroTime{Time: time.Unix(seconds, c.Int63n(1e9)).In(time.FixedZone("east", 3600))}
		},
		func(u *runtime.Unknown, c randfill.Continue) {
			u.ContentType = runtime.ContentTypeJSON
			if raw := objects[c.Intn(len(objects))]; raw != "" {
				u.Raw = []byte(raw)
			}
		},
	)
	upstream := audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion)
	const events = 2000
	e, failed := &encoder{}, 0
	for range events {
		event := &auditapi.Event{}
		filler.Fill(event)
		event.TypeMeta.Kind, event.TypeMeta.APIVersion = "", ""
		want, wantErr := runtime.Encode(upstream, event)
		got, err := e.encode(event)
		switch {
		case (err == nil) != (wantErr == nil):
			t.Fatalf("got error %v, want %v", err, wantErr)
		case err != nil:
			failed++
		case !bytes.Equal(got, want):
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	}
	if failed == 0 || failed == events {
		t.Errorf("%d of %d events cannot be encoded, want some", failed, events)
	}
}

// TestIsPlain has each byte in each position of a string of more than one word.
func TestIsPlain(t *testing.T) {
	for char := range 256 {
		for at := range 20 {
			text := bytes.Repeat([]byte{'~'}, 20)
			text[at] = byte(char)
			if got := isPlain(string(text)); got != plain[char] {
				t.Errorf("%q: got %t", text, got)
			}
		}
	}
}
