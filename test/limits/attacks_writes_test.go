package limits

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
)

func applyAttacks() []attack {
	fields := func(n int) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"fields"},"data":{` +
			repeat(n, ",", func(i int) string { return fmt.Sprintf(`"k%d":"v"`, i) }) + `}}`
	}
	managers := func(n int) string {
		return repeat(n, ",", func(i int) string {
			return fmt.Sprintf(
				`{"manager":"m%d","operation":"Update","apiVersion":"v1","time":"2020-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a%d":{}}}}`, i, i,
			)
		})
	}
	return []attack{
		{
			name: "apply, 100,000 fields", request: func() sent {
				return apply(configMaps+"/fields", "m", fields(100_000)).dry()
			},
		},
		{name: "apply, 20,000 fields of 10 managers", before: func() []sent {
			var all []sent
			for i := range 10 {
				all = append(all, apply(configMaps+"/fields", fmt.Sprint("m", i), fields(4_000)))
			}
			return all
		}, request: func() sent { return apply(configMaps+"/fields", "other", fields(100_000)).dry() }},
		{name: "apply, conflicts with 10 managers", request: func() sent {
			return apply(configMaps+"/fields", "other", strings.ReplaceAll(fields(100_000), `"v"`, `"w"`)).dry()
		}},
		{name: "create, 15,000 managers", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"managers","managedFields":[`+managers(15_000)+`]},"data":{"a":"b"}}`).dry()
		}},
		{name: "create, 5,000 managers", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"managers","managedFields":[`+managers(5_000)+`]},"data":{"a":"b"}}`).dry()
		}},
		{name: "update, 5,000 managers", before: func() []sent {
			return []sent{post(configMaps, `{"metadata":{"name":"managers","managedFields":[`+managers(5_000)+`]},"data":{`+
				repeat(5_000, ",", func(i int) string { return fmt.Sprintf(`"a%d":"v"`, i) })+`}}`)}
		}, request: func() sent {
			return patch(configMaps+"/managers", isMerge, `{"data":{"a":"c"}}`).dry()
		}},
		{name: "apply, 5,000 managers", request: func() sent {
			return apply(configMaps+"/managers", "x", strings.ReplaceAll(fields(5_000), `"fields"`, `"managers"`)).dry()
		}},
		{name: "managed fields, 9,000 levels", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"managers","managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":`+
					nested(9_000, `{"f:a":`, "{}", "}")+`}]}}`).dry()
		}},
		{name: "managed fields, keys of 1 MB", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"managers","managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{`+
					repeat(100_000, ",", func(i int) string { return fmt.Sprintf(`"k:{\"a\":%d}":{}`, i) })+`}}]}}`).dry()
		}},
		{name: "apply, list of 30,000 elements with duplicate keys", request: func() sent {
			return apply(pods+"/a", "m", pod("a", `,"env":[`+repeat(30_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"E%d","value":"x"}`, i/2)
			})+`]`, "")).dry()
		}},
		{name: "apply, list of 50,000 elements", request: func() sent {
			return apply(pods+"/a", "m", pod("a", `,"env":[`+repeat(50_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"E%d","value":"x"}`, i)
			})+`]`, "")).dry()
		}},
		{name: "apply, 100,000 unknown fields", request: func() sent {
			return apply(pods+"/a", "m", pod("a", "", repeat(100_000, ",", func(i int) string {
				return fmt.Sprintf(`"u%d":1`, i)
			})+",")).dry()
		}},
	}
}

func patchAttacks() []attack {
	env := func(n int) string {
		return repeat(n, ",", func(i int) string { return fmt.Sprintf(`{"name":"E%d","value":"x"}`, i) })
	}
	const deployment = "/apis/apps/v1/namespaces/default/deployments"
	strategic := func(container string) sent {
		return patch(deployment+"/d", isStrategic,
			`{"spec":{"template":{"spec":{"containers":[{"name":"c",`+container+`}]}}}}`).dry()
	}
	return []attack{
		{name: "strategic patch, element order of 100,000", before: func() []sent {
			return []sent{post(deployment,
				`{"metadata":{"name":"d"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[
				{"name":"c","image":"i","env":[`+env(1_000)+`]}]}}}}`)}
		}, request: func() sent {
			return strategic(`"$setElementOrder/env":[` + repeat(100_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"E%d"}`, i)
			}) + `]`)
		}},
		{name: "strategic patch, element order and 2,000 elements", request: func() sent {
			return strategic(`"$setElementOrder/env":[` +
				repeat(2_000, ",", func(i int) string { return fmt.Sprintf(`{"name":"E%d"}`, i) }) + `],"env":[` + env(2_000) + `]`)
		}},
		{name: "strategic patch, 50,000 $patch directives", request: func() sent {
			return strategic(`"env":[` + repeat(50_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"E%d","$patch":"delete"}`, i)
			}) + `]`)
		}},
		{name: "strategic patch, $retainKeys of 200,000", request: func() sent {
			return patch(deployment+"/d", isStrategic,
				`{"spec":{"strategy":{"$retainKeys":[`+repeat(200_000, ",", func(i int) string { return fmt.Sprintf(`"k%d"`, i) })+
					`],"type":"Recreate"}}}`).dry()
		}},
		{name: "strategic patch, deletes 200,000 primitives", request: func() sent {
			return patch(deployment+"/d", isStrategic,
				`{"metadata":{"$deleteFromPrimitiveList/finalizers":[`+repeat(200_000, ",", func(i int) string {
					return fmt.Sprintf(`"k%d"`, i)
				})+`]}}`).dry()
		}},
		{name: "strategic patch, 9,000 levels", request: func() sent {
			return patch(deployment+"/d", isStrategic, nested(9_000, `{"spec":`, "{}", "}")).dry()
		}},
		{name: "strategic patch, 200,000 unknown fields", request: func() sent {
			return patch(deployment+"/d", isStrategic, `{"spec":{`+repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"u%d":1`, i)
			})+`}}`).dry()
		}},
		{name: "merge patch, 1.5 million small values", request: func() sent {
			return patch(deployment+"/d", isMerge,
				`{"spec":{"x":[`+repeat(1_500_000, ",", func(int) string { return "1" })+`]}}`).dry()
		}},
	}
}

func formatAttacks() []attack {
	bomb := func(levels int) string {
		var b strings.Builder
		b.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\na0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
		for i := 1; i < levels; i++ {
			fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, repeat(10, ",", func(int) string { return fmt.Sprintf("*a%d", i-1) }))
		}
		return b.String()
	}
	anchors := func(text string) sent { return asYAML(post(configMaps, text).dry()) }
	return []attack{
		{name: "JSON, 1.5 million small tokens", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"x"},"data":[`+repeat(1_500_000, ",", func(int) string { return "1" })+`]}`).dry()
		}},
		{name: "JSON, unknown field of 1.5 million tokens", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"x"},"unknown":[`+repeat(1_500_000, ",", func(int) string { return "1" })+`]}`).dry()
		}},
		{name: "JSON, unknown field of 1 million objects", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"x"},"unknown":[`+repeat(1_000_000, ",", func(int) string { return "{}" })+`]}`).dry()
		}},
		{name: "JSON, 700,000 containers of a pod", request: func() sent {
			return post(pods,
				`{"metadata":{"name":"x"},"spec":{"containers":[`+repeat(1_000_000, ",", func(int) string { return "{}" })+
					`]}}`).dry()
		}},
		{name: "JSON, 1 million null owner references", request: func() sent {
			return post(configMaps,
				`{"metadata":{"name":"x","ownerReferences":[`+repeat(1_000_000, ",", func(int) string { return "{}" })+`]}}`).dry()
		}},
		{name: "JSON, 200,000 keys", request: func() sent {
			return post(configMaps, `{"metadata":{"name":"x"},"data":{`+repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"%d":""`, i)
			})+`}}`).dry()
		}},
		{
			name: "JSON, 10,000 levels", request: func() sent {
				return post(configMaps, nested(9_990, `{"a":`, "1", "}")).dry()
			},
		},
		{name: "JSON, 1.5 MB of white space", request: func() sent {
			return post(configMaps, `{"metadata":`+strings.Repeat(" ", 3_000_000)+`{"name":"x"}}`).dry()
		}},
		{name: "JSON, one number of 3 MB", request: func() sent {
			return post(configMaps, `{"metadata":{"name":"x","generation":`+strings.Repeat("1", 3_000_000)+`}}`).dry()
		}},
		{name: "JSON, schemaless number of 3 MB", request: func() sent {
			return post(customPath("frees"), custom("frees", "a", strings.Repeat("1", 3_000_000)+".5")).dry()
		}},
		{name: "JSON, string of escapes", request: func() sent {
			return post(configMaps, `{"metadata":{"name":"x"},"data":{"a":"`+strings.Repeat(`\u0001`, 150_000)+`"}}`).dry()
		}},
		{name: "YAML, anchors nested 9 times", request: func() sent { return anchors(bomb(9)) }},
		{name: "YAML, anchors nested 5 times", request: func() sent { return anchors(bomb(5)) }},
		{name: "YAML, one long anchor 10,000 times", request: func() sent {
			return anchors("a: &a {" + repeat(30_000, ",", func(i int) string { return fmt.Sprintf("k%d: 1", i) }) + "}\nb: [" +
				repeat(30_000, ",", func(int) string { return "*a" }) + "]\n")
		}},
		{name: "YAML, merge keys", request: func() sent {
			return anchors("a: &a {" + repeat(20_000, ",", func(i int) string { return fmt.Sprintf("k%d: 1", i) }) + "}\nb:\n" +
				repeat(20_000, "", func(int) string { return "- <<: *a\n" }))
		}},
		{name: "YAML, 200,000 keys", request: func() sent {
			return anchors("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n" +
				repeat(200_000, "", func(i int) string { return fmt.Sprintf("  k%d: ''\n", i) }))
		}},
		{name: "YAML, 1.5 million small tokens", request: func() sent {
			return anchors("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: [" +
				repeat(1_400_000, ",", func(int) string { return "1" }) + "]\n")
		}},
		{name: "YAML, 9,000 levels of flow", request: func() sent { return anchors("a: " + nested(9_000, "[", "", "]")) }},
		{name: "YAML, 3 MB of opening brackets", request: func() sent { return anchors(strings.Repeat("[", 3_000_000)) }},
		{name: "YAML, 3 MB of dashes", request: func() sent { return anchors(strings.Repeat("- ", 1_500_000)) }},
		{name: "YAML, 3 MB of question marks", request: func() sent { return anchors(strings.Repeat("? ", 1_500_000)) }},
		{
			name: "YAML, an unclosed quote of 3 MB", request: func() sent {
				return anchors(`a: "` + strings.Repeat("x\n", 1_400_000))
			},
		},
		{
			name: "YAML, 300,000 comments", request: func() sent { return anchors(strings.Repeat("# c\n", 700_000) + "a: 1\n") },
		},
		{name: "YAML, 300,000 documents", request: func() sent { return anchors(strings.Repeat("---\na: 1\n", 300_000)) }},
		{name: "YAML, custom object of 200,000 keys", request: func() sent {
			return asYAML(post(customPath("frees"), custom("frees", "a", "{"+repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"k%d":1`, i)
			})+"}")).dry())
		}},
		{name: "apply, YAML of 1.4 million tokens", request: func() sent {
			return apply(configMaps+"/x", "m",
				"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata: ["+
					repeat(1_400_000, ",", func(int) string { return "1" })+"]\n").dry()
		}},
		{name: "apply, anchors nested 9 times", request: func() sent { return apply(configMaps+"/x", "m", bomb(9)).dry() }},
		{name: "protobuf, lying length", request: func() sent {
			s := post(configMaps, "").dry()
			s.contentType, s.body = isProtobuf, inEnvelope("v1", "ConfigMap",
				append([]byte{0x0a}, binary.AppendUvarint(nil, 1<<62)...))
			return s
		}},
		{name: "protobuf, 1.5 million empty fields", request: func() sent {
			s := post(configMaps, "").dry()
			s.contentType, s.body = isProtobuf, inEnvelope("v1", "ConfigMap", []byte(strings.Repeat("\x12\x00", 1_500_000)))
			return s
		}},
		{name: "protobuf, 1.5 million containers", request: func() sent {
			s := post(pods, "").dry()
			s.contentType, s.body = isProtobuf, inEnvelope("v1", "Pod",
				delimited(2, []byte(strings.Repeat("\x12\x00", 1_500_000))))
			return s
		}},
		{name: "protobuf, 1.5 million owner references", request: func() sent {
			s := post(configMaps, "").dry()
			s.contentType, s.body = isProtobuf, inEnvelope("v1", "ConfigMap",
				delimited(1, []byte(strings.Repeat("\x6a\x00", 1_500_000))))
			return s
		}},
		{name: "protobuf, 1 million finalizers", request: func() sent {
			s := post(configMaps, "").dry()
			s.contentType, s.body = isProtobuf, inEnvelope("v1", "ConfigMap",
				delimited(1, []byte(strings.Repeat("\x72\x01a", 1_000_000))))
			return s
		}},
		{name: "gzip body of a bomb", request: func() sent {
			return compressed(post(configMaps,
				`{"metadata":{"name":"x"},"data":{"a":"`+strings.Repeat("x", 200<<20)+`"}}`).dry())
		}},
		{name: "table of a huge list", request: func() sent {
			s := get1("/api/v1/configmaps?limit=500000000")
			s.header = map[string]string{"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
			return s
		}},
		{name: "100,000 media types accepted", request: func() sent {
			s := get1(configMaps)
			s.header = map[string]string{"Accept": strings.Repeat("a/b,", 200_000) + "application/json"}
			return s
		}},
	}
}

func policyAttacks() []attack {
	const group = "/apis/admissionregistration.k8s.io/v1/"
	policy := func(name, resource, spec string) sent {
		spec = strings.Replace(spec, `"validations":[`, `"validations":[{"expression":"object.metadata.name != 'probe'"},`, 1)
		return post(group+"validatingadmissionpolicies",
			fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"failurePolicy":"Ignore",
			"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["CREATE"],"resources":[%q]}]},%s}}`, name, resource, spec))
	}
	bind := func(name, spec string) sent {
		return post(group+"validatingadmissionpolicybindings",
			fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"policyName":%q,"validationActions":["Deny"]%s}}`, name, name, spec))
	}
	probe := func(resource, spec string) func() sent { // is denied once the policy is in effect
		return func() sent { return post(namespace+resource, `{"metadata":{"name":"probe"}`+spec+`}`).dry() }
	}
	data := func(n int) string {
		return `{"metadata":{"name":"x"},"data":{` + repeat(n, ",", func(i int) string {
			return fmt.Sprintf(`"k%d":"v"`, i)
		}) + `}}`
	}
	return []attack{
		{name: "policy, nested comprehension", before: func() []sent {
			return []sent{
				policy("square", "configmaps",
					`"validations":[{"expression":"object.data.all(k, object.data.all(l, k == l || k != l))"}]`), bind("square", ""),
			}
		}, denied: probe("configmaps", ""), request: func() sent { return post(configMaps, data(60_000)).dry() }},
		{name: "policy, 20 expressions with variables", before: func() []sent {
			return []sent{
				policy("many", "endpoints", `"variables":[`+repeat(20, ",", func(i int) string {
					return fmt.Sprintf(
						`{"name":"v%d","expression":"object.metadata.annotations.all(k, object.metadata.annotations.all(l, k != l || k == l))"}`, i,
					)
				})+`],"validations":[`+repeat(20, ",", func(i int) string {
					return fmt.Sprintf(`{"expression":"variables.v%d"}`, i)
				})+`]`), bind("many", ""),
			}
		}, denied: probe("endpoints", ""), request: func() sent {
			return post(namespace+"endpoints", `{"metadata":{"name":"x","annotations":{`+repeat(10_000, ",", func(i int) string {
				return fmt.Sprintf(`"k%d":"v"`, i)
			})+`}}}`).dry()
		}},
		{name: "policy, 1,000 parameters", before: func() []sent {
			all := []sent{post("/api/v1/namespaces", `{"metadata":{"name":"parameters"}}`)}
			for i := range 300 {
				all = append(all,
					post("/api/v1/namespaces/parameters/secrets",
						fmt.Sprintf(`{"metadata":{"name":"p%d","labels":{"p":"p"}},"stringData":{%s}}`, i,
							repeat(50, ",", func(i int) string { return fmt.Sprintf(`"k%d":"v"`, i) }))))
			}
			return append(all,
				policy("params", "limitranges",
					`"paramKind":{"apiVersion":"v1","kind":"Secret"},"validations":[{"expression":"params.data.all(k, object.metadata.annotations.all(l, k != l || k == l))"}]`),
				bind("params", `,"paramRef":{"namespace":"parameters","selector":{},"parameterNotFoundAction":"Allow"}`))
		}, denied: probe("limitranges", `,"spec":{"limits":[]}`), request: func() sent {
			return post(namespace+"limitranges",
				`{"metadata":{"name":"x","annotations":{`+
					repeat(10_000, ",", func(i int) string { return fmt.Sprintf(`"k%d":"v"`, i) })+`}},"spec":{"limits":[]}}`).dry()
		}},
		{name: "mutating policy, map()", before: func() []sent {
			return []sent{
				post(group+"mutatingadmissionpolicies",
					`{"metadata":{"name":"mutate"},"spec":{"failurePolicy":"Ignore","reinvocationPolicy":"IfNeeded",
					"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["CREATE"],"resources":["serviceaccounts"]}]},
					"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"object.metadata.annotations.map(k, JSONPatch{op: 'replace', path: '/metadata/annotations/' + k, value: 'w'})"}}]}}`),
				post(group+"mutatingadmissionpolicybindings", `{"metadata":{"name":"mutate"},"spec":{"policyName":"mutate"}}`),
			}
		}, request: func() sent {
			return post(namespace+"serviceaccounts",
				`{"metadata":{"name":"x","annotations":{`+repeat(18_000, ",", func(i int) string {
					return fmt.Sprintf(`"k%d":"v"`, i)
				})+`}}}`).dry()
		}},
		{name: "webhook, match condition", before: func() []sent {
			return []sent{post(group+"validatingwebhookconfigurations",
				`{"metadata":{"name":"condition"},"webhooks":[{"name":"a.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","failurePolicy":"Ignore",
				"clientConfig":{"url":"https://127.0.0.1:1/"},"rules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["CREATE"],"resources":["services"]}],
				"matchConditions":[{"name":"a","expression":"!object.metadata.annotations.all(k, object.metadata.annotations.all(l, k != l || k == l))"}]}]}`)}
		}, request: func() sent {
			return post(namespace+"services",
				`{"metadata":{"name":"x","annotations":{`+
					repeat(18_000, ",", func(i int) string { return fmt.Sprintf(`"k%d":"v"`, i) })+
					`}},"spec":{"ports":[{"port":1}]}}`).dry()
		}},
		{name: "policy, an expression of 1 MB", request: func() sent {
			return policy("long", "events", `"validations":[{"expression":"`+repeat(50_000, " && ", func(i int) string {
				return fmt.Sprintf("object.a != %d", i)
			})+`"}]`).dry()
		}},
		{name: "policy, 5,000 expressions", request: func() sent {
			return policy("long", "events", `"validations":[`+repeat(5_000, ",", func(i int) string {
				return fmt.Sprintf(`{"expression":"object.a != %d"}`, i)
			})+`]`).dry()
		}},
		{name: "webhooks, 10,000 with match conditions", request: func() sent {
			return post(group+"validatingwebhookconfigurations", `{"metadata":{"name":"many"},"webhooks":[`+
				repeat(5_000, ",", func(i int) string {
					return fmt.Sprintf(`{"name":"a%d.b.c","admissionReviewVersions":["v1"],"sideEffects":"None","clientConfig":{"url":"https://127.0.0.1:1/"},"rules":[{"apiGroups":["z"],"apiVersions":["*"],"operations":["CREATE"],"resources":["x"]}],
					"matchConditions":[{"name":"a","expression":"object.a == %d"}]}`, i, i)
				})+`]}`).dry()
		}},
		{name: "put, 3 MB", request: func() sent { return put(configMaps+"/first", data(60_000)).dry() }},
		{name: "get, missing", request: func() sent { return sent{method: http.MethodGet, path: configMaps + "/absent"} }},
	}
}
