package discovery_test

import (
	"testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/discovery"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, discovery.Definitions(builtintest.NewBuilder()), []builtintest.Served{
		{
			Resource: "endpointslices", Kind: "EndpointSlice", Versions: "v1", Namespaced: true,
			Stored: "endpointslices discovery.k8s.io/v1", Columns: "AddressType, Ports, Endpoints, Age",
		},
	})
}

const slice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, generation: 7, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.4]}]
ports: [{name: http, port: 80}]
`

// names is a patch of slice to the address type FQDN.
const names = "{addressType: FQDN, endpoints: [{addresses: [db.example.com]}]}"

func TestEndpointSlices(t *testing.T) {
	t.Parallel()
	const deprecated = "spec.addressType: FQDN endpoints are deprecated"
	builtintest.CheckWrites(t, discovery.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets the generation and the protocol": {
			Endpoint: "endpointslices", Object: slice,
			Want: map[string]string{"metadata.generation": "1", "ports[0].protocol": "TCP"},
		},
		"addresses are validated": {
			Endpoint: "endpointslices", Object: slice, With: "endpoints: [{addresses: [db.example.com]}]",
			Errors: []string{
				`endpoints[0].addresses[0]: Invalid value: "db.example.com": must be a valid IP address, ` +
					"(e.g. 10.9.8.7 or 2001:db8::ffff)",
			},
		},
		"the address type is immutable": {
			Endpoint: "endpointslices", Object: slice, Update: "{addressType: IPv6, endpoints: []}",
			Errors: []string{"addressType: Invalid value: null: field is immutable"},
		},
		"a change of the endpoints is a new generation": {
			Endpoint: "endpointslices", Object: slice, Update: "endpoints: [{addresses: [10.1.0.5]}]",
			Want: map[string]string{"metadata.generation": "2", "endpoints[0].addresses": `["10.1.0.5"]`},
		},
		"the same slice has the same generation": {
			Endpoint: "endpointslices", Object: slice, Update: "metadata: {generation: 9}",
			Want: map[string]string{"metadata.generation": "1"},
		},
		"unusual addresses cause warnings": {
			Endpoint: "endpointslices", Object: slice, With: "{addressType: IPv6, endpoints: []}",
			Stored: "endpoints: [{addresses: ['fd00::0:4']}]", Update: "metadata: {labels: {a: b}}",
			Warnings: []string{
				`endpoints[0].addresses[0]: IPv6 address "fd00::0:4" should be in RFC 5952 canonical format ("fd00::4")`,
			},
		},
		"host names are deprecated": {
			Endpoint: "endpointslices", Object: slice, With: names, Warnings: []string{deprecated},
		},
		"an update of host names does not warn": {
			Endpoint: "endpointslices", Object: slice, With: names, Update: "endpoints: [{addresses: [other.example.com]}]",
		},
	})
}
