package deflate

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestJoin(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var parts []Part
		var want bytes.Buffer
		for range random.IntN(8) {
			content := []byte(strings.Repeat("some text ", random.IntN(2000)))
			for i := range len(content) / 10 {
				content[10*i] = byte(random.Uint32())
			}
			part, err := Compress(content)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := part.Content(); err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes, want %d, %v", len(got), len(content), err)
			}
			parts = append(parts, part)
			want.Write(content)
		}
		reader, err := gzip.NewReader(bytes.NewReader(Join(parts...)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(reader) // checks length and sum
		if err != nil || !bytes.Equal(got, want.Bytes()) || Size(parts...) != int64(want.Len()) {
			t.Fatalf("%d parts: %d bytes, want %d, %v", len(parts), len(got), want.Len(), err)
		}
	}
}
