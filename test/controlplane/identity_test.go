package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificates "k8s.io/api/certificates/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// mustBe waits until the server authenticates a client as the given user: it observes new tokens asynchronously.
func (s *stepTest) mustBe(want string, config *rest.Config) {
	s.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		s.Fatal(err)
	}
	s.await("being "+want, func(ctx context.Context) error {
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx,
			&authenticationv1.SelfSubjectReview{}, meta.CreateOptions{})
		if err == nil && review.Status.UserInfo.Username != want {
			err = fmt.Errorf("taken for %s", review.Status.UserInfo.Username)
		}
		return err
	})
}

// accounts get tokens and the root CA configmap.
func accounts(s *stepTest) {
	s.begin()
	s.await("the root certificates", func(ctx context.Context) error {
		roots, err := s.typed.CoreV1().ConfigMaps(s.namespace).Get(ctx, "kube-root-ca.crt", meta.GetOptions{})
		if err == nil && roots.Data["ca.crt"] != string(s.config.CAData) {
			err = fmt.Errorf("they are %q", roots.Data)
		}
		return err
	})
	want := "system:serviceaccount:" + s.namespace + ":default"
	anonymous := rest.AnonymousClientConfig(s.config)
	request, err := s.typed.CoreV1().ServiceAccounts(s.namespace).CreateToken(s.Context(), "default",
		&authenticationv1.TokenRequest{}, meta.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	anonymous.BearerToken = request.Status.Token
	s.mustBe(want, anonymous)

	s.create(`{apiVersion: v1, kind: Secret, metadata: {name: token, annotations: {kubernetes.io/service-account.name: default}}, type: kubernetes.io/service-account-token}`)
	s.await("a token in the secret", func(ctx context.Context) error {
		secret, err := s.typed.CoreV1().Secrets(s.namespace).Get(ctx, "token", meta.GetOptions{})
		if err != nil {
			return err
		}
		if anonymous.BearerToken = string(secret.Data[core.ServiceAccountTokenKey]); anonymous.BearerToken == "" {
			return fmt.Errorf("it has %d keys", len(secret.Data))
		}
		return nil
	})
	s.mustBe(want, anonymous)
	s.delete("ServiceAccount", "default", meta.DeletePropagationBackground)
	s.awaitGone("Secret", "token")
	s.await("another default account", func(ctx context.Context) error {
		_, err := s.typed.CoreV1().ServiceAccounts(s.namespace).Get(ctx, "default", meta.GetOptions{})
		return err
	})
}

// certificate is signed by the controllers after its approval, and accepted by the server.
func certificate(s *stepTest) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "alice"}}, key)
	if err != nil {
		s.Fatal(err)
	}
	requests := s.typed.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Create(s.Context(), &certificates.CertificateSigningRequest{
		ObjectMeta: meta.ObjectMeta{Name: "alice"},
		Spec: certificates.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificates.KubeAPIServerClientSignerName,
			Usages:     []certificates.KeyUsage{certificates.UsageClientAuth},
		},
	}, meta.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	request.Status.Conditions = []certificates.CertificateSigningRequestCondition{{
		Type: certificates.CertificateApproved, Status: core.ConditionTrue, Reason: "Known",
	}}
	if _, err = requests.UpdateApproval(s.Context(), request.Name, request, meta.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.await("a certificate", func(ctx context.Context) error {
		request, err = requests.Get(ctx, request.Name, meta.GetOptions{})
		if err == nil && len(request.Status.Certificate) == 0 {
			err = fmt.Errorf("status %+v", request.Status)
		}
		return err
	})
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		s.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.config)
	config.CertData, config.KeyData = request.Status.Certificate, pem.EncodeToMemory(&pem.Block{
		Type: "EC PRIVATE KEY", Bytes: private,
	})
	s.mustBe("alice", config)
}

// aggregatedRole has the rules of the roles that it selects; edit has those of a new role with its label.
func aggregatedRole(s *stepTest) {
	s.create(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: part, labels: {example.com/part: "yes", rbac.authorization.k8s.io/aggregate-to-view: "true"}},
		rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get]}]}`)
	s.create(`{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: whole},
		aggregationRule: {clusterRoleSelectors: [{matchLabels: {example.com/part: "yes"}}]}, rules: []}`)
	s.await("the rules of the whole", func(ctx context.Context) error {
		for _, name := range []string{"whole", "view"} {
			role, err := s.typed.RbacV1().ClusterRoles().Get(ctx, name, meta.GetOptions{})
			if err != nil {
				return err
			}
			found := false
			for _, rule := range role.Rules {
				found = found || len(rule.APIGroups) == 1 && rule.APIGroups[0] == "example.com"
			}
			if !found {
				return fmt.Errorf("%s has %+v", name, role.Rules)
			}
		}
		return nil
	})
}
