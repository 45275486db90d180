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

// TestAppendEvent compares lines of random events with those of upstream's encoder.
func TestAppendEvent(t *testing.T) {
	texts := []string{"", "plain", "<a&b>", "quote\" and \\", "line\nbreak\x00\x7f", "ü\u2028", "\xff invalid"}
	objects := []string{`{"a": [1, "<x>"] }` + "\n", "null", `"text"`, "", "{", "1"}
	filler := randfill.NewWithSeed(1).NilChance(0.4).NumElements(0, 4).MaxDepth(6).Funcs(
		func(s *string, c randfill.Continue) { *s = texts[c.Intn(len(texts))] },
		func(at *metav1.MicroTime, c randfill.Continue) {
			*at = metav1.MicroTime{Time: time.Unix(c.Int63n(1<<40)-1<<38, c.Int63n(1e9)).In(time.FixedZone("east", 3600))}
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
	failed := 0
	for range events {
		event := &auditapi.Event{}
		filler.Fill(event)
		event.TypeMeta.Kind, event.TypeMeta.APIVersion = "", ""
		want, wantErr := runtime.Encode(upstream, event)
		got, err := appendEvent(nil, event)
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
