package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Direction is the direction of a move.
type Direction string

// Directions of a move.
const (
	ToExtension Direction = "to-extension"
	ToHost      Direction = "to-host"
)

// state is the progress of a move. The Mover stores it in a ConfigMap of the host before each step.
type state struct {
	Direction Direction  `json:"direction"`
	Step      stepName   `json:"step"` // step that was begun last
	Resources []resource `json:"resources"`
	// Verified are the resourceVersions of the source at which source and copies were equal, by plural.
	Verified map[string]string `json:"verified,omitempty"`
	// Priorities are the values of versionPriority in the extension server's APIServices before a move to the host, by
	// version.
	Priorities map[string]int64 `json:"priorities,omitempty"`
}

// resource contains the properties of a CustomResourceDefinition that a move needs.
type resource struct {
	Plural     string   `json:"plural"`
	Namespaced bool     `json:"namespaced"`
	Version    string   `json:"version"` // version in which the source and the extension server are read and written
	Served     []string `json:"served"`
	Group      string   `json:"-"`
}

func (r resource) definition() string { return r.Plural + "." + r.Group }

func (r resource) in(version string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: version, Resource: r.Plural}
}

// stateKey is the key of the state in its ConfigMap.
const stateKey = "state"

// stateName returns the name of the ConfigMap with the state of a group's move.
func stateName(group string) string { return "quorate-move." + group }

// load reads the state, which is nil if no move of the group is under way.
func (m *Mover) load(ctx context.Context) (*state, error) {
	stored, err := m.host.typed.CoreV1().ConfigMaps(m.Namespace).Get(ctx, stateName(m.Group), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of the move: %w", err)
	}
	s := &state{}
	if err := json.Unmarshal([]byte(stored.Data[stateKey]), s); err != nil {
		return nil, fmt.Errorf("decode ConfigMap %s/%s: %w", m.Namespace, stored.Name, err)
	}
	for i := range s.Resources {
		s.Resources[i].Group = m.Group
	}
	m.stored = stored
	return s, nil
}

var errConcurrent = errors.New("another process is running the same move")

// save stores the state. It returns errConcurrent if another process has stored one since the last load or save.
func (m *Mover) save(ctx context.Context, s *state) error {
	encoded, err := json.Marshal(s)
	if err != nil {
		return err
	}
	configMaps := m.host.typed.CoreV1().ConfigMaps(m.Namespace)
	next := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: stateName(m.Group)}}
	if m.stored != nil {
		next = m.stored.DeepCopy()
	}
	next.Data = map[string]string{stateKey: string(encoded)}
	if m.stored == nil {
		m.stored, err = configMaps.Create(ctx, next, metav1.CreateOptions{FieldManager: manager})
	} else {
		m.stored, err = configMaps.Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
	}
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return errConcurrent
	}
	if err != nil {
		return fmt.Errorf("store the state of the move: %w", err)
	}
	return nil
}

// forget deletes the ConfigMap of the state.
func (m *Mover) forget(ctx context.Context) error {
	err := m.host.typed.CoreV1().ConfigMaps(m.Namespace).Delete(ctx, stateName(m.Group), metav1.DeleteOptions{})
	m.stored = nil
	return ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
