package etcdctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// alarm is a raised or disarmed alarm in JSON.
type alarm struct {
	MemberID string `json:"memberID"`
	Alarm    string `json:"alarm"` // NOSPACE or CORRUPT
}

func (t *tool) alarmCommand() *cobra.Command {
	command := group("alarm", "List or disarm alarms")
	command.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the active alarms", Args: cobra.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				return t.alarms(command.Context(), (*clientv3.Client).AlarmList)
			},
		},
		&cobra.Command{
			Use: "disarm", Short: "Disarm all alarms, and list them",
			Long: "Disarm all alarms, and list them. While NOSPACE is raised, etcd accepts only deletions. The next write\n" +
				"raises it again unless there is enough space: first delete keys that you do not need, wait for compaction,\n" +
				"and defragment.",
			Args: cobra.NoArgs,
			RunE: func(command *cobra.Command, _ []string) error {
				return t.alarms(command.Context(), func(c *clientv3.Client, ctx context.Context) (*clientv3.AlarmResponse, error) {
					return c.AlarmDisarm(ctx, &clientv3.AlarmMember{})
				})
			},
		},
	)
	return command
}

// alarmRequest is a request whose response has alarms.
type alarmRequest func(*clientv3.Client, context.Context) (*clientv3.AlarmResponse, error)

// alarms sends a request and prints the alarms of its response.
func (t *tool) alarms(ctx context.Context, do alarmRequest) error {
	ctx, cancel := t.limited(ctx, quickTimeout)
	defer cancel()
	client, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	response, err := do(client, ctx)
	if err != nil {
		return failed("alarms", t.name(client.Endpoints()[0]), err)
	}
	if len(response.Alarms) == 0 && t.format != "json" {
		_, err := fmt.Fprintln(t.out, "No alarms")
		return err
	}
	shown, rows := []alarm{}, [][]string{}
	for _, raised := range response.Alarms {
		a := alarm{MemberID: memberID(raised.GetMemberID()), Alarm: raised.GetAlarm().String()}
		shown, rows = append(shown, a), append(rows, []string{a.MemberID, a.Alarm})
	}
	return t.print(shown, []string{"MEMBER ID", "ALARM"}, rows)
}
