package schema

import (
	"testing"
)

func BenchmarkDecode(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(); err != nil {
			b.Fatal(err)
		}
	}
}
