// Command probe is the program in the pods of run.sh and kubelet.sh: a server that returns its host name, and small
// diagnostic tools.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	address = ":8080"
	account = "/var/run/secrets/kubernetes.io/serviceaccount/"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("probe serve|cat|exit CODE|get URL|api PATH|read FILE|dial ADDRESS...|scrape URL CA-FILE " +
			"TOKEN-FILE")
	}
	switch args[0] {
	case "serve":
		return serve(strings.Join(args[1:], " "))
	case "cat":
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	}
	if len(args) < 2 {
		return fmt.Errorf("%s needs an argument", args[0])
	}
	switch args[0] {
	case "exit":
		code, err := strconv.Atoi(args[1])
		if err == nil {
			fmt.Println("ends with", code)
			os.Exit(code)
		}
		return err
	case "read":
		content, err := os.ReadFile(args[1])
		fmt.Printf("%s", content)
		return err
	case "get":
		return get(http.DefaultClient, args[1], "")
	case "api":
		return api(args[1])
	case "dial":
		return dial(args[1:])
	case "scrape":
		if len(args) == 4 {
			return scrape(args[1], args[2], args[3])
		}
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// serve responds with a greeting and the host name until SIGTERM.
func serve(greeting string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("%s asks for %s\n", r.RemoteAddr, r.URL.Path)
		fmt.Fprintf(w, "%s from %s\n", greeting, name)
	})}
	fmt.Println(greeting, "is served by", name)
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func get(client *http.Client, url, token string) error {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	client.Timeout = 5 * time.Second
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// dialTimeout is how long an address may take to accept connections, because networks configure new pods with a delay.
const dialTimeout = 5 * time.Second

// dial prints, for each address, whether it accepts connections.
func dial(addresses []string) error {
	for _, address := range addresses {
		state := "closed"
		for deadline := time.Now().Add(dialTimeout); state == "closed" &&
			time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if connection, err := net.DialTimeout("tcp", address, time.Second); err == nil {
				_ = connection.Close()
				state = "open"
			}
		}
		fmt.Println(address, state)
	}
	return nil
}

// scrape reads an HTTPS URL with a bearer token and a certificate authority.
func scrape(url, authority, token string) error {
	content, err := os.ReadFile(token)
	if err != nil {
		return err
	}
	client, err := trusting(authority)
	if err != nil {
		return err
	}
	var dialError *net.OpError
	err = get(client, url, string(content))
	for deadline := time.Now().Add(dialTimeout); errors.As(err, &dialError) && time.Now().Before(deadline); {
		time.Sleep(100 * time.Millisecond)
		err = get(client, url, string(content))
	}
	return err
}

// trusting returns a client that trusts only the authorities in a file.
func trusting(file string) (*http.Client, error) {
	roots, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}, nil
}

// api sends a request to the API server of the cluster with the pod's service account.
func api(path string) error {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	client, err := trusting(account + "ca.crt")
	if err != nil {
		return err
	}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return get(client, "https://"+host+path, string(token))
}
