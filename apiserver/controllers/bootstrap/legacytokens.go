package bootstrap

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/resource"
)

// LegacyTokensConfigMap records since when the use of Secret-based service account tokens is tracked.
const LegacyTokensConfigMap = "kube-apiserver-legacy-service-account-token-tracking"

const (
	sinceKey         = "since"
	sinceFormat      = "2006-01-02"
	trackingEvery    = time.Minute
	trackingCreation = 30 * time.Minute // minimum interval of creations, as in kube-apiserver
)

// LegacyTokensLoop maintains LegacyTokensConfigMap. changed must be sent when it changes.
func (b *Bootstrap) LegacyTokensLoop(changed Signal) Loop {
	creations := rate.NewLimiter(rate.Every(trackingCreation), 1)
	pass := func(ctx context.Context) error { return b.trackLegacyTokens(ctx, creations) }
	return Loop{Name: LegacyTokensConfigMap, Pass: pass, Every: trackingEvery, Changed: changed}
}

func (b *Bootstrap) trackLegacyTokens(ctx context.Context, creations *rate.Limiter) error {
	now := b.clock.Now()
	today := now.UTC().Format(sinceFormat)
	found, err := b.objects.Get(ctx,
		resource.Key{GroupResource: ConfigMaps, Namespace: metav1.NamespaceSystem, Name: LegacyTokensConfigMap},
		resource.ReadOptions{Cached: true})
	if err == nil {
		return b.repairDate(ctx, found.(*core.ConfigMap), today)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	creation := creations.ReserveN(now, 1)
	if creation.DelayFrom(now) > 0 {
		creation.CancelAt(now)
		return nil // the next pass retries
	}
	key := resource.Key{GroupResource: ConfigMaps, Namespace: metav1.NamespaceSystem}
	_, err = b.objects.Create(ctx, key, &core.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: LegacyTokensConfigMap},
		Data:       map[string]string{sinceKey: today},
	}, resource.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		creation.CancelAt(now)
	}
	return err
}

// repairDate replaces an invalid date.
func (b *Bootstrap) repairDate(ctx context.Context, found *core.ConfigMap, today string) error {
	if isDate(found) {
		return nil
	}
	key := resource.Key{GroupResource: ConfigMaps, Namespace: metav1.NamespaceSystem, Name: LegacyTokensConfigMap}
	_, err := b.objects.Update(ctx, key, func(object runtime.Object) error {
		if configMap := object.(*core.ConfigMap); !isDate(configMap) {
			if configMap.Data == nil {
				configMap.Data = map[string]string{}
			}
			configMap.Data[sinceKey] = today
		}
		return nil
	}, resource.WriteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func isDate(configMap *core.ConfigMap) bool {
	_, err := time.Parse(sinceFormat, configMap.Data[sinceKey])
	return err == nil
}
