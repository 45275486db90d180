package envtest

import (
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "example.com", Version: "v1"}

// Greeting describes a ConfigMap with a greeting. testdata/greetings.yaml is its definition.
type Greeting struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata,omitempty"`
	Spec            GreetingSpec   `json:"spec"`
	Status          GreetingStatus `json:"status,omitempty"`
}

// GreetingSpec is the desired state.
type GreetingSpec struct {
	Name string `json:"name"`
	Word string `json:"word,omitempty"`
}

// GreetingStatus is the observed state.
type GreetingStatus struct {
	Text               string `json:"text,omitempty"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (g *Greeting) DeepCopyObject() runtime.Object {
	out := *g
	g.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// GreetingList is a list of Greetings.
type GreetingList struct {
	meta.TypeMeta `json:",inline"`
	meta.ListMeta `json:"metadata,omitempty"`
	Items         []Greeting `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *GreetingList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Greeting))
	}
	return &out
}

func addToScheme(scheme *runtime.Scheme) {
	scheme.AddKnownTypes(groupVersion, &Greeting{}, &GreetingList{})
	meta.AddToGroupVersion(scheme, groupVersion)
}
