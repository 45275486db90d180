package differential

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
)

// webToken is a JSON Web Token: header, claims, signature.
var webToken = regexp.MustCompile(`\b(eyJ[\w-]+)\.([\w-]+)\.[\w-]+`)

// token returns the content of a token as text.
func (n *normalizer) token(text string) string {
	parts := webToken.FindStringSubmatch(text)
	header, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return text
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return text
	}
	claims, _ := parse(content).(map[string]any)
	issued := claims["iat"]
	sinceIssued(claims, issued)
	sinceIssued(claims["kubernetes.io"], issued)
	shown, err := json.Marshal(claims)
	if err != nil {
		return text
	}
	return fmt.Sprintf("<token %s %s>", header, n.plain(string(shown)))
}

// sinceIssued makes the times among the claims of a token relative to the time at which the token was issued.
func sinceIssued(value, issued any) {
	claims, _ := value.(map[string]any)
	began, ok := issued.(json.Number)
	if !ok {
		return
	}
	from, err := began.Int64()
	if err != nil {
		return
	}
	for _, name := range []string{"exp", "iat", "nbf", "warnafter"} {
		number, _ := claims[name].(json.Number)
		if at, err := number.Int64(); err == nil {
			claims[name] = fmt.Sprintf("issued + %d s", at-from)
		}
	}
}
