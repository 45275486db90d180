package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// refusalFile, in the data directory, has the reason why a member has stopped and must not start again. It is never
// removed, because the reasons are permanent: only a new data directory can be used.
const refusalFile = "refusal.json"

// refusal is the content of refusalFile.
type refusal struct {
	// Kind is the error's key in refusals.
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// refusals has the errors with which a running member stops permanently, by their names in refusalFile.
var refusals = map[string]error{"AcknowledgedWritesLost": ErrWritesLost, "Damaged": ErrDamaged, "Recovered": ErrLost}

// errRecovered is recorded in a data directory that a recovery has opened without the other members of its cluster.
// etcd has removed them from the data's member list, so that a member with this data would form a quorum alone.
var errRecovered = fmt.Errorf("%w: a recovery has opened the data without the other members of its cluster. Repeat "+
	"'quorate etcd recover', which gives the data a new identity", ErrLost)

// markRecovered records errRecovered, unless a reason is already recorded.
func markRecovered(directory string) error {
	if readRefusal(directory) != nil {
		return nil
	}
	return writeRefusal(directory, errRecovered)
}

// writeRefusal records an error in refusalFile if it wraps an error in refusals.
func writeRefusal(directory string, reason error) error {
	for kind, err := range refusals {
		if !errors.Is(reason, err) {
			continue
		}
		text, err := json.Marshal(refusal{Kind: kind, Message: reason.Error()})
		if err != nil {
			return err
		}
		return replaceFile(directory, refusalFile, text)
	}
	return nil
}

// refused is an error that was recorded by an earlier process.
type refused struct {
	refusal
	kind error
}

func (r refused) Error() string { return r.Message }
func (r refused) Unwrap() error { return r.kind }

// readRefusal returns the recorded error, or nil if there is none.
func readRefusal(directory string) error {
	path := filepath.Join(directory, refusalFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var recorded refusal
	if json.Unmarshal(text, &recorded) != nil || refusals[recorded.Kind] == nil {
		return fmt.Errorf("%w: %s cannot be read", ErrDamaged, path)
	}
	return refused{recorded, refusals[recorded.Kind]}
}
