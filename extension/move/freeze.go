package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// policyName returns the name of the ValidatingAdmissionPolicy that blocks writes, and of its binding.
func policyName(group string) string { return "quorate-move." + group }

// policy returns a policy that blocks writes to the resources in the given versions, except writes of the move's user
// in accessVersion.
func policy(
	group string, resources []resource, versions []string, user string,
) *admissionregistrationv1.ValidatingAdmissionPolicy {
	var names []string
	for _, r := range resources {
		names = append(names, r.Plural, r.Plural+"/*")
	}
	return &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policyName(group)},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionregistrationv1.Fail),
			MatchConstraints: &admissionregistrationv1.MatchResources{
				MatchPolicy: ptr.To(admissionregistrationv1.Exact),
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{
							admissionregistrationv1.Create, admissionregistrationv1.Update, admissionregistrationv1.Delete,
						},
						Rule: admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: versions, Resources: names},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("request.resource.version == %q && request.userInfo.username == %s",
					accessVersion, strconv.Quote(user)),
				Message: fmt.Sprintf("objects of %s are being moved to another cluster, please try again later", group),
				Reason:  ptr.To(metav1.StatusReasonForbidden),
			}},
		},
	}
}

// freeze blocks writes in the given versions. An existing policy is replaced, so that it then blocks only these
// versions.
func (m *Mover) freeze(ctx context.Context, s *state, versions []string) error {
	review, err := m.host.typed.AuthenticationV1().SelfSubjectReviews().Create(
		ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("read the user of the move: %w", err)
	}
	wanted := policy(m.Group, s.Resources, versions, review.Status.UserInfo.Username)
	policies := m.host.typed.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	current, err := policies.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = policies.Create(ctx, wanted, metav1.CreateOptions{FieldManager: manager})
	case err == nil:
		current.Spec = wanted.Spec
		_, err = policies.Update(ctx, current, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return fmt.Errorf("block writes: %w", err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: wanted.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: wanted.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	_, err = m.host.typed.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(
		ctx, binding, metav1.CreateOptions{FieldManager: manager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("block writes: %w", err)
	}
	return nil
}

// freezeAll blocks all writes except the writes of the move in all versions, and waits until the host rejects writes.
func (m *Mover) freezeAll(ctx context.Context, s *state) error {
	if err := m.freeze(ctx, s, append(s.versions(), accessVersion)); err != nil {
		return err
	}
	for _, r := range s.Resources {
		objects := collection{m.host.objects, r.in(r.Version), r.Namespaced}
		err := m.awaitRepeatedly(ctx, "writes to be blocked", func(ctx context.Context) error { return probe(ctx, objects) })
		if err != nil {
			return err
		}
	}
	return m.settle(ctx)
}

// probe returns an error unless writes to a collection are blocked. It attempts a dry-run write to one object; in an
// empty collection it returns nil.
func probe(ctx context.Context, c collection) error {
	list, err := c.client.Resource(c.resource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(list.Items) == 0 {
		return err
	}
	_, err = c.in(list.Items[0].GetNamespace()).Patch(ctx, list.Items[0].GetName(), types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"quorate.dev/probe":""}}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return errors.New("a write is admitted")
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), policyName(c.resource.Group)):
		return nil
	}
	return err
}

// unfreeze deletes the policy that blocks writes.
func (m *Mover) unfreeze(ctx context.Context) error {
	registration := m.host.typed.AdmissionregistrationV1()
	name := policyName(m.Group)
	return errors.Join(
		ignoreNotFound(registration.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{})),
		ignoreNotFound(registration.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{})),
	)
}

// versions returns the versions in which any resource of the move is served.
func (s *state) versions() []string {
	var all []string
	for _, r := range s.Resources {
		all = append(all, r.Served...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
