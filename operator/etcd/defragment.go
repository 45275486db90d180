package etcd

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"quorate.dev/panics"
)

const (
	// defragmentTimeout bounds one defragmentation. It suffices for 8 GiB, the largest quota, on a disk that writes 10
	// MiB/s.
	defragmentTimeout = 15 * time.Minute
	// defragmentKeepAliveTimeout is how long a member that is defragmenting may be too busy to respond to keepalive
	// pings.
	defragmentKeepAliveTimeout = time.Minute
)

// Defragmentation is the state of a defragmentation that a Pool has started. It is immutable: a Pool replaces it.
type Defragmentation struct {
	Member   string
	Finished bool
	Err      error // why it has failed; nil while it runs or if it succeeded
}

// Defragment starts the defragmentation of a member in a goroutine, unless a defragmentation of the cluster is already
// running in this process. The request has its own connection, so that neither Drop nor a change of the members
// interrupts it.
func (p *Pool) Defragment(cluster string, member Endpoint, id uint64, port string, credentials Credentials) {
	if started := p.startDefragmentation(cluster, member.Name); started != nil {
		go func() {
			err := panics.Catch(func() error { return defragment(member, id, port, credentials) })
			p.finishDefragmentation(cluster, started, err)
		}()
	}
}

// startDefragmentation records and returns a new defragmentation of a member. It returns nil if this process is already
// defragmenting a member of the same cluster.
func (p *Pool) startDefragmentation(cluster, member string) *Defragmentation {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if d := p.defragmentations[cluster]; d != nil && !d.Finished {
		return nil
	}
	started := &Defragmentation{Member: member}
	p.defragmentations[cluster] = started
	return started
}

// finishDefragmentation stores the result of the defragmentation started. It does nothing if another one has replaced
// it, because the cluster was deleted (Forget) since it started.
func (p *Pool) finishDefragmentation(cluster string, started *Defragmentation, err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.defragmentations[cluster] == started {
		p.defragmentations[cluster] = &Defragmentation{Member: started.Member, Finished: true, Err: err}
	}
}

// Defragmentation returns the last defragmentation of a cluster that this process has started, or nil.
func (p *Pool) Defragmentation(cluster string) *Defragmentation {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.defragmentations[cluster]
}

// ForgetDefragmentation removes the last defragmentation of a cluster if it is finished.
func (p *Pool) ForgetDefragmentation(cluster string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if d := p.defragmentations[cluster]; d != nil && d.Finished {
		delete(p.defragmentations, cluster)
	}
}

// defragment defragments a member and returns when etcd has responded. It first checks that the member at the address
// has the given ID, because the address may have been assigned to another pod.
func defragment(member Endpoint, id uint64, port string, credentials Credentials) error {
	config, err := credentials.config()
	if err != nil {
		return err
	}
	client, err := newClient(member, port, credentials.ServerName, config, defragmentKeepAliveTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	endpoint := client.Endpoints()[0]
	checking, cancel := context.WithTimeout(context.Background(), changeTimeout)
	defer cancel()
	state, err := client.Status(checking, endpoint)
	switch {
	case err != nil:
		return fmt.Errorf("%s does not respond: %s", member.Name, status.Convert(err).Message())
	case state.Header.MemberId != id:
		return fmt.Errorf("another member responds at the address of %s", member.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), defragmentTimeout)
	defer cancel()
	if _, err := client.Defragment(ctx, endpoint); err != nil {
		return fmt.Errorf("defragment %s: %s", member.Name, status.Convert(err).Message())
	}
	return nil
}
