package request

import (
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// ServesCBOR reports whether the feature gate CBORServingAndStorage is enabled: clients may then send and accept CBOR,
// and custom resources are stored in it.
func ServesCBOR() bool { return utilfeature.DefaultFeatureGate.Enabled(features.CBORServingAndStorage) }
