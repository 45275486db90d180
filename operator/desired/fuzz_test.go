package desired

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"quorate.dev/apiserver/config"
)

// FuzzExtraArgs passes one extra argument through the operator to the API server's parser. If the operator accepts it,
// the flags that users cannot set keep the operator's values and the API server would start.
func FuzzExtraArgs(f *testing.F) {
	for _, name := range []string{
		"client-ca-file", "client_ca_file", "--client-ca-file", "client-ca-file=/x", "Client-CA-File", "etcd_peer_trusted_ca_file",
		"token-auth-file", "tls-min-version", "max-requests-inflight", "etcd-election-timeout", "cors-allowed-origins", "v", "help",
		"requestheader-allowed-names", "tls-sni-cert-key", "strict-transport-security-directives", "feature-gates", "version", "",
	} {
		for _, value := range []string{"", "1", "/etc/quorate/certificates/serving.key", "$(POD_IP)", "a=true,b", "--secure-port=1", "\x00\n\""} {
			f.Add(name, value)
		}
	}
	var bases []*pflag.FlagSet
	cluster := demo(nil)
	for _, replica := range exampleReplicas(cluster) {
		base, err := configuration(cluster, replica, exampleAddress, nil)
		if err != nil {
			f.Fatal(err)
		}
		bases = append(bases, base.Flags())
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		cluster := withArgs(map[string]string{name: value})
		err := Validate(cluster, nil)
		checkSpelling(t, name, value, err)
		if err != nil {
			return
		}
		for i, replica := range exampleReplicas(cluster) {
			started(t, cluster, replica).Flags().VisitAll(func(flag *pflag.Flag) {
				if want := bases[i].Lookup(flag.Name); denial(flag.Name) != "" && want.Value.String() != flag.Value.String() {
					t.Errorf("%q=%q set --%s to %s; the operator's is %s", name, value, flag.Name, flag.Value, want.Value)
				}
			})
		}
	})
}

// checkSpelling compares with the server's parser: the operator rejects every spelling that the server accepts of a
// flag that users cannot set.
func checkSpelling(t *testing.T, name, value string, refused error) {
	t.Helper()
	for _, arg := range []string{fmt.Sprintf("--%s=%s", strings.TrimLeft(name, "-"), value), name + "=" + value, name} {
		flags := config.Default().Flags()
		flags.Usage = func() {}
		_ = flags.ParseAll([]string{arg}, func(flag *pflag.Flag, _ string) error {
			if denial(flag.Name) != "" && refused == nil {
				t.Errorf("%q=%q sets --%s", name, value, flag.Name)
			}
			return nil
		})
	}
}
