package etcd

import (
	"encoding/binary"
	"encoding/json"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// membersBucket is the bucket of etcd's database with the member list, by ID in hexadecimal.
const membersBucket = "members"

// ownerOf returns the name of a member according to the member list of a database. It returns "" if the name is
// unknown, or if the list has no other members, for example after a restore. In the latter case the member may get
// another name, because no other member counts it as a voter.
func ownerOf(database string, id types.ID) (name string) {
	view(database, func(tx *bolt.Tx) {
		bucket := tx.Bucket([]byte(membersBucket))
		if bucket == nil || bucket.Stats().KeyN < 2 {
			return
		}
		var member struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(bucket.Get([]byte(id.String())), &member) == nil {
			name = member.Name
		}
	})
	return name
}

// appliedIn returns the index and the term of the last entry of the log whose changes a database has. An index or term
// that the database does not contain is 0; databases of etcd 3.4 have no term. appliedIn must be called before etcd
// starts: a running etcd replaces its database at any time by one that the leader sends.
func appliedIn(database string) (applied progress) {
	view(database, func(tx *bolt.Tx) {
		bucket := tx.Bucket(schema.Meta.Name())
		if bucket == nil {
			return
		}
		if stored := bucket.Get(schema.MetaConsistentIndexKeyName); len(stored) == 8 {
			applied.Index = binary.BigEndian.Uint64(stored)
		}
		if stored := bucket.Get(schema.MetaTermKeyName); len(stored) == 8 {
			applied.Term = binary.BigEndian.Uint64(stored)
		}
	})
	return applied
}

// view reads a database. It does nothing if the database cannot be opened, and stops at a damaged page; checkDatabase
// and etcd report both.
func view(database string, read func(*bolt.Tx)) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // pages are mapped into memory
	defer func() { _ = recover() }()
	db, err := bolt.Open(database, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
	if err != nil {
		return
	}
	defer db.Close()
	_ = db.View(func(tx *bolt.Tx) error {
		read(tx)
		return nil
	})
}
