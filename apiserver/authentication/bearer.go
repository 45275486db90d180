package authentication

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"k8s.io/apiserver/pkg/warning"
)

// Browsers cannot set headers on a WebSocket. They send their token in a protocol with the prefix tokenProtocol.
const (
	protocolHeader = "Sec-Websocket-Protocol"
	tokenProtocol  = "base64url.bearer.authorization.k8s.io."
)

// tokenOf returns the bearer token of a request, "" if there is none. If the token is among the WebSocket protocols,
// tokenOf also returns the other protocols.
func tokenOf(r *http.Request) (token, protocols string, err error) {
	authorization := strings.TrimSpace(r.Header.Get("Authorization"))
	scheme, rest, _ := strings.Cut(authorization, " ")
	if strings.EqualFold(scheme, "bearer") {
		token, more, spaced := strings.Cut(rest, " ")
		if token == "" && spaced && more != "" {
			warning.AddWarning(r.Context(), "",
				"the provided Authorization header contains extra space before the bearer token, and is ignored")
		}
		if token != "" {
			return token, "", nil
		}
	}
	if _, ok := r.Header[protocolHeader]; ok && isWebSocket(r) {
		return protocolToken(r.Header[protocolHeader])
	}
	return "", "", nil
}

func isWebSocket(r *http.Request) bool {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return false
	}
	for _, option := range strings.Split(strings.ToLower(r.Header.Get("Connection")), ",") {
		if strings.TrimSpace(option) == "upgrade" {
			return true
		}
	}
	return false
}

// protocolToken returns the token and the other protocols in the values of the header Sec-WebSocket-Protocol.
func protocolToken(values []string) (token, others string, err error) {
	var rest []string
	seen := false
	for _, protocol := range strings.Split(strings.Join(values, ","), ",") {
		protocol = strings.TrimSpace(protocol)
		encoded, isToken := strings.CutPrefix(protocol, tokenProtocol)
		if !isToken {
			rest = append(rest, protocol)
			continue
		}
		if seen {
			return "", "", errors.New("multiple base64.bearer.authorization tokens specified")
		}
		seen = true
		decoded, err := base64.RawURLEncoding.DecodeString(encoded)
		if err != nil {
			return "", "", errors.New("invalid base64.bearer.authorization token encoding")
		}
		if !utf8.Valid(decoded) {
			return "", "", errors.New("invalid base64.bearer.authorization token")
		}
		token = string(decoded)
	}
	if token != "" && len(rest) == 0 {
		// The response must select another protocol than the token.
		return "", "", errors.New("missing additional subprotocol")
	}
	return token, strings.Join(rest, ","), nil
}
