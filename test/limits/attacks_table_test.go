package limits

import (
	"fmt"
	"net/http"
	"strings"
)

// attacks returns all attacks.
func attacks() []attack {
	var all []attack
	for _, group := range [][]attack{
		quantityAttacks(), podAttacks(), customAttacks(), ruleAttacks(), reviewAttacks(), selectorAttacks(), applyAttacks(),
		patchAttacks(), formatAttacks(), policyAttacks(),
	} {
		all = append(all, group...)
	}
	return all
}

func quantityAttacks() []attack {
	var all []attack
	digits := strings.Repeat("7", bodyLimit-1000)
	for _, q := range []struct{ name, quantity string }{
		{"3 million digits", digits}, {"3 million digits Gi", digits[:bodyLimit-1100] + "Gi"}, {
			"3 million decimals", "0." + digits[2:],
		},
		{"exponent 2147483647", "1e2147483647"}, {"exponent 100 million", "1e100000000"}, {
			"exponent -100 million", "1e-100000000",
		},
		{"exponent 10 million", "12345678901234567890e10000000"}, {"exponent 1 million", "12345678901234567890e1000000"},
		{"exponent 100,000", "12345678901234567890e100000"},
		{"exponent 10,000", "12345678901234567890e10000"},
		{"100,000 digits", digits[:100_000]}, {"10,000 digits", digits[:10_000]},
	} {
		all = append(all, attack{name: "pod, quantity with " + q.name, request: func() sent {
			return post(pods, withQuantity("q", q.quantity)).dry()
		}})
	}
	many := repeat(70_000, ",", func(i int) string { return fmt.Sprintf(`"requests.example.com/r%d":"1e9999"`, i) })
	all = append(all,
		attack{name: "quota, 100,000 quantities with exponent 9999", request: func() sent {
			return post(namespace+"resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{`+many+`}}}`).dry()
		}},
		attack{name: "claim, exponent 100 million", request: func() sent {
			return post(namespace+"persistentvolumeclaims", `{"metadata":{"name":"q"},"spec":{"accessModes":["ReadWriteOnce"],
				"resources":{"requests":{"storage":"1e100000000"}}}}`).dry()
		}},
		attack{name: "quota, exponent 100 million", request: func() sent {
			return post(namespace+"resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"cpu":"1e100000000"}}}`).dry()
		}},
		attack{name: "autoscaler, exponent 100 million", request: func() sent {
			return post("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", `{"metadata":{"name":"q"},"spec":{
				"scaleTargetRef":{"kind":"Deployment","name":"a","apiVersion":"apps/v1"},"maxReplicas":3,"metrics":[{"type":"Resource",
				"resource":{"name":"cpu","target":{"type":"AverageValue","averageValue":"1e100000000"}}}]}}`).dry()
		}},
		attack{name: "pod as YAML, exponent 100 million", request: func() sent {
			return asYAML(post(pods, withQuantity("q", "1e100000000")).dry())
		}},
		attack{name: "applied pod, exponent 100 million", request: func() sent {
			return apply(pods+"/q", "m", withQuantity("q", "1e100000000")).dry()
		}},
		attack{name: "strategic patch, exponent 100 million", before: func() []sent {
			return []sent{
				post(namespace+"limitranges",
					`{"metadata":{"name":"r"},"spec":{"limits":[{"type":"Container","max":{"cpu":"1"}}]}}`),
			}
		}, request: func() sent {
			return patch(namespace+"limitranges/r", isStrategic,
				`{"spec":{"limits":[{"type":"Container","max":{"cpu":"1e100000000"}}]}}`).dry()
		}},
		attack{name: "merge patch, exponent 100 million", request: func() sent {
			return patch(namespace+"limitranges/r", isMerge,
				`{"spec":{"limits":[{"type":"Container","max":{"cpu":"1\u003100000000"}}]}}`).dry()
		}},
		attack{name: "rule with quantity(), exponent 100 million", before: func() []sent {
			return define("quants", `{"type":"object","properties":{"q":{"type":"string"}},"x-kubernetes-validations":[
				{"rule":"!isQuantity(self.q) || quantity(self.q).isGreaterThan(quantity('1'))"}]}`)
		}, request: func() sent {
			return post(customPath("quants"), custom("quants", "q", `{"q":"1e100000000"}`)).dry()
		}},
		attack{name: "rule with quantity(), 3 million digits", request: func() sent {
			return post(customPath("quants"), custom("quants", "q", `{"q":"`+digits+`"}`)).dry()
		}},
	)
	return all
}

func podAttacks() []attack {
	items := func(n int) string {
		return repeat(n, ",", func(i int) string { return fmt.Sprintf(`{"key":"k","path":"p%d"}`, i) })
	}
	return []attack{
		{name: "pod, 35,000 projected sources", request: func() sent {
			return post(pods, pod("p", "", `"volumes":[{"name":"v","projected":{"sources":[`+
				repeat(35_000, ",", func(i int) string {
					return fmt.Sprintf(`{"secret":{"name":"s","items":[{"key":"k","path":"p%d"}]}}`, i)
				})+`]}}],`)).dry()
		}},
		{name: "pod, 35,000 projected tokens", request: func() sent {
			return post(pods, pod("p", "", `"volumes":[{"name":"v","projected":{"sources":[`+
				repeat(35_000, ",", func(i int) string {
					return fmt.Sprintf(`{"serviceAccountToken":{"path":"p%d"}}`, i)
				})+`]}}],`)).dry()
		}},
		{name: "pod, 35,000 projected cluster trust bundles", request: func() sent {
			return post(pods, pod("p", "", `"volumes":[{"name":"v","projected":{"sources":[`+
				repeat(35_000, ",", func(i int) string {
					return fmt.Sprintf(`{"clusterTrustBundle":{"name":"n","path":"p%d"}}`, i)
				})+`]}}],`)).dry()
		}},
		{name: "pod, 35,000 resource claims", request: func() sent {
			return post(pods, pod("p", "", `"resourceClaims":[`+repeat(35_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"c%d","resourceClaimName":"x"}`, i)
			})+`],`)).dry()
		}},
		{name: "pod, 35,000 claims in resources", request: func() sent {
			return post(pods, pod("p", `,"resources":{"claims":[`+repeat(35_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"c%d","request":"r"}`, i)
			})+`]}`, `"resourceClaims":[{"name":"c0","resourceClaimName":"x"}],`)).dry()
		}},
		{name: "pod, 80,000 items of a volume", request: func() sent {
			return post(pods,
				pod("p", "", `"volumes":[{"name":"v","secret":{"secretName":"s","items":[`+items(80_000)+`]}}],`)).dry()
		}},
		{name: "pod, 50,000 environment variables", request: func() sent {
			return post(pods, pod("p", `,"env":[`+repeat(50_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"E%d","value":"v"}`, i)
			})+`]`, "")).dry()
		}},
		{name: "pod, 50,000 equal environment variables", request: func() sent {
			return post(pods, pod("p", `,"env":[`+repeat(50_000, ",", func(int) string {
				return `{"name":"E","value":"v"}`
			})+`]`, "")).dry()
		}},
		{name: "pod, 25,000 containers", request: func() sent {
			return post(pods, pod("p", "", `"initContainers":[`+repeat(25_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"c%d","image":"i"}`, i)
			})+`],`)).dry()
		}},
		{name: "pod, 60,000 volumes", request: func() sent {
			return post(pods, pod("p", "", `"volumes":[`+repeat(60_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"c%d","emptyDir":{}}`, i)
			})+`],`)).dry()
		}},
		{name: "pod, 30,000 mounts", request: func() sent {
			return post(pods, pod("p", `,"volumeMounts":[`+repeat(30_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"v","mountPath":"/m%d"}`, i)
			})+`]`,
				`"volumes":[{"name":"v","emptyDir":{}}],`)).dry()
		}},
		{name: "pod, 40,000 ports", request: func() sent {
			return post(pods, pod("p", `,"ports":[`+repeat(40_000, ",", func(i int) string {
				return fmt.Sprintf(`{"containerPort":%d,"hostPort":%d}`, i+1, i+1)
			})+`]`, "")).dry()
		}},
		{name: "pod, 60,000 tolerations", request: func() sent {
			return post(pods, pod("p", "", `"tolerations":[`+repeat(60_000, ",", func(i int) string {
				return fmt.Sprintf(`{"key":"k%d","operator":"Exists"}`, i)
			})+`],`)).dry()
		}},
		{name: "pod, 40,000 scheduling gates", request: func() sent {
			return post(pods, pod("p", "", `"schedulingGates":[`+repeat(40_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"g%d"}`, i)
			})+`],`)).dry()
		}},
		{name: "pod, 40,000 topology constraints", request: func() sent {
			return post(pods, pod("p", "", `"topologySpreadConstraints":[`+repeat(25_000, ",", func(i int) string {
				return fmt.Sprintf(`{"maxSkew":1,"topologyKey":"k%d","whenUnsatisfiable":"DoNotSchedule"}`, i)
			})+`],`)).dry()
		}},
		{name: "pod, 60,000 image pull secrets and IPs", request: func() sent {
			return post(pods, pod("p", "", `"imagePullSecrets":[`+repeat(60_000, ",", func(i int) string {
				return fmt.Sprintf(`{"name":"g%d"}`, i)
			})+`],`)).dry()
		}},
		{name: "service, 40,000 ports", request: func() sent {
			return post(namespace+"services", `{"metadata":{"name":"s"},"spec":{"ports":[`+
				repeat(40_000, ",", func(i int) string {
					return fmt.Sprintf(`{"name":"p%d","port":%d}`, i, i+1)
				})+`]}}`).dry()
		}},
		{name: "network policy, 60,000 peers", request: func() sent {
			return post("/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
				`{"metadata":{"name":"s"},"spec":{"podSelector":{},"ingress":[{"from":[`+
					repeat(60_000, ",", func(i int) string { return `{"ipBlock":{"cidr":"10.0.0.0/8"}}` })+`]}]}}`).dry()
		}},
		{name: "ingress, 25,000 rules", request: func() sent {
			return post("/apis/networking.k8s.io/v1/namespaces/default/ingresses", `{"metadata":{"name":"s"},"spec":{"rules":[`+
				repeat(25_000, ",", func(i int) string {
					return fmt.Sprintf(
						`{"host":"h%d.x","http":{"paths":[{"path":"/","pathType":"Prefix","backend":{"service":{"name":"s","port":{"number":80}}}}]}}`, i,
					)
				})+`]}}`).dry()
		}},
		{name: "slice of 1,000 endpoints with 3,000 ports", request: func() sent {
			return post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
				`{"metadata":{"name":"s"},"addressType":"IPv4","endpoints":[`+
					repeat(40_000, ",", func(i int) string { return `{"addresses":["10.1.2.3"]}` })+`],"ports":[`+
					repeat(40_000, ",", func(i int) string { return fmt.Sprintf(`{"name":"p%d","port":1}`, i) })+`]}`).dry()
		}},
		{name: "endpoints, 50,000 addresses", request: func() sent {
			return post(namespace+"endpoints", `{"metadata":{"name":"s"},"subsets":[{"ports":[{"port":1}],"addresses":[`+
				repeat(50_000, ",", func(i int) string {
					return fmt.Sprintf(`{"ip":"10.%d.%d.%d"}`, i>>16, i>>8&255, i&255)
				})+`]}]}`).dry()
		}},
		{name: "role, 50,000 rules", request: func() sent {
			return post("/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"r"},"rules":[`+
				repeat(50_000, ",", func(i int) string {
					return fmt.Sprintf(`{"apiGroups":["g%d"],"resources":["a"],"verbs":["v"]}`, i)
				})+`]}`).dry()
		}},
	}
}

func customAttacks() []attack {
	deep := func(levels int, opening, closing string) func() sent {
		return func() sent {
			return post(customPath("frees"), custom("frees", "a", nested(levels, opening, "1", closing))).dry()
		}
	}
	return []attack{
		{name: "schemaless object, 9,000 levels", before: func() []sent {
			return define("frees", `{"x-kubernetes-preserve-unknown-fields":true}`)
		}, request: deep(9_000, `{"a":`, `}`)},
		{name: "schemaless object, 9,000 levels of lists", request: deep(9_000, `[`, `]`)},
		{name: "schemaless object, 9,900 levels, long keys", request: deep(9_000, `{"`+strings.Repeat("k", 300)+`":`, `}`)},
		{name: "applied schemaless object, 9,000 levels", request: func() sent {
			return apply(customPath("frees")+"/a", "m", custom("frees", "a", nested(9_000, `{"a":`, "1", "}"))).dry()
		}},
		{name: "schemaless object, 300 combs of 9,000 levels", request: func() sent {
			return post(customPath("frees"), custom("frees", "a", "["+repeat(50, ",", func(int) string {
				return nested(9_000, `{"a":`, "1", "}")
			})+"]")).dry()
		}},
		{name: "schemaless object, 1 million small values", request: func() sent {
			return post(customPath("frees"),
				custom("frees", "a", "["+repeat(1_500_000, ",", func(int) string { return "1" })+"]")).dry()
		}},
		{name: "schemaless object, 750,000 empty objects", request: func() sent {
			return post(customPath("frees"),
				custom("frees", "a", "["+repeat(1_000_000, ",", func(int) string { return "{}" })+"]")).dry()
		}},
		{name: "schemaless object, 300,000 keys", request: func() sent {
			return post(customPath("frees"), custom("frees", "a", "{"+repeat(300_000, ",", func(i int) string {
				return fmt.Sprintf(`"%d":1`, i)
			})+"}")).dry()
		}},
		{name: "schemaless object, 100,000 keys, stored", request: func() sent {
			return post(customPath("frees"), custom("frees", "big", "{"+repeat(100_000, ",", func(i int) string {
				return fmt.Sprintf(`"%d":1`, i)
			})+"}"))
		}},
		{name: "list map, 250,000 duplicates", before: func() []sent {
			return define("maps", `{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
				"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"}}}}`)
		}, request: func() sent {
			return post(customPath("maps"), custom("maps", "a", "["+repeat(250_000, ",", func(i int) string {
				return fmt.Sprintf(`{"k":"%d"}`, i/2)
			})+"]")).dry()
		}},
		{name: "list map, 250,000 keys", request: func() sent {
			return post(customPath("maps"), custom("maps", "a", "["+repeat(220_000, ",", func(i int) string {
				return fmt.Sprintf(`{"k":"%d"}`, i)
			})+"]")).dry()
		}},
		{name: "list map of two keys, 150,000 duplicates", request: func() sent {
			return post(customPath("pairs"), custom("pairs", "a", "["+repeat(150_000, ",", func(i int) string {
				return fmt.Sprintf(`{"k":"%d","l":1}`, i/2)
			})+"]")).dry()
		}, before: func() []sent {
			return define("pairs", `{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k","l"],
				"items":{"type":"object","required":["k","l"],"properties":{"k":{"type":"string"},"l":{"type":"integer"}}}}`)
		}},
		{name: "set, 500,000 elements", before: func() []sent {
			return define("setts", `{"type":"array","x-kubernetes-list-type":"set","items":{"type":"integer"}}`)
		}, request: func() sent {
			return post(customPath("setts"),
				custom("setts", "a", "["+repeat(400_000, ",", func(i int) string { return fmt.Sprint(i) })+"]")).dry()
		}},
		{name: "set, 500,000 duplicates", request: func() sent {
			return post(customPath("setts"),
				custom("setts", "a", "["+repeat(400_000, ",", func(i int) string { return fmt.Sprint(i / 2) })+"]")).dry()
		}},
		{name: "set of 10,000 deep objects", request: func() sent {
			return post(customPath("atoms"), custom("atoms", "a", "["+repeat(100, ",", func(i int) string {
				return nested(4_000, `{"a":`, fmt.Sprint(i), "}")
			})+"]")).dry()
		}, before: func() []sent {
			return define("atoms",
				`{"type":"array","x-kubernetes-list-type":"set","items":{"type":"object","x-kubernetes-map-type":"atomic","x-kubernetes-preserve-unknown-fields":true}}`)
		}},
		{name: "unique items, 100,000 elements", request: func() sent {
			return post(customPath("props"), custom("props", "a", "{"+repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"p%d":"x"`, i)
			})+"}")).dry()
		}, before: func() []sent {
			return define("props", `{"type":"object","additionalProperties":{"type":"string","pattern":"^(a+)+$"}}`)
		}},
		{name: "200,000 unknown fields", request: func() sent {
			return post(customPath("quants"), custom("quants", "a", "{"+repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"p%d":"x"`, i)
			})+"}")).dry()
		}},
		{name: "200,000 unknown fields, strict", request: func() sent {
			s := post(customPath("quants"), custom("quants", "a", "{"+repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"p%d":"x"`, i)
			})+"}")).dry()
			s.path += "&fieldValidation=Strict"
			return s
		}},
		{name: "200,000 unknown fields of a pod", request: func() sent {
			return post(pods, pod("p", "", repeat(200_000, ",", func(i int) string {
				return fmt.Sprintf(`"p%d":"x"`, i)
			})+",")).dry()
		}},
		{name: "200,000 duplicate fields of a pod, strict", request: func() sent {
			s := post(pods, pod("p", "", repeat(150_000, ",", func(i int) string { return `"nodeName":"x"` })+",")).dry()
			s.path += "&fieldValidation=Strict"
			return s
		}},
	}
}

func ruleAttacks() []attack {
	rules := func(plural, schema string) func() []sent { return func() []sent { return define(plural, schema) } }
	list := func(n int) string { return "[" + repeat(n, ",", func(i int) string { return fmt.Sprint(i) }) + "]" }
	return []attack{
		{name: "rule, nested all() over 20,000 elements",
			before: rules("squares",
				`{"type":"object","properties":{"l":{"type":"array","maxItems":30000,"items":{"type":"integer"}}},
			"x-kubernetes-preserve-unknown-fields":true,"x-kubernetes-validations":[{"rule":"!has(self.l) || self.l.all(x, x >= 0) && self.l.all(x, x < 1000000)"}]}`), request: func() sent {
				return post(customPath("squares"), custom("squares", "a", `{"l":`+list(20_000)+`}`)).dry()
			}},
		{name: "rules on each of 300,000 elements",
			before: rules("eaches",
				`{"type":"array","maxItems":1000000,"items":{"type":"integer","x-kubernetes-validations":[`+
					repeat(24, ",", func(i int) string { return fmt.Sprintf(`{"rule":"self >= -%d"}`, i) })+
					`]}}`), request: func() sent {
				return post(customPath("eaches"), custom("eaches", "a", list(300_000))).dry()
			}},
		{name: "failing rules on each of 300,000 elements", request: func() sent {
			return post(customPath("eaches"),
				custom("eaches", "a", "["+repeat(300_000, ",", func(i int) string { return fmt.Sprint(-i - 10) })+"]")).dry()
		}},
		{name: "transition rule, 40,000 elements", before: func() []sent {
			return append(rules("trans",
				`{"type":"object","properties":{"l":{"type":"array","maxItems":100000,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
				"items":{"type":"object","required":["k"],"properties":{"k":{"type":"integer"},"v":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.k >= 0 && oldSelf.k >= 0"}]}}}}`)(),
				post(customPath("trans"), custom("trans", "a", `{"l":[`+repeat(60_000, ",", func(i int) string {
					return fmt.Sprintf(`{"k":%d,"v":1}`, i)
				})+`]}`)))
		}, request: func() sent {
			return patch(customPath("trans")+"/a", isMerge, `{"spec":{"l":[`+repeat(60_000, ",", func(i int) string {
				return fmt.Sprintf(`{"k":%d,"v":2}`, 60_000-i)
			})+`]}}`).dry()
		}},
		{name: "ratcheting, 60,000 elements", request: func() sent {
			return patch(customPath("trans")+"/a", isMerge, `{"spec":{"l":[`+repeat(60_000, ",", func(i int) string {
				return fmt.Sprintf(`{"k":%d,"v":2}`, i)
			})+`]}}`).dry()
		}},
		{name: "rule, matches() with a long pattern",
			before: rules("regs", `{"type":"object","properties":{"s":{"type":"string"},"p":{"type":"string","maxLength":10000}},
			"x-kubernetes-validations":[{"rule":"self.s.size() < 3 || self.s.matches('^(a|b|ab)*$')"}]}`), request: func() sent {
				return post(customPath("regs"), custom("regs", "a", `{"s":"`+strings.Repeat("ab", 1_000_000)+`"}`)).dry()
			}},
		{name: "rule, string functions",
			before: rules("strs", `{"type":"object","properties":{"s":{"type":"string","maxLength":3000000}},
			"x-kubernetes-validations":[{"rule":"self.s.split('').size() >= 0 && self.s.replace('a','bb').lowerAscii().size() >= 0"}]}`), request: func() sent {
				return post(customPath("strs"), custom("strs", "a", `{"s":"`+strings.Repeat("ab", 1_000_000)+`"}`)).dry()
			}},
		{name: "rule, self == oldSelf of a large object", before: func() []sent {
			return append(rules("sames",
				`{"type":"object","properties":{"l":{"type":"array","maxItems":100000,"items":{"type":"integer"}}},
				"x-kubernetes-validations":[{"rule":"self.l.size() == oldSelf.l.size() && self.l != oldSelf.l"}]}`)(),
				post(customPath("sames"), custom("sames", "a", `{"l":`+list(100_000)+`}`)))
		}, request: func() sent {
			return patch(customPath("sames")+"/a", isMerge,
				`{"spec":{"l":[`+repeat(100_000, ",", func(i int) string { return fmt.Sprint(i + 1) })+`]}}`).dry()
		}},
		{name: "definition with 1,000 rules", request: func() sent {
			return post(definitions, definition("manys", `{"type":"object","properties":{`+
				repeat(1_000, ",", func(i int) string {
					return fmt.Sprintf(`"p%d":{"type":"integer","x-kubernetes-validations":[{"rule":"self >= %d"}]}`, i, i)
				})+`}}`)).dry()
		}},
		{name: "definition with 15,000 rules", request: func() sent {
			return post(definitions, definition("manys", `{"type":"object","properties":{`+
				repeat(15_000, ",", func(i int) string {
					return fmt.Sprintf(`"p%d":{"type":"integer","x-kubernetes-validations":[{"rule":"self >= %d"}]}`, i, i)
				})+`}}`)).dry()
		}},
		{name: "definition with a rule of 2 MB", request: func() sent {
			return post(definitions,
				definition("longs", `{"type":"object","properties":{"p":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"`+
					repeat(100_000, " && ", func(i int) string { return fmt.Sprintf("self.p != %d", i) })+`"}]}`)).dry()
		}},
		{name: "definition with 50,000 properties", request: func() sent {
			return post(definitions, definition("wides", `{"type":"object","properties":{`+
				repeat(50_000, ",", func(i int) string {
					return fmt.Sprintf(`"p%d":{"type":"integer"}`, i)
				})+`}}`)).dry()
		}},
		{name: "definition with 5,000 versions", request: func() sent {
			return post(definitions,
				`{"metadata":{"name":"vs.attacks.test"},"spec":{"group":"attacks.test","scope":"Namespaced","names":{"plural":"vs","kind":"V"},"versions":[`+
					repeat(5_000, ",", func(i int) string {
						return fmt.Sprintf(`{"name":"v%d","served":true,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object"}}}`,
							i+1, i == 0)
					})+`]}}`).dry()
		}},
		{name: "definition with 20,000 short names", request: func() sent {
			return post(definitions,
				`{"metadata":{"name":"vs.attacks.test"},"spec":{"group":"attacks.test","scope":"Namespaced","names":{"plural":"vs","kind":"V","shortNames":[`+
					repeat(100_000, ",", func(i int) string { return fmt.Sprintf(`"s%d"`, i) })+
					`]},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`).
				dry()
		}},
	}
}

func reviewAttacks() []attack {
	const group = "/apis/authorization.k8s.io/v1/"
	groups := repeat(200_000, ",", func(i int) string { return fmt.Sprintf(`"g%d"`, i) })
	return []attack{
		{name: "access review, 200,000 groups", request: func() sent {
			return post(group+"subjectaccessreviews",
				`{"spec":{"user":"u","groups":[`+groups+`],"resourceAttributes":{"verb":"get","resource":"pods"}}}`)
		}},
		{name: "access review, 50,000 extra keys", request: func() sent {
			return post(group+"subjectaccessreviews",
				`{"spec":{"user":"u","extra":{`+repeat(100_000, ",", func(i int) string { return fmt.Sprintf(`"k%d":["v"]`, i) })+
					`},"resourceAttributes":{"verb":"get","resource":"pods"}}}`)
		}},
		{name: "access review, 30,000 requirements", request: func() sent {
			return post(group+"selfsubjectaccessreviews",
				`{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":[`+
					repeat(30_000, ",", func(i int) string {
						return fmt.Sprintf(`{"key":"k%d","operator":"In","values":["v"]}`, i)
					})+`]}}}}`)
		}},
		{name: "access review, 100,000 values", request: func() sent {
			return post(group+"selfsubjectaccessreviews",
				`{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"requirements":[{"key":"k","operator":"In","values":[`+
					repeat(200_000, ",", func(i int) string { return fmt.Sprintf(`"v%d"`, i) })+`]}]}}}}`)
		}},
		{name: "access review, raw selector of 2 MB", request: func() sent {
			return post(group+"selfsubjectaccessreviews",
				`{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","labelSelector":{"rawSelector":"`+
					repeat(200_000, ",", func(i int) string { return fmt.Sprintf(`k%d=v`, i) })+`"}}}}`)
		}},
		{name: "access review, raw field selector of 2 MB", request: func() sent {
			return post(group+"selfsubjectaccessreviews",
				`{"spec":{"resourceAttributes":{"verb":"list","resource":"pods","fieldSelector":{"rawSelector":"`+
					repeat(200_000, ",", func(i int) string { return fmt.Sprintf(`k%d=v`, i) })+`"}}}}`)
		}},
		{name: "token review, 3 MB", request: func() sent {
			return post("/apis/authentication.k8s.io/v1/tokenreviews",
				`{"spec":{"token":"`+strings.Repeat("a.", 1_400_000)+`"}}`)
		}},
		{name: "token review, 200,000 audiences", request: func() sent {
			return post("/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"a.b.c","audiences":[`+groups+`]}}`)
		}},
		{name: "token with 100,000 audiences", request: func() sent {
			return post(namespace+"serviceaccounts/default/token", `{"spec":{"audiences":[`+groups+`]}}`).dry()
		}},
		{name: "rules review, 3,000 bindings", before: bindings, request: func() sent {
			s := post(group+"selfsubjectrulesreviews", `{"spec":{"namespace":"default"}}`)
			s.header = map[string]string{"Impersonate-User": "busy"}
			return s
		}},
		{name: "certificate request, 2 MB", request: func() sent {
			return post("/apis/certificates.k8s.io/v1/certificatesigningrequests",
				`{"metadata":{"name":"c"},"spec":{"signerName":"a.b/c","usages":["client auth"],"request":"`+
					strings.Repeat("LS0tLS1C", 300_000)+`"}}`).dry()
		}},
		{name: "eviction, 3 MB", request: func() sent {
			return post(pods+"/absent/eviction", `{"metadata":{"name":"absent"},"deleteOptions":{"dryRun":[`+groups+`]}}`)
		}},
	}
}

// bindings returns roles of 20 rules and 3,000 bindings of them.
func bindings() []sent {
	var all []sent
	const group = "/apis/rbac.authorization.k8s.io/v1/"
	for i := range 30 {
		all = append(all, post(group+"clusterroles", fmt.Sprintf(`{"metadata":{"name":"busy-%d"},"rules":[`, i)+
			repeat(100, ",", func(j int) string {
				return fmt.Sprintf(`{"apiGroups":["g%d-%d"],"resources":["a"],"verbs":["v"]}`, i, j)
			})+`]}`))
	}
	for i := range 600 {
		all = append(all, post(group+"clusterrolebindings", fmt.Sprintf(`{"metadata":{"name":"busy-%d"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"busy-%d"},"subjects":[{"kind":"User","name":"busy"}]}`, i, i%30)))
	}
	return all
}

func selectorAttacks() []attack {
	labels := func(n int) string { return repeat(n, ",", func(i int) string { return fmt.Sprintf("k%d=v", i) }) }
	values := func(n int) string {
		return "k+in+(" + repeat(n, ",", func(i int) string { return fmt.Sprintf("v%d", i) }) + ")"
	}
	return []attack{
		{
			name: "list, label selector of 900 KB in the URL", request: func() sent {
				return get1(configMaps + "?labelSelector=" + labels(90_000))
			},
		},
		{
			name: "list, label selector with 100,000 values", request: func() sent {
				return get1(configMaps + "?labelSelector=" + values(100_000))
			},
		},
		{name: "list, field selector of 900 KB in the URL", request: func() sent {
			return get1(configMaps + "?fieldSelector=" + repeat(40_000, ",", func(i int) string {
				return "metadata.name=n" + fmt.Sprint(i)
			}))
		}},
		{
			name: "watch, label selector with 100,000 values", request: func() sent {
				return get1(configMaps + "?watch=1&timeoutSeconds=1&labelSelector=" + values(100_000))
			},
		},
		{name: "delete collection, selector of 900 KB", request: func() sent {
			return sent{method: http.MethodDelete, path: configMaps + "?dryRun=All&labelSelector=" + values(100_000)}
		}},
		{name: "delete collection, options of 3 MB", request: func() sent {
			return sent{method: http.MethodDelete, path: configMaps, contentType: isJSON,
				body: []byte(`{"apiVersion":"v1","kind":"DeleteOptions","dryRun":[` +
					repeat(400_000, ",", func(int) string { return `"All"` }) + `]}`)}
		}},
		{name: "delete collection, 400,000 invalid dry runs", request: func() sent {
			return sent{method: http.MethodDelete, path: configMaps, contentType: isJSON,
				body: []byte(`{"apiVersion":"v1","kind":"DeleteOptions","dryRun":[` +
					repeat(400_000, ",", func(int) string { return `"x"` }) + `]}`)}
		}},
		{name: "list, 200,000 parameters", request: func() sent {
			return get1(configMaps + "?" + repeat(100_000, "&", func(i int) string { return fmt.Sprint("p", i) }))
		}},
		{name: "list, long path", request: func() sent { return get1("/" + strings.Repeat("a/", 400_000)) }},
		{name: "create, 100,000 dry runs in the URL", request: func() sent {
			return post(configMaps+"?"+repeat(100_000, "&", func(i int) string { return "dryRun=x" }),
				`{"metadata":{"name":"x"}}`)
		}},
		{name: "create, long field manager", request: func() sent {
			return post(configMaps+"?fieldManager="+strings.Repeat("x", 900_000), `{"metadata":{"name":"x"}}`).dry()
		}},
		{name: "network policy, selector of 60,000 expressions", request: func() sent {
			return post("/apis/networking.k8s.io/v1/namespaces/default/networkpolicies",
				`{"metadata":{"name":"s"},"spec":{"podSelector":{"matchExpressions":[`+
					repeat(50_000, ",", func(i int) string {
						return fmt.Sprintf(`{"key":"k%d","operator":"In","values":["v"]}`, i)
					})+`]}}}`).dry()
		}},
		{name: "deployment, selector of 200,000 values", request: func() sent {
			return post("/apis/apps/v1/namespaces/default/deployments",
				`{"metadata":{"name":"s"},"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"In","values":[`+
					repeat(200_000, ",", func(i int) string { return fmt.Sprintf(`"v%d"`, i) })+
					`]}]},"template":{"metadata":{"labels":{"a":"v1"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`).dry()
		}},
	}
}
