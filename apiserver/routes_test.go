package apiserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
)

func TestInvalidOpenIDIssuerIsLogged(t *testing.T) {
	pem, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(key, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	for issuer, allowed := range map[string]bool{"https://example.com": true, "kubernetes/serviceaccount": false} {
		c := config.Default()
		c.Serving.AdvertiseAddress = "192.0.2.1"
		c.Authentication.ServiceAccountIssuers, c.Authentication.ServiceAccountSigningKey = []string{issuer}, key
		issuing, err := serviceaccount.New(t.Context(), c.Authentication, clock.RealClock{})
		if err != nil {
			t.Fatal(err)
		}
		var logged strings.Builder
		logger := funcr.New(func(_, line string) { logged.WriteString(line) }, funcr.Options{})
		routes := router.New(router.Options{Catalog: &resource.CatalogHolder{}})
		server := &Server{environment: environment{config: c, logger: logger}, auth: &auth{tokens: issuing}}
		(&cluster{Server: server}).addRoutes(routes)
		if got := slices.Contains(routes.Documents(), "/openid/v1/jwks"); got != allowed {
			t.Errorf("%s: keys published: %v", issuer, got)
		}
		if reported := strings.Contains(logged.String(), issuer); reported == allowed {
			t.Errorf("%s: logged %q", issuer, logged.String())
		}
	}
}
