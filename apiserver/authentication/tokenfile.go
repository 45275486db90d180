package authentication

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TokenFile authenticates the tokens in a CSV file with the columns token,user,uid,"group,...". It implements
// authenticator.Token.
type TokenFile struct {
	file  string
	users atomic.Pointer[map[string]*user.DefaultInfo]
}

// NewTokenFile reads a file with tokens.
func NewTokenFile(file string) (*TokenFile, error) {
	t := &TokenFile{file: file}
	if err := t.Reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// Files implements serving.Reloadable.
func (t *TokenFile) Files() []string { return []string{t.file} }

// Reload implements serving.Reloadable. On an error the current tokens stay in use.
func (t *TokenFile) Reload() error {
	file, err := os.Open(t.file)
	if err != nil {
		return fmt.Errorf("read tokens: %w", err)
	}
	defer func() { _ = file.Close() }()
	users, err := parseTokens(file)
	if err != nil {
		return fmt.Errorf("read tokens from %s: %w", t.file, err)
	}
	t.users.Store(&users)
	return nil
}

// parseTokens parses records of at least three columns. If several records have the same token, the last one applies.
func parseTokens(from io.Reader) (map[string]*user.DefaultInfo, error) {
	reader := csv.NewReader(from)
	reader.FieldsPerRecord = -1
	users := make(map[string]*user.DefaultInfo)
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return users, nil
		}
		if err != nil {
			return nil, err
		}
		if len(record) < 3 {
			return nil, fmt.Errorf("a record needs at least 3 columns (token, user name, user uid), found %d", len(record))
		}
		if record[0] == "" {
			continue
		}
		who := &user.DefaultInfo{Name: record[1], UID: record[2]}
		if len(record) >= 4 {
			who.Groups = strings.Split(record[3], ",")
		}
		users[record[0]] = who
	}
}

// AuthenticateToken implements authenticator.Token.
func (t *TokenFile) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	who, ok := (*t.users.Load())[token]
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: who}, true, nil
}

var _ authenticator.Token = (*TokenFile)(nil)
