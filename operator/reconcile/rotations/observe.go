package rotations

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/companions"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/rotation"
)

// observe adds the credentials that each replica, kubeconfig and companion uses to the observations, if a rotation is
// in progress.
//
// For a replica, rotation.Plan distinguishes Missing, which the replica loads without a restart, from Static, which it
// reads only when it starts. A handshake shows missing credentials, but not static ones: the annotation
// AuthorityHashAnnotation has the authorities with which the pod was created, and a pod with another value has to
// restart. A replica that is unreachable is not restarted, and the stage waits for it.
func (in PlanInput) observe(ctx context.Context, reader client.Reader, authorities, keys *rotation.Observation) error {
	cluster, c := in.State.Cluster, in.Credentials
	if authorities.Stage == rotation.None && keys.Stage == rotation.None {
		return nil
	}
	probe, err := c.Probe(cluster)
	if err != nil {
		return err
	}
	want := wantedFrom(cluster, c)
	for i, used := range in.State.Credentials(ctx, probe) {
		pod := &in.State.Pods[i]
		replica := rotation.Replica{Name: pod.Name, Created: pod.CreationTimestamp.Time}
		if used.Err != nil {
			replica.Unreachable = used.Err.Error()
		}
		signing := replica
		replica.Missing = want.missing(observed.RunsMember(pod), used)
		if !cluster.ExternalEtcd() && pod.Annotations[desired.AuthorityHashAnnotation] != want.authorityHash {
			replica.Static = []string{"etcd reads its authorities only when it starts"}
		}
		if !slices.Equal(used.ServiceAccountKeyID, want.keyIDs) {
			signing.Missing = []string{"service-account keys"}
		}
		authorities.Replicas, keys.Replicas = append(authorities.Replicas, replica), append(keys.Replicas, signing)
	}
	if authorities.Kubeconfigs, err = outdatedKubeconfigs(ctx, reader, cluster, c); err != nil {
		return err
	}
	if authorities.Companions, err = companions.Outdated(ctx, reader, cluster, c.Companions()); err != nil {
		return err
	}
	keys.Companions = authorities.Companions
	bundles, err := apiservices.Outdated(ctx, reader, cluster, c.Trusted)
	authorities.Kubeconfigs = append(authorities.Kubeconfigs, bundles...)
	return err
}

// wanted has the credentials that a replica uses once it has loaded the present Secrets, in the notation of
// observed.Credentials.
type wanted struct {
	serving, etcdServing         string
	authorities, etcdAuthorities [][]byte
	keyIDs                       []string
	authorityHash                string
	// operatorName is a part of the names of the client authorities that the operator has created. API servers in mode
	// Extension also accept the client authorities of their host, which do not contain it. In other modes operatorName is
	// nil, because there are no others.
	operatorName []byte
}

// wantedFrom returns the credentials in the present Secrets.
func wantedFrom(cluster *v1alpha1.ApiServerCluster, c credentials.Set) wanted {
	var operatorName []byte
	if cluster.IsExtension() {
		operatorName = []byte(AuthorityName(cluster, desired.ClientDomain))
	}
	return wanted{
		operatorName: operatorName,
		serving:      chainOf(c.Leaves[desired.ServingSecret]),
		etcdServing:  chainOf(c.Leaves[desired.EtcdServerSecret]),
		authorities: slices.Concat(c.Bundles[desired.ClientDomain].Subjects(),
			c.Bundles[desired.FrontProxyDomain].Subjects()),
		etcdAuthorities: c.Bundles[desired.EtcdClientDomain].Subjects(),
		keyIDs:          pki.KeyIDs(c.Keys.Verifying()),
		authorityHash:   desired.AuthorityHash(cluster, c.Bundles),
	}
}

// chainOf returns the fingerprint of a certificate with its intermediates.
func chainOf(pair pki.Pair) string {
	chain, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		return ""
	}
	return observed.ChainFingerprint(chain)
}

// missing describes the wanted credentials that a replica does not use yet. It returns nil if they are unknown.
func (w wanted) missing(member bool, used observed.Credentials) (missing []string) {
	if used.Err != nil {
		return nil
	}
	if used.Serving != w.serving {
		missing = append(missing, "serving certificate")
	}
	if !sameNames(w.relevant(used.Authorities), w.authorities) {
		missing = append(missing, "authorities of clients")
	}
	if member && used.EtcdServing != w.etcdServing {
		missing = append(missing, "etcd's serving certificate")
	}
	return missing
}

// relevant returns the names of a replica's client authorities except for the authorities of its host.
func (w wanted) relevant(names [][]byte) [][]byte {
	if w.operatorName == nil {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name []byte) bool {
		isWanted := slices.ContainsFunc(w.authorities, func(other []byte) bool { return bytes.Equal(name, other) })
		return !isWanted && !bytes.Contains(name, w.operatorName)
	})
}

// sameNames reports whether two lists contain the same names in any order. A name can occur more than once, because an
// authority of the user may have the same name as its successor. Names are all that a TLS handshake shows: for two
// authorities with one name, the number of occurrences shows whether the replica trusts both.
func sameNames(a, b [][]byte) bool {
	sorted := func(names [][]byte) [][]byte { return slices.SortedFunc(slices.Values(names), bytes.Compare) }
	return slices.EqualFunc(sorted(a), sorted(b), bytes.Equal)
}

// outdatedKubeconfigs returns the names of the Secrets of ApiServerKubeconfigs that do not have the present
// authorities. Their controller (package kubeconfig) updates them; this step only waits, because a client whose
// kubeconfig trusts only the old authority would fail in the next stage. A kubeconfig that has no Secret is ignored:
// nothing was published, so no client depends on it.
func outdatedKubeconfigs(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, c credentials.Set,
) ([]string, error) {
	list := &v1alpha1.ApiServerKubeconfigList{}
	if err := reader.List(ctx, list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("list kubeconfigs: %w", err)
	}
	var outdated []string
	for i := range list.Items {
		kubeconfig := &list.Items[i]
		if kubeconfig.Spec.ClusterRef.Name != cluster.Name || kubeconfig.DeletionTimestamp != nil {
			continue
		}
		secret := &corev1.Secret{}
		err := reader.Get(ctx,
			client.ObjectKey{Namespace: kubeconfig.Namespace, Name: desired.KubeconfigSecretName(kubeconfig)}, secret)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read the Secret of kubeconfig %s: %w", kubeconfig.Name, err)
		}
		if err != nil || !metav1.IsControlledBy(secret, kubeconfig) {
			continue // no kubeconfig is published
		}
		if !desired.KubeconfigCurrent(secret, c.Trusted, c.Bundles[desired.ClientDomain]) {
			outdated = append(outdated, secret.Name)
		}
	}
	return outdated, nil
}
