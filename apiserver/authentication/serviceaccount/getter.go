package serviceaccount

import (
	"context"
	"encoding/json"
	"errors"
	"maps"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/resource"
)

var (
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	pods            = schema.GroupResource{Resource: "pods"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	nodes           = schema.GroupResource{Resource: "nodes"}

	validatingWebhooks = schema.GroupResource{
		Group: admissionregistration.GroupName, Resource: "validatingwebhookconfigurations",
	}
	mutatingWebhooks = schema.GroupResource{
		Group: admissionregistration.GroupName, Resource: "mutatingwebhookconfigurations",
	}
)

// getter reads the objects that tokens are bound to, for upstream's validators. It reads an object from the watch cache
// or, if the cache does not have it, from storage. It sets only the fields that the validators use.
type getter struct{ objects resource.Client }

func (g getter) get(ctx context.Context, gr schema.GroupResource, namespace, name string) (runtime.Object, error) {
	key := resource.Key{GroupResource: gr, Namespace: namespace, Name: name}
	object, err := g.objects.Get(ctx, key, resource.ReadOptions{Cached: true})
	if apierrors.IsNotFound(err) {
		return g.objects.Get(ctx, key, resource.ReadOptions{})
	}
	return object, err
}

// GetServiceAccount implements serviceaccount.ServiceAccountTokenGetter.
func (g getter) GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	object, err := g.get(ctx, serviceAccounts, namespace, name)
	if err != nil {
		return nil, err
	}
	account := object.(*core.ServiceAccount)
	found := &v1.ServiceAccount{ObjectMeta: account.ObjectMeta}
	for _, reference := range account.Secrets {
		found.Secrets = append(found.Secrets, v1.ObjectReference{Name: reference.Name})
	}
	return found, nil
}

// GetPod implements serviceaccount.ServiceAccountTokenGetter.
func (g getter) GetPod(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	object, err := g.get(ctx, pods, namespace, name)
	if err != nil {
		return nil, err
	}
	return &v1.Pod{ObjectMeta: object.(*core.Pod).ObjectMeta}, nil
}

// GetSecret implements serviceaccount.ServiceAccountTokenGetter.
func (g getter) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	object, err := g.get(ctx, secrets, namespace, name)
	if err != nil {
		return nil, err
	}
	secret := object.(*core.Secret)
	return &v1.Secret{ObjectMeta: secret.ObjectMeta, Data: secret.Data}, nil
}

// GetNode implements serviceaccount.ServiceAccountTokenGetter.
func (g getter) GetNode(ctx context.Context, name string) (*v1.Node, error) {
	object, err := g.get(ctx, nodes, "", name)
	if err != nil {
		return nil, err
	}
	return &v1.Node{ObjectMeta: object.(*core.Node).ObjectMeta}, nil
}

// GetValidatingWebhookConfiguration implements serviceaccount.ServiceAccountTokenGetter.
func (g getter) GetValidatingWebhookConfiguration(
	ctx context.Context, name string,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	object, err := g.get(ctx, validatingWebhooks, "", name)
	if err != nil {
		return nil, err
	}
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: object.(*admissionregistration.ValidatingWebhookConfiguration).ObjectMeta,
	}, nil
}

// GetMutatingWebhookConfiguration implements serviceaccount.ServiceAccountTokenGetter.
func (g getter) GetMutatingWebhookConfiguration(
	ctx context.Context, name string,
) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	object, err := g.get(ctx, mutatingWebhooks, "", name)
	if err != nil {
		return nil, err
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: object.(*admissionregistration.MutatingWebhookConfiguration).ObjectMeta,
	}, nil
}

// Secrets returns a client with the only method that upstream's validator of legacy tokens calls: Patch.
func (g getter) Secrets(namespace string) clientv1.SecretInterface {
	return labeler{objects: g.objects, namespace: namespace}
}

// labeler sets the label with the date of the last use of a legacy token on its Secret.
type labeler struct {
	clientv1.SecretInterface
	objects   resource.Client
	namespace string
}

// Patch applies the labels in a merge patch to a Secret.
func (l labeler) Patch(
	ctx context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string,
) (*v1.Secret, error) {
	var patch metav1.PartialObjectMetadata
	if err := json.Unmarshal(data, &patch); err != nil {
		return nil, err
	}
	key := resource.Key{GroupResource: secrets, Namespace: l.namespace, Name: name}
	updated, err := l.objects.Update(ctx, key, func(current runtime.Object) error {
		return label(current.(*core.Secret), patch.ObjectMeta)
	}, resource.WriteOptions{})
	if err != nil {
		return nil, err
	}
	return &v1.Secret{ObjectMeta: updated.(*core.Secret).ObjectMeta}, nil
}

func label(secret *core.Secret, patch metav1.ObjectMeta) error {
	if patch.UID != "" && patch.UID != secret.UID {
		return apierrors.NewConflict(secrets, secret.Name, errors.New("the Secret was deleted and recreated"))
	}
	if secret.Labels == nil {
		secret.Labels = map[string]string{}
	}
	maps.Copy(secret.Labels, patch.Labels)
	return nil
}
