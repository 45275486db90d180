package etcdctl

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// defragmented is the result for one endpoint in JSON.
type defragmented struct {
	Endpoint    string `json:"endpoint"`
	BeforeBytes int64  `json:"beforeBytes"`
	AfterBytes  int64  `json:"afterBytes"`
}

func (t *tool) defragCommand() *cobra.Command {
	return &cobra.Command{
		Use: "defrag", Short: "Release unused space of the members' databases to the file system",
		Long: "Release unused space of the members' databases to the file system. A member does not respond while it\n" +
			"defragments its database. Endpoints are defragmented one after another.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.defrag(command.Context()) },
	}
}

// defrag defragments one member after the other. It stops at the first error, so that a problem which affects all
// members cannot make more than one of them unavailable.
func (t *tool) defrag(ctx context.Context) error {
	ctx, cancel := t.limited(ctx, 0)
	defer cancel()
	client, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	shown, rows := []defragmented{}, [][]string{}
	var failure error
	for _, endpoint := range client.Endpoints() {
		var d defragmented
		if d, failure = t.defragOne(ctx, client, endpoint); failure != nil {
			break
		}
		shown, rows = append(shown, d), append(rows, []string{d.Endpoint, mebibytes(d.BeforeBytes), mebibytes(d.AfterBytes)})
	}
	if len(shown) > 0 || t.format == "json" {
		failure = errors.Join(failure, t.print(shown, []string{"ENDPOINT", "BEFORE", "AFTER"}, rows))
	}
	return failure
}

func (t *tool) defragOne(ctx context.Context, client *clientv3.Client, endpoint string) (defragmented, error) {
	before, err := t.memberStatus(ctx, client, endpoint)
	if err != nil {
		return defragmented{}, err
	}
	if _, err := client.Defragment(ctx, endpoint); err != nil {
		return defragmented{}, failed("defragment", t.name(endpoint), err)
	}
	after, err := t.memberStatus(ctx, client, endpoint)
	if err != nil {
		return defragmented{}, err
	}
	return defragmented{Endpoint: t.name(endpoint), BeforeBytes: before.DatabaseSize, AfterBytes: after.DatabaseSize}, nil
}
