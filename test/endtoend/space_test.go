package endtoend

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/etcd"
	"quorate.dev/operator/api/v1alpha1"
)

// defragment fills the databases with superseded revisions, and waits until the operator has defragmented all members.
func (s *sandbox) defragment() {
	s.t.Helper()
	s.fragment()
	s.run(s.management, "patch", "apiservercluster/demo", "--type=merge", "-p",
		`{"spec":{"etcd":{"embedded":{"defragmentation":{"minFree":"1Mi","interval":"24h"}}}}}`)
	s.waitFor("all members are defragmented", func() (bool, string) {
		c := s.cluster()
		done := c.Status.Defragmentation == nil
		for _, member := range c.Status.Members {
			done = done && member.LastDefragmentTime != nil
		}
		return done, fmt.Sprintf("%+v", c.Status)
	})
	s.settled(3, 3)
}

// fragment compacts large values that were overwritten, and waits until more than half of each database is unused. It
// keeps revisions that a watch may still need.
func (s *sandbox) fragment() {
	s.t.Helper()
	const (
		key    = "/fragment"
		values = 20
		margin = 100 // revisions
	)
	var first *clientv3.Client
	for _, member := range s.cluster().Status.Members {
		client := must(clientv3.New(must(etcd.LocalConfig(s.t.Context(), s.dataDirectory(member.Name)))(s.t)))(s.t)
		defer client.Close()
		if first == nil {
			first = client
			var superseded int64
			for range values {
				superseded = must(client.Put(s.t.Context(), key, strings.Repeat("x", 1<<20)))(s.t).Header.Revision
			}
			must(client.Put(s.t.Context(), key, "small"))(s.t)
			s.waitFor("later revisions", func() (bool, string) {
				revision := must(client.Get(s.t.Context(), key))(s.t).Header.Revision
				return revision > superseded+margin, fmt.Sprint(revision)
			})
			must(client.Compact(s.t.Context(), superseded+1))(s.t)
		}
		s.waitFor("unused space of "+member.Name, func() (bool, string) {
			status := must(client.Status(s.t.Context(), client.Endpoints()[0]))(s.t)
			return status.DbSizeInUse < status.DbSize/2, fmt.Sprintf("%d of %d bytes are in use",
				status.DbSizeInUse, status.DbSize)
		})
	}
}

// outOfSpace raises the alarm NOSPACE of a cluster with small volumes: the operator defragments, and writes succeed
// again.
func (b *backupTest) outOfSpace() {
	b.t.Helper()
	b.create(&v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "full", Namespace: "default"},
		Spec: v1alpha1.ApiServerClusterSpec{
			Replicas: ptr.To[int32](1), Storage: v1alpha1.Storage{Size: resource.MustParse("60Mi")},
		},
	})
	b.settledCluster("full", 1)
	create := func(name string) error {
		object := configMap(name, 0)
		object.Namespace = metav1.NamespaceDefault
		_, err := b.client("full").CoreV1().ConfigMaps(object.Namespace).Create(b.t.Context(), object, metav1.CreateOptions{})
		return err
	}
	client := must(clientv3.New(must(etcd.LocalConfig(b.t.Context(), b.dataDirectory("full-0")))(b.t)))(b.t)
	defer client.Close()
	var last int64
	for {
		response, err := client.Put(b.t.Context(), "/fragment", strings.Repeat("x", 1<<20))
		if err != nil {
			if !errors.Is(err, rpctypes.ErrNoSpace) {
				b.t.Fatal(err)
			}
			break
		}
		last = response.Header.Revision
	}
	var status apierrors.APIStatus
	if err := create("refused"); !errors.As(err, &status) || status.Status().Code != http.StatusInsufficientStorage {
		b.t.Errorf("creating an object while the alarm is raised: %v", err)
	}
	must(client.Compact(b.t.Context(), last))(b.t)
	b.waitFor("unused space", func() (bool, string) {
		status := must(client.Status(b.t.Context(), client.Endpoints()[0]))(b.t)
		return status.DbSizeInUse < status.DbSize/2, fmt.Sprintf("%d of %d bytes are in use",
			status.DbSizeInUse, status.DbSize)
	})
	b.run(b.management, "annotate", "apiservercluster/full", "example.com/look=now") // avoids waiting for the resync
	b.waitFor("the end of the alarm", func() (bool, string) {
		err := create("accepted")
		return err == nil, fmt.Sprint(err, b.named("full").Status)
	})
	b.waitFor("the end of the defragmentation", func() (bool, string) {
		c := b.named("full")
		return c.Status.Defragmentation == nil && c.Status.Members[0].LastDefragmentTime != nil &&
			condition(c, v1alpha1.EtcdSpaceAvailable) == metav1.ConditionTrue, fmt.Sprintf("%+v", c.Status)
	})
}
