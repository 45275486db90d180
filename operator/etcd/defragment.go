package etcd

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"quorate.dev/panics"
)

const (
	// defragmentTimeout bounds one defragmentation: 8 GiB on a disk that writes 10 MiB/s.
	defragmentTimeout = 15 * time.Minute
	// defragmentKeepAliveTimeout is how long a member may be too busy to respond to pings.
	defragmentKeepAliveTimeout = time.Minute
)

// Defragmentation is a defragmentation that a Pool has started. It is immutable.
type Defragmentation struct {
	Member   string
	Finished bool
	Err      error // of a finished one
}

// Defragment starts the defragmentation of the member with an ID, unless one of the cluster is already running in this
// process. It has its own connection, so that neither Drop nor a client with other members interrupts it.
func (p *Pool) Defragment(cluster string, member Endpoint, id uint64, port string, credentials Credentials) {
	if started := p.startDefragmentation(cluster, member.Name); started != nil {
		go func() {
			err := panics.Catch(func() error { return defragment(member, id, port, credentials) })
			p.finishDefragmentation(cluster, started, err)
		}()
	}
}

// startDefragmentation returns nil if a defragmentation of the cluster is running.
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

// finishDefragmentation stores the result, unless the cluster was deleted meanwhile.
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

// ForgetDefragmentation removes the result of a finished defragmentation.
func (p *Pool) ForgetDefragmentation(cluster string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if d := p.defragmentations[cluster]; d != nil && d.Finished {
		delete(p.defragmentations, cluster)
	}
}

// defragment returns when etcd has finished. It first checks that the member at the address has the ID.
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
		return fmt.Errorf("defragmenting %s: %s", member.Name, status.Convert(err).Message())
	}
	return nil
}
