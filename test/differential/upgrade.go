package differential

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
)

// upgrade sends a request for another protocol. When the server has switched, it sends the body of the case and a
// newline, and reads until the server closes the connection.
func (r *run) upgrade(ctx context.Context, c *Case) (*Answer, error) {
	config := rest.CopyConfig(r.server.config)
	config.NextProtos = []string{"http/1.1"}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	sent := *c
	sent.Method, sent.Body = http.MethodGet, ""
	request, err := r.request(ctx, &sent)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer := &Answer{Code: response.StatusCode, Header: response.Header}
	if stream, ok := response.Body.(io.ReadWriter); ok && response.StatusCode == http.StatusSwitchingProtocols {
		if _, err := fmt.Fprintln(stream, r.expand(c.Body)); err != nil {
			return nil, err
		}
	}
	var body bytes.Buffer
	_, err = io.Copy(&body, response.Body)
	answer.Body = body.Bytes()
	return answer, err
}
