package hollow

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"quorate.dev/test/scale/wire"
)

// errDisconnected is returned for requests that are sent while a client has no connection.
var errDisconnected = errors.New("the client is not connected")

// Client is a client with one connection and its watches. It connects again when the connection ends.
type Client struct {
	target        *Target
	configuration *tls.Config
	stats         *Stats
	watches       []*Watch

	mu         sync.Mutex
	connection *wire.Connection // nil: not connected
	hurried    bool             // the next connection is opened without a pause
	done       <-chan struct{}  // closed when Run returns
}

// NewClient returns a client that is not running.
func NewClient(target *Target, configuration *tls.Config, stats *Stats) *Client {
	return &Client{target: target, configuration: configuration, stats: stats}
}

// Watch adds a watch of a path, whose query may have selectors. It must be called before Run.
func (c *Client) Watch(path string, each func(*Event)) *Watch {
	w := &Watch{client: c, path: path, each: each}
	c.watches = append(c.watches, w)
	return w
}

// Watches returns the watches.
func (c *Client) Watches() []*Watch { return c.watches }

// Run connects and holds the watches until the context ends.
func (c *Client) Run(ctx context.Context) {
	c.mu.Lock()
	c.done = ctx.Done()
	c.mu.Unlock()
	defer context.AfterFunc(ctx, c.drop)()
	for attempt := 0; ctx.Err() == nil; {
		connected, err := c.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		attempt++
		if connected {
			attempt = 0
		} else if !c.stats.Disturbed.Load() {
			c.stats.Report(fmt.Errorf("connect: %w", err))
		}
		if !c.takeHurry() && !pause(ctx, backoff(attempt)) {
			return
		}
	}
}

// connect opens a connection with all watches and serves it until it ends.
func (c *Client) connect(ctx context.Context) (connected bool, err error) {
	connection, err := c.target.Dial(ctx, c.configuration)
	if err != nil {
		return false, err
	}
	for _, w := range c.watches {
		if err := w.open(connection); err != nil {
			break // Serve returns the error
		}
	}
	c.set(connection)
	err = connection.Serve()
	c.set(nil)
	return true, err
}

// set stores the connection. If the client has ended since the connection was dialled, set closes the connection.
func (c *Client) set(connection *wire.Connection) {
	c.mu.Lock()
	c.connection = connection
	c.mu.Unlock()
	if connection != nil && c.ended() {
		connection.Close()
	}
}

func (c *Client) takeHurry() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	hurried := c.hurried
	c.hurried = false
	return hurried
}

// ended reports whether the context of Run has ended.
func (c *Client) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// drop closes the connection.
func (c *Client) drop() {
	c.mu.Lock()
	connection := c.connection
	c.mu.Unlock()
	if connection != nil {
		connection.Close()
	}
}

// Reconnect drops the connection and connects again immediately.
func (c *Client) Reconnect() {
	c.mu.Lock()
	c.hurried = true
	c.mu.Unlock()
	c.drop()
}

// Cut drops the connection, as a failure of the network does.
func (c *Client) Cut() { c.drop() }

// Do sends a request on the client's connection, and returns up to keep bytes of the response. It adds the latency to
// the statistics.
func (c *Client) Do(ctx context.Context, r wire.Request, keep int) (wire.Response, error) {
	begin := time.Now()
	response, err := c.exchange(ctx, r, keep, requestTimeout)
	if err != nil {
		return response, err
	}
	timings := &c.stats.Timings().Writes
	if r.Method == http.MethodGet {
		timings = &c.stats.Timings().Reads
	}
	timings.Add(time.Since(begin))
	return response, nil
}

// List sends a request for a list, and returns the status and the size of the response.
func (c *Client) List(ctx context.Context, r wire.Request, timeout time.Duration) (wire.Response, error) {
	return c.exchange(ctx, r, 0, timeout)
}

// exchange sends a request on the client's connection.
func (c *Client) exchange(ctx context.Context, r wire.Request, keep int, timeout time.Duration) (wire.Response, error) {
	c.mu.Lock()
	connection := c.connection
	c.mu.Unlock()
	if connection == nil {
		return wire.Response{}, fmt.Errorf("%s %s: %w", r.Method, r.Path, errDisconnected)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return connection.Do(ctx, r, keep)
}

// Send sends a request until it succeeds. It is sent again after failures that pass: when the client is not connected,
// and when the server rejects it because of its load.
func (c *Client) Send(ctx context.Context, r wire.Request) error {
	for attempt := 1; ; attempt++ {
		response, err := c.Do(ctx, r, 300)
		switch {
		case err == nil && response.Status < 300:
			return nil
		case err == nil && response.Status != http.StatusTooManyRequests:
			return statusError(r, response)
		case err != nil && !errors.Is(err, errDisconnected):
			return err
		}
		if !pause(ctx, backoff(attempt)) {
			return fmt.Errorf("%s %s: %w", r.Method, r.Path, ctx.Err())
		}
	}
}
