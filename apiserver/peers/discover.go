package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/transport"
)

const (
	// discoveryTimeout bounds the time to read one document.
	discoveryTimeout = 10 * time.Second
	// maxDiscovery is the maximum number of bytes of a document. The document of 1,000 custom resources has 2 MiB.
	maxDiscovery = 64 << 20
)

// discover returns a peer with its discovery. It returns nil if it returns an error.
func (p *Peers) discover(ctx context.Context, id string) (*Peer, error) {
	address, err := p.options.Leases.address(ctx, id)
	if err != nil {
		p.metrics.syncErrors.WithLabelValues(errorAddress).Inc()
		return nil, err
	}
	var groups []discoveryv2.APIGroupDiscovery
	for _, path := range []string{"/api", "/apis"} {
		document, err := p.fetch(ctx, "https://"+address+path)
		if err != nil {
			p.metrics.syncErrors.WithLabelValues(errorDiscovery).Inc()
			return nil, err
		}
		groups = append(groups, document.Items...)
	}
	return newPeer(id, groups), nil
}

// fetch reads the aggregated discovery at url as the user system:apiserver. The request excludes resources that the
// peer itself only forwards to its own peers.
func (p *Peers) fetch(ctx context.Context, url string) (*discoveryv2.APIGroupDiscoveryList, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", discovery.AcceptV2NoPeer+","+discovery.AcceptV2)
	r.Header.Set(proxiedHeader, "true")
	transport.SetAuthProxyHeaders(r, user.APIServerUser, user.APIServerUser, []string{user.AllAuthenticated}, nil)
	response, err := p.options.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	p.metrics.rerouted.WithLabelValues(strconv.Itoa(response.StatusCode), "", "", "").Inc()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDiscovery+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", url, err)
	case len(body) > maxDiscovery:
		return nil, fmt.Errorf("%s: %w", url, errTooLarge)
	}
	document := &discoveryv2.APIGroupDiscoveryList{}
	if err := json.Unmarshal(body, document); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if document.Kind != "APIGroupDiscoveryList" {
		return nil, fmt.Errorf("%s: %w", url, errNotAggregated)
	}
	return document, nil
}

var (
	errTooLarge      = errors.New("the discovery document is too large")
	errNotAggregated = errors.New("the discovery document is not aggregated")
)
