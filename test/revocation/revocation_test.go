// Package revocation measures how long a credential or a permission that was revoked still works, with Quorate and with
// kube-apiserver. docs/security.md has the table that TestRevocation prints.
package revocation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/test/upstream"
)

const (
	// tolerance is how much longer than with kube-apiserver a credential may work: the time between two requests on a busy
	// machine, and the delivery of a change to an informer.
	tolerance = 2 * time.Second
	// patience is the time after which a credential that still works counts as never revoked.
	patience = 2 * time.Minute
	// pause is the time between two requests with a revoked credential.
	pause = 20 * time.Millisecond
	// webhookTTL is the lifetime of decisions of the token webhook in both servers' caches.
	webhookTTL = 3 * time.Second

	namespace = "default"
)

// server is one of the two compared API servers, with the credentials and permissions that the test revokes.
type server struct {
	admin    *kubernetes.Clientset
	config   *rest.Config
	pki      *upstream.PKI
	clientCA string      // file of the authorities of client certificates
	token    atomic.Bool // whether the token webhook accepts its token
}

// row is a credential or a permission.
type row struct {
	name string
	// grant returns the configuration of a client that may list ConfigMaps, and a function that revokes it.
	grant func(t *testing.T, s *server) (*rest.Config, func() error)
}

var rows = []row{
	{"a service account's token, after the service account is deleted", deletedAccount},
	{"a token bound to a Secret, after the Secret is deleted", deletedSecret},
	{"a token bound to a pod, after the pod is deleted", deletedPod},
	{"a token that the token webhook no longer accepts", rejectedToken},
	{"a RoleBinding that is deleted", deletedBinding},
	{"a rule that is removed from a Role", changedRole},
	{"a client certificate on an open connection, after its authority is removed", removedAuthority},
}

// TestRevocation fails if a revoked credential or permission works longer than with kube-apiserver.
func TestRevocation(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	ours, theirs := start(t, true), start(t, false)
	table := &strings.Builder{}
	for _, r := range rows {
		var durations [2]time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			durations[0] = measure(t, theirs, r)
		}()
		durations[1] = measure(t, ours, r)
		<-done
		if t.Failed() {
			return
		}
		fmt.Fprintf(table, "| %s | %.1f s | %.1f s |\n", r.name, durations[0].Seconds(), durations[1].Seconds())
		if durations[1] > durations[0]+tolerance {
			t.Errorf("%s works for %v, with kube-apiserver for %v", r.name, durations[1], durations[0])
		}
	}
	t.Logf("| | kube-apiserver | Quorate |\n%s", table)
}

// TestRunningWatch checks that a watch that was open when the permission for it was removed behaves as with
// kube-apiserver: it gets further events until it ends by itself.
func TestRunningWatch(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	for name, s := range map[string]*server{"kube-apiserver": start(t, false), "Quorate": start(t, true)} {
		client, revoke := deletedBinding(t, s)
		clientset := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(client))
		seconds := int64(20)
		stream := must[watch.Interface](t)(clientset.CoreV1().ConfigMaps(namespace).Watch(t.Context(),
			metav1.ListOptions{TimeoutSeconds: &seconds}))
		if err := revoke(); err != nil {
			t.Fatal(err)
		}
		await(t, client, http.StatusForbidden)
		create(t, s.admin.CoreV1().ConfigMaps(namespace).Create, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "after"},
		})
		seen := false
		for event := range stream.ResultChan() { // until the timeout of the watch
			object, ok := event.Object.(*corev1.ConfigMap)
			seen = seen || ok && object.Name == "after"
		}
		if !seen {
			t.Errorf("%s: the watch got no event after the permission was removed", name)
		}
	}
}

// measure returns how long the credential of a row works after it is revoked.
func measure(t *testing.T, s *server, r row) time.Duration {
	client, revoke := r.grant(t, s)
	if client == nil {
		return 0
	}
	code, err := 0, error(nil)
	used := must[*http.Client](t)(rest.HTTPClientFor(client))
	if code, err = list(t.Context(), used, client.Host); err != nil || code != http.StatusOK {
		t.Errorf("%s: %d %v before it is revoked", r.name, code, err)
		return 0
	}
	if err := revoke(); err != nil {
		t.Errorf("revoke %s: %v", r.name, err)
		return 0
	}
	began := time.Now()
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for time.Since(began) < patience {
		if code, err = list(t.Context(), used, client.Host); err != nil || code == http.StatusUnauthorized ||
			code == http.StatusForbidden {
			return time.Since(began)
		}
		<-ticker.C
	}
	t.Errorf("%s still works after %v", r.name, patience)
	return patience
}

// list lists ConfigMaps and returns the status code.
func list(ctx context.Context, client *http.Client, host string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		host+"/api/v1/namespaces/"+namespace+"/configmaps", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = bytes.NewBuffer(nil).ReadFrom(response.Body)
	return response.StatusCode, err
}

// await returns when listing returns the code.
func await(t *testing.T, config *rest.Config, want int) {
	t.Helper()
	client := must[*http.Client](t)(rest.HTTPClientFor(config))
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		code, err := list(t.Context(), client, config.Host)
		if err == nil && code == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %d %v, want %d", code, err, want)
		}
	}
}

func deletedAccount(t *testing.T, s *server) (*rest.Config, func() error) {
	client := accountClient(t, s, "deleted", nil)
	return client, func() error {
		return s.admin.CoreV1().ServiceAccounts(namespace).Delete(t.Context(), "deleted", metav1.DeleteOptions{})
	}
}

func deletedSecret(t *testing.T, s *server) (*rest.Config, func() error) {
	secret := create(t, s.admin.CoreV1().Secrets(namespace).Create, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bound"},
	})
	client := accountClient(t, s, "secret", &authenticationv1.BoundObjectReference{
		Kind: "Secret", APIVersion: "v1", Name: secret.Name, UID: secret.UID,
	})
	return client, func() error {
		return s.admin.CoreV1().Secrets(namespace).Delete(t.Context(), "bound", metav1.DeleteOptions{})
	}
}

func deletedPod(t *testing.T, s *server) (*rest.Config, func() error) {
	pod := create(t, s.admin.CoreV1().Pods(namespace).Create, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "bound"},
		Spec: corev1.PodSpec{
			ServiceAccountName: "pod", Containers: []corev1.Container{{Name: "main", Image: "example.com/image:1"}},
		},
	})
	client := accountClient(t, s, "pod", &authenticationv1.BoundObjectReference{
		Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
	})
	return client, func() error {
		now := int64(0)
		return s.admin.CoreV1().Pods(namespace).Delete(t.Context(), "bound", metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
}

func rejectedToken(t *testing.T, s *server) (*rest.Config, func() error) {
	client := rest.AnonymousClientConfig(s.config)
	client.BearerToken = "of-webhook"
	s.token.Store(true)
	bind(t, s, "webhook", rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "webhook"})
	await(t, client, http.StatusOK)
	return client, func() error { s.token.Store(false); return nil }
}

func deletedBinding(t *testing.T, s *server) (*rest.Config, func() error) {
	client := certificateClient(t, s, "binding")
	return client, func() error {
		return s.admin.RbacV1().RoleBindings(namespace).Delete(t.Context(), "binding", metav1.DeleteOptions{})
	}
}

func changedRole(t *testing.T, s *server) (*rest.Config, func() error) {
	client := certificateClient(t, s, "role")
	return client, func() error {
		role, err := s.admin.RbacV1().Roles(namespace).Get(t.Context(), "role", metav1.GetOptions{})
		if err != nil {
			return err
		}
		role.Rules = nil
		_, err = s.admin.RbacV1().Roles(namespace).Update(t.Context(), role, metav1.UpdateOptions{})
		return err
	}
}

// removedAuthority must be the last row: afterwards, no client certificate is valid.
func removedAuthority(t *testing.T, s *server) (*rest.Config, func() error) {
	client := certificateClient(t, s, "authority")
	return client, func() error {
		other, err := upstream.NewAuthority("other")
		if err != nil {
			return err
		}
		return os.WriteFile(s.clientCA, other.PEM(), 0o600)
	}
}

// accountClient creates a service account that may list ConfigMaps, and returns a client with a token of it.
func accountClient(t *testing.T, s *server, name string, bound *authenticationv1.BoundObjectReference) *rest.Config {
	t.Helper()
	create(t, s.admin.CoreV1().ServiceAccounts(namespace).Create, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: name},
	})
	bind(t, s, name, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace})
	token := must[*authenticationv1.TokenRequest](t)(s.admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(),
		name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}},
		metav1.CreateOptions{}))
	client := rest.AnonymousClientConfig(s.config)
	client.BearerToken = token.Status.Token
	await(t, client, http.StatusOK)
	return client
}

// certificateClient returns a client of a user that may list ConfigMaps.
func certificateClient(t *testing.T, s *server, name string) *rest.Config {
	t.Helper()
	bind(t, s, name, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name})
	client := must[*rest.Config](t)(s.pki.As(s.config, name))
	await(t, client, http.StatusOK)
	return client
}

// bind creates a Role that permits to list ConfigMaps, and a RoleBinding for the subject.
func bind(t *testing.T, s *server, name string, subject rbacv1.Subject) {
	t.Helper()
	create(t, s.admin.RbacV1().Roles(namespace).Create, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"},
		}},
	})
	create(t, s.admin.RbacV1().RoleBindings(namespace).Create, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	})
}

// start starts a server with a token webhook.
func start(t *testing.T, ours bool) *server {
	t.Helper()
	directory := t.TempDir()
	s := &server{pki: must[*upstream.PKI](t)(upstream.NewPKI(filepath.Join(directory, "pki")))}
	clients := slices.IndexFunc(s.pki.Flags(), func(flag string) bool {
		return strings.HasPrefix(flag, "--client-ca-file=")
	})
	s.clientCA = strings.TrimPrefix(s.pki.Flags()[clients], "--client-ca-file=")
	options := upstream.Options{Directory: directory, PKI: s.pki, Arguments: []string{
		"--authentication-token-webhook-config-file=" + s.webhook(t, directory), "--authentication-token-webhook-version=v1",
		"--authentication-token-webhook-cache-ttl=" + webhookTTL.String(),
	}}
	launch := upstream.StartQuorate
	if !ours {
		etcd := must[*upstream.EtcdServer](t)(upstream.StartEtcd(t.Context(), directory))
		t.Cleanup(etcd.Kill)
		options.Etcd, launch = etcd.Endpoint, upstream.StartKubernetes
	}
	running := must[*upstream.APIServer](t)(launch(t.Context(), options))
	t.Cleanup(running.Kill)
	s.config = rest.CopyConfig(running.Admin)
	s.config.QPS = -1
	s.admin = must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(s.config))
	return s
}

// webhook starts a token webhook and returns the kubeconfig file for it.
func (s *server) webhook(t *testing.T, directory string) string {
	t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Spec.Token == "of-webhook" && s.token.Load() {
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, User: authenticationv1.UserInfo{Username: "webhook"},
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // an error shows in the client
	}))
	t.Cleanup(hook.Close)
	file := clientcmdapi.NewConfig()
	file.Clusters["webhook"] = &clientcmdapi.Cluster{Server: hook.URL, InsecureSkipTLSVerify: true}
	file.AuthInfos["server"] = &clientcmdapi.AuthInfo{}
	file.Contexts["webhook"] = &clientcmdapi.Context{Cluster: "webhook", AuthInfo: "server"}
	file.CurrentContext = "webhook"
	path := filepath.Join(directory, "webhook.kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// create creates an object and fails the test on an error.
func create[T any](t *testing.T, f func(context.Context, T, metav1.CreateOptions) (T, error), object T) T {
	t.Helper()
	return must[T](t)(f(t.Context(), object, metav1.CreateOptions{}))
}

func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
