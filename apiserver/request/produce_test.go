package request

import (
	"net/http"
	"testing"
)

func TestProduce(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	for accept, want := range map[string]bool{
		"application/json;q=0": true, "text/html, */*;q=0.1": true, protobuf + ";as=Table": true, "": true,
		"application/*": false, "text/plain": false, "application/jsonx": false,
	} {
		r := &http.Request{Header: http.Header{"Accept": {accept}}}
		if err := Produce(r, "application/json", protobuf); (err == nil) != want {
			t.Errorf("%q: got %v", accept, err)
		}
	}
}
