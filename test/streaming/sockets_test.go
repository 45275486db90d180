package streaming

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/client-go/rest"
)

// dial opens a WebSocket as the administrator or, if header has an Authorization or a token among its protocols, as
// that user.
func dial(t *testing.T, s *side, path string, header http.Header) *websocket.Conn {
	t.Helper()
	socket, err := tryDial(t, s, path, header)
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return socket
}

func tryDial(t *testing.T, s *side, path string, header http.Header) (*websocket.Conn, error) {
	t.Helper()
	config, err := websocket.NewConfig(strings.Replace(s.admin.Host, "https://", "wss://", 1)+path, s.admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	if config.TlsConfig, err = rest.TLSConfigFor(s.admin); err != nil {
		t.Fatal(err)
	}
	config.TlsConfig.NextProtos = nil
	if protocols := header.Get("Sec-Websocket-Protocol"); protocols != "" {
		config.Protocol = strings.Split(protocols, ", ")
		header = header.Clone()
		header.Del("Sec-Websocket-Protocol")
		if strings.Contains(protocols, "authorization") {
			config.TlsConfig = &tls.Config{RootCAs: config.TlsConfig.RootCAs}
		}
	}
	if header != nil {
		config.Header = header
	}
	socket, err := config.DialContext(t.Context())
	if err == nil {
		err = socket.SetDeadline(time.Now().Add(patience))
	}
	return socket, err
}

// receive returns the next message.
func receive(t *testing.T, socket *websocket.Conn) string {
	t.Helper()
	var message []byte
	if err := websocket.Message.Receive(socket, &message); err != nil {
		return fmt.Sprintf("error: %v", err)
	}
	return string(message)
}

// all returns the messages until the server closes.
func all(t *testing.T, socket *websocket.Conn) string {
	t.Helper()
	var said []string
	for {
		var message []byte
		switch err := websocket.Message.Receive(socket, &message); {
		case errors.Is(err, io.EOF):
			return strings.Join(said, "|")
		case err != nil:
			return strings.Join(append(said, err.Error()), "|")
		}
		said = append(said, string(message))
	}
}

// tokenProtocol returns a token as browsers send it.
func (b *bench) tokenProtocol(t *testing.T) string {
	ctx := t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "browser"}}
	if _, err := b.kubernetes.client.CoreV1().ServiceAccounts(namespace).Create(
		ctx, account, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "browser"}, RoleRef: rbacv1.RoleRef{
			APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin",
		},
	}
	binding.Subjects = []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "browser"}}
	if _, err := b.kubernetes.client.RbacV1().ClusterRoleBindings().Create(
		ctx, binding, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	token, err := b.kubernetes.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "browser",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token.Status.Token))
}

func (b *bench) testSockets(t *testing.T) {
	const pod = "/api/v1/namespaces/default/pods/pod"
	exec := pod + "/exec?container=main&stdout=1&stderr=1&command=echo&command=hello"
	token := b.tokenProtocol(t)
	for _, c := range []struct{ name, path, protocols, want string }{
		{"channels", exec, "channel.k8s.io", "\x01hello\n"},
		{"channels as text", exec, "base64.channel.k8s.io", "1" + base64.StdEncoding.EncodeToString([]byte("hello\n"))},
		{"channels with status", exec, "v4.channel.k8s.io", `"status":"Success"`},
		{"with token", exec, "v4.channel.k8s.io, " + token, `"status":"Success"`},
		{"log", pod + "/log?container=main", "", "pod main"},
		{"log with binary", pod + "/log?container=main", "binary.k8s.io", "pod main"},
		{
			"log as text", pod + "/log?container=main", "base64.binary.k8s.io",
			base64.StdEncoding.EncodeToString([]byte("pod "))[:4],
		},
		{"log with token", pod + "/log?container=main", "binary.k8s.io, " + token, "pod main"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.both(t, c.want, func(t *testing.T, s *side) string {
				header := http.Header{}
				if c.protocols != "" {
					header.Set("Sec-Websocket-Protocol", c.protocols)
				}
				return all(t, dial(t, s, c.path, header))
			})
		})
	}
	t.Run("unknown protocol", func(t *testing.T) {
		b.both(t, "bad status", func(t *testing.T, s *side) string {
			_, err := tryDial(t, s, pod+"/log?container=main", http.Header{"Sec-Websocket-Protocol": {"nonsense"}})
			return strings.ReplaceAll(fmt.Sprint(err), strings.TrimPrefix(s.admin.Host, "https"), "SERVER")
		})
	})
}

// shown returns a message in CBOR as its first byte and JSON, because kube-apiserver does not sort the keys of CBOR; it
// returns other messages unchanged.
func shown(t *testing.T, message string) string {
	t.Helper()
	const mapsOrTags = 5 // from this major type on
	if message == "" || message[0]>>5 < mapsOrTags {
		return message
	}
	var event any
	if err := direct.Unmarshal([]byte(message), &event); err != nil {
		return fmt.Sprintf("%q: %v", message, err)
	}
	converted, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x %s", message[0], converted)
}

// testWatchOverSocket changes an object that is watched over WebSockets.
func (b *bench) testWatchOverSocket(t *testing.T) {
	maps := b.kubernetes.client.CoreV1().ConfigMaps(namespace)
	start, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "watched"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dwatched&resourceVersion=" + start.ResourceVersion
	made.Data = map[string]string{"a": "b"}
	if _, err := maps.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path     string
		header   http.Header
		messages int // 0: until the server closes
		want     string
	}{
		"JSON":     {path, nil, 3, `{"type":"DELETED","object":{"kind":"ConfigMap"`},
		"protobuf": {path, http.Header{"Accept": {"application/vnd.kubernetes.protobuf"}}, 3, "DELETED"},
		"CBOR":     {path, http.Header{"Accept": {"application/cbor"}}, 3, `"type":"DELETED"`},
		"CBOR, metadata only": {
			path, http.Header{"Accept": {"application/cbor;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
			3, "PartialObjectMetadata",
		},
		"metadata only": {
			path, http.Header{"Accept": {"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
			3, "PartialObjectMetadata",
		},
		"initial state": {"/api/v1/nodes?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dnode", nil, 0, "ADDED"},
		"bad revision":  {"/api/v1/nodes?watch=1&resourceVersion=x", nil, 0, "bad status"},
		"protocol":      {path, http.Header{"Sec-Websocket-Protocol": {"nothing"}}, 3, "ADDED"},
	} {
		t.Run(name, func(t *testing.T) {
			b.both(t, c.want, func(t *testing.T, s *side) string {
				socket, err := tryDial(t, s, c.path, c.header)
				if err != nil {
					return strings.ReplaceAll(err.Error(), strings.TrimPrefix(s.admin.Host, "https"), "SERVER")
				}
				defer socket.Close()
				if c.messages == 0 {
					return all(t, socket)
				}
				var said []string
				for range c.messages {
					said = append(said, shown(t, receive(t, socket)))
				}
				return strings.Join(said, "|")
			})
		})
	}
}
