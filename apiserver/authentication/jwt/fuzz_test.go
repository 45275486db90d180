package jwt

import "testing"

// FuzzDecode checks that no content of --authentication-config panics, and that what validates can be reloaded.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","anonymous":{"enabled":true},
"jwt":[{"issuer":{"url":"https://x","audiences":["a"]},"claimMappings":{"username":{"expression":"claims.sub"},
"groups":{"claim":"g","prefix":""}},"claimValidationRules":[{"claim":"a","requiredValue":"b"}]}]}`))
	f.Add([]byte("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {}\n"))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		content, err := decode(data)
		if err != nil || len(validate(content, nil)) > 0 {
			t.Skip()
		}
		if err := (&Configuration{content: content}).checkReload(content, nil); err != nil {
			t.Error(err)
		}
	})
}
