package encryption

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
)

// Validate validates a file in the same way as Load, without connecting to KMS plugins. Its errors have
// kube-apiserver's messages.
func Validate(file string, reload bool) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("error while loading file: error reading encryption provider configuration file %q: %w", file, err)
	}
	if len(data) == 0 {
		return fmt.Errorf("error while loading file: encryption provider configuration file %q is empty", file)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
	decoded, kind, err := decoder.Decode(data, nil, nil)
	if err != nil {
		return fmt.Errorf("error decoding encryption provider configuration file %q: %w", file, err)
	}
	content, ok := decoded.(*apiserver.EncryptionConfiguration)
	if !ok {
		return fmt.Errorf("got unexpected config type: %v", kind)
	}
	if err := validation.ValidateEncryptionConfiguration(content, reload).ToAggregate(); err != nil {
		return err
	}
	return nil
}
