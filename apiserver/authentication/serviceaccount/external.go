package serviceaccount

import (
	"context"
	"fmt"
	"time"

	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/serviceaccount/externaljwt/plugin"
)

// These are kube-apiserver's timeouts for the first requests to an external signer.
const (
	keysTimeout     = time.Minute
	metadataTimeout = 10 * time.Second
)

// signExternally makes the external signer at --service-account-signing-endpoint sign and verify tokens. Its keys are
// fetched before signExternally returns, then as often as the signer requires, and when a token has an unknown key. ctx
// bounds only the set-up. The errors have kube-apiserver's texts.
func (t *Tokens) signExternally(ctx context.Context) (err error) {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	signer, keys, err := plugin.New(lasting, t.config.ServiceAccountIssuers[0],
		t.config.ServiceAccountSigningEndpoint, keysTimeout, false)
	if err != nil {
		return fmt.Errorf("while setting up external-jwt-signer: %w", err)
	}
	longest, err := longestLifetime(ctx, signer)
	if err != nil {
		return err
	}
	wanted := t.config.ServiceAccountMaxLifetime
	if wanted > longest {
		return fmt.Errorf("service-account-max-token-expiration cannot be set longer than the token expiration supported by "+
			"service-account-signing-endpoint: %s > %s", wanted, longest)
	}
	if wanted == 0 {
		t.config.ServiceAccountMaxLifetime = longest
	}
	t.extendedLifetime = min(t.extendedLifetime, int64(longest/time.Second))
	t.external, t.keys, t.closeSigner = signer, keys, cancel
	return nil
}

// longestLifetime returns the maximum lifetime of tokens that a signer signs.
func longestLifetime(ctx context.Context, signer *plugin.Plugin) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, metadataTimeout)
	defer cancel()
	metadata, err := signer.GetServiceMetadata(ctx)
	if err != nil {
		return 0, fmt.Errorf("while setting up external-jwt-signer: %w", err)
	}
	if metadata.MaxTokenExpirationSeconds < validation.MinTokenAgeSec {
		return 0, fmt.Errorf("max token life supported by external-jwt-signer (%ds) is less than acceptable (min %ds)",
			metadata.MaxTokenExpirationSeconds, validation.MinTokenAgeSec)
	}
	return time.Duration(metadata.MaxTokenExpirationSeconds) * time.Second, nil
}
