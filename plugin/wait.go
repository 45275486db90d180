package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/plugin/overview"
)

// goal is a state to wait for. It reports whether an object has reached the state, and returns an error if the object
// cannot reach it.
type goal[T client.Object] func(object T) (bool, error)

// goals are the states of clusters by the values of --for.
var goals = map[string]goal[*v1alpha1.ApiServerCluster]{
	"settled":   func(c *v1alpha1.ApiServerCluster) (bool, error) { return overview.Settled(c), nil },
	"available": isTrue(v1alpha1.Available),
	"restored":  isTrue(v1alpha1.Restored),
	"upgraded": func(c *v1alpha1.ApiServerCluster) (bool, error) {
		return overview.Settled(c) && (c.Spec.Image == "" || c.Status.Image == c.Spec.Image), nil
	},
	"recovered": func(c *v1alpha1.ApiServerCluster) (bool, error) {
		ok, err := isTrue(v1alpha1.Recovered)(c)
		return ok && !c.RecoveryRequested() && !recovering(c), err
	},
	"rotated": func(c *v1alpha1.ApiServerCluster) (bool, error) {
		c0 := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.CredentialsRotating)
		return c0 != nil && c0.ObservedGeneration == c.Generation && c0.Status == metav1.ConditionFalse &&
			c.Status.Rotations == nil, nil
	},
	"deleted": func(*v1alpha1.ApiServerCluster) (bool, error) { return false, nil },
}

func isTrue(kind string) goal[*v1alpha1.ApiServerCluster] {
	return func(c *v1alpha1.ApiServerCluster) (bool, error) {
		return meta.IsStatusConditionTrue(c.Status.Conditions, kind), nil
	}
}

func (t *tool) waitCommand() *cobra.Command {
	var target string
	var timeout time.Duration
	names := slices.Sorted(maps.Keys(goals))
	command := &cobra.Command{
		Use: "wait [CLUSTER]", Short: "Wait until a cluster has a state, and display the progress",
		Long: "Wait until a cluster has a state, and display the progress. Exits with 3 after the timeout.",
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: t.completeClusters,
	}
	command.Flags().StringVar(&target, "for", "settled", "State: "+strings.Join(names, ", "))
	command.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "Time to wait; 0 waits without limit")
	_ = command.RegisterFlagCompletionFunc("for", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
	checkFlags(command, func() error {
		if goals[target] == nil {
			return fmt.Errorf("--for=%s must be one of %s", target, strings.Join(names, ", "))
		}
		return nil
	})
	command.RunE = t.runFor(func(ctx context.Context, key client.ObjectKey) error {
		return t.awaitCluster(ctx, key, timeout, target, goals[target])
	})
	return command
}

// awaitCluster waits until a cluster reaches a state, and prints that it has.
func (t *tool) awaitCluster(
	ctx context.Context, key client.ObjectKey, timeout time.Duration, target string,
	reached goal[*v1alpha1.ApiServerCluster],
) error {
	began := t.now()
	err := await(ctx, t, waiting{what: "cluster " + key.Name, state: target, timeout: timeout}, key,
		&v1alpha1.ApiServerClusterList{}, reached, describe)
	if errors.Is(err, errDeleted) && target == "deleted" {
		err = nil
	}
	if err != nil {
		return err
	}
	t.note("%s is %s after %s", key.Name, target, t.now().Sub(began).Round(100*time.Millisecond))
	return nil
}

// recovering reports whether a recovery is in progress.
func recovering(c *v1alpha1.ApiServerCluster) bool {
	return c.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting)
}

// describe returns the progress of a cluster in one line.
func describe(c *v1alpha1.ApiServerCluster) string {
	text := fmt.Sprintf("%s: %d/%d ready", c.Name, c.Status.ReadyReplicas, c.ReplicaCount())
	if recovering(c) {
		return strings.TrimSpace(fmt.Sprintf("%s, recovery in stage %s %s", text, c.Status.Recovery.Stage,
			c.Status.Recovery.Message))
	}
	for _, kind := range []string{
		v1alpha1.Deleting, v1alpha1.Restored, v1alpha1.Degraded, v1alpha1.Progressing, v1alpha1.CredentialsRotating,
	} {
		if condition := meta.FindStatusCondition(c.Status.Conditions, kind); condition != nil &&
			!overview.Expected(*condition) {
			return text + ", " + condition.Message
		}
	}
	return text
}

// errDeleted is returned if the object does not exist.
var errDeleted = errors.New("it does not exist")

// waiting describes a state that a command waits for.
type waiting struct {
	what, state string
	timeout     time.Duration // 0: no limit
}

// await watches an object until it has reached a goal, and displays the progress.
func await[T client.Object](
	ctx context.Context, t *tool, w waiting, key client.ObjectKey, list client.ObjectList,
	reached goal[T], describe func(T) string,
) error {
	if w.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w.timeout, &codeError{
			fmt.Errorf("%s is not %s after %s", w.what, w.state, w.timeout), ExitTimeout,
		})
		defer cancel()
	}
	display := &progress{streams: t.streams}
	defer display.done()
	for {
		done, err := watchOnce(ctx, t.client, key, list, func(object T) (bool, error) {
			display.show(describe(object))
			return reached(object)
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, errDeleted):
			return fmt.Errorf("%s: %w", w.what, err)
		case done || err != nil:
			return err
		}
	}
}

// watchOnce calls seen with each version of an object until seen returns true or the watch ends.
func watchOnce[T client.Object](
	ctx context.Context, c client.WithWatch, key client.ObjectKey, list client.ObjectList, seen func(T) (bool, error),
) (bool, error) {
	only := &client.ListOptions{
		Namespace: key.Namespace, FieldSelector: fields.OneTermEqualSelector("metadata.name", key.Name),
	}
	if err := c.List(ctx, list, only); err != nil {
		return false, err
	}
	if meta.LenList(list) == 0 {
		return false, errDeleted
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return false, err
	}
	if done, err := seen(objects[0].(T)); done || err != nil {
		return done, err
	}
	only.Raw = &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}
	watcher, err := c.Watch(ctx, list, only)
	if err != nil {
		return false, err
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		object, ok := event.Object.(T)
		if !ok {
			return false, nil // an error such as an expired revision; await lists again
		}
		if event.Type == watch.Deleted {
			return false, errDeleted
		}
		if done, err := seen(object); done || err != nil {
			return done, err
		}
	}
	return false, ctx.Err()
}
